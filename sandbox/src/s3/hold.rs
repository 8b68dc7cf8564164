//! Holding one call at its gate until a test lets it go.

use std::sync::Arc;

use tokio::sync::watch;

/// The server's side of a [`Hold`].
#[derive(Debug, Clone)]
pub struct Gate {
    reached: Arc<watch::Sender<bool>>,
    released: watch::Receiver<bool>,
}

/// The test's side: knows when a call is held, and lets it go.
#[derive(Debug)]
pub struct Hold {
    reached: watch::Receiver<bool>,
    released: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new() -> (Self, Hold) {
        let (reached_sender, reached) = watch::channel(false);
        let (released, released_receiver) = watch::channel(false);
        (Self { reached: Arc::new(reached_sender), released: released_receiver }, Hold { reached, released })
    }

    pub(super) async fn pass(mut self) {
        let _ = self.reached.send(true);
        // An error means that the handle was dropped: then nobody waits, and the call goes on.
        let _ = self.released.wait_for(|released| *released).await;
    }
}

impl Hold {
    /// Waits until a call is held here. Returns false if the rule was removed before one came.
    pub async fn reached(&mut self) -> bool {
        self.reached.wait_for(|reached| *reached).await.is_ok()
    }

    /// Lets the held call go on.
    pub fn release(self) {
        let _ = self.released.send(true);
    }
}

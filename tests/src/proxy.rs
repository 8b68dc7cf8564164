//! What stands between a process and PostgreSQL, and cuts the connection where a test wants it: in the middle of a
//! request, or of its answer after the server has committed.
//!
//! It understands as much of the protocol as it needs to tell one statement from another and where an answer ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Where a connection is cut. Counted in bytes from the first of the statement's request or answer; never so late that
/// the whole of it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// So much of the request reaches the server: nothing is executed.
    Request(usize),
    /// The server has committed, and so much of its answer reaches the client.
    Answer(usize),
}

/// The next statement with these words is cut.
#[derive(Debug, Default)]
struct Orders {
    armed: Option<(String, Cut)>,
    done: usize,
    /// The next statement with these words waits.
    held: Option<String>,
}

/// A listener on loopback; its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    orders: Arc<Mutex<Orders>>,
    hold: Arc<Hold>,
    task: JoinHandle<()>,
}

/// Where a statement waits until it may go on.
#[derive(Debug, Default)]
struct Hold {
    reached: Notify,
    released: Notify,
}

impl Proxy {
    /// Stands before the server of `url`.
    ///
    /// # Panics
    /// When the URL has no port, or none is free.
    pub async fn before(url: &str) -> Self {
        let server = SocketAddr::from(([127, 0, 0, 1], port_of(url)));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let orders = Arc::<Mutex<Orders>>::default();
        let hold = Arc::<Hold>::default();
        let (given, gate) = (Arc::clone(&orders), Arc::clone(&hold));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (given, gate) = (Arc::clone(&given), Arc::clone(&gate));
                connections.spawn(async move {
                    // A server that is away, or whoever hangs up: for both sides the connection is over.
                    let _ = Connection::default().carry(client, server, &given, &gate).await;
                });
            }
        });
        Self { port, orders, hold, task }
    }

    /// The same database as `url`'s, through here.
    ///
    /// # Panics
    /// When the URL has no port.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        format!("{}?sslmode=disable", url.replacen(&format!(":{}/", port_of(url)), &format!(":{}/", self.port), 1))
    }

    /// The next statement that has `words` in its text is cut, once.
    pub fn cut(&self, words: &str, at: Cut) {
        self.orders().armed = Some((words.to_owned(), at));
    }

    /// The next statement that has `words` in its text waits before the server hears of it, once.
    pub fn hold(&self, words: &str) {
        self.orders().held = Some(words.to_owned());
    }

    /// Waits until it does.
    pub async fn until_held(&self) {
        self.hold.reached.notified().await;
    }

    /// Lets it go on.
    pub fn release(&self) {
        self.hold.released.notify_one();
    }

    /// How often a connection was cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.orders().done
    }

    fn orders(&self) -> std::sync::MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn port_of(url: &str) -> u16 {
    let (server, _) = url.rsplit_once('/').expect("a URL has a path");
    server.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("the tests' URLs name a port")
}

/// What is known of one connection.
#[derive(Debug, Default)]
struct Connection {
    started: bool,
    /// Prepared statements by name.
    statements: HashMap<Vec<u8>, String>,
    /// The statement at hand is to wait.
    held: bool,
    /// The statement at hand is to be cut here.
    doomed: Option<Cut>,
    /// The doomed request and its answer, as far as they are known.
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    async fn carry(
        mut self,
        mut client: TcpStream,
        server: SocketAddr,
        orders: &Mutex<Orders>,
        hold: &Hold,
    ) -> std::io::Result<()> {
        let mut server = TcpStream::connect(server).await?;
        for side in [&client, &server] {
            side.set_nodelay(true)?;
        }
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        loop {
            tokio::select! {
                read = client.read_buf(&mut asked) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    while let Some(message) = next_message(&mut asked, self.started) {
                        self.started = true;
                        let whole = self.hear(&message, orders);
                        if std::mem::take(&mut self.held) {
                            hold.reached.notify_one();
                            hold.released.notified().await;
                        }
                        if self.doomed.is_none() {
                            server.write_all(&message).await?;
                        } else if whole {
                            match self.doomed {
                                Some(Cut::Request(bytes)) => {
                                    server.write_all(&self.request[..bytes.min(self.request.len() - 1)]).await?;
                                    count(orders);
                                    return Ok(());
                                }
                                Some(Cut::Answer(_)) | None => server.write_all(&self.request).await?,
                            }
                        }
                    }
                }
                read = server.read_buf(&mut told) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    let Some(Cut::Answer(bytes)) = self.doomed else {
                        client.write_all(&std::mem::take(&mut told)).await?;
                        continue;
                    };
                    while let Some(message) = next_message(&mut told, true) {
                        self.answer.extend_from_slice(&message);
                        // ReadyForQuery: what the statement did is committed.
                        if message[0] == b'Z' {
                            client.write_all(&self.answer[..bytes.min(self.answer.len() - 1)]).await?;
                            count(orders);
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Takes notice of one message of the client; `true` where it ends a doomed request.
    fn hear(&mut self, message: &[u8], orders: &Mutex<Orders>) -> bool {
        let mut words = message.get(5..).unwrap_or_default().split(|byte| *byte == 0);
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match message[0] {
            b'P' => {
                self.statements.insert(first.to_vec(), String::from_utf8_lossy(second).into_owned());
            }
            b'B' if self.doomed.is_none() => {
                let text = self.statements.get(second).map(String::as_str).unwrap_or_default();
                let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
                if orders.armed.as_ref().is_some_and(|(words, _)| text.contains(words.as_str())) {
                    self.doomed = orders.armed.take().map(|(_, cut)| cut);
                }
                if orders.held.as_ref().is_some_and(|words| text.contains(words.as_str())) {
                    orders.held = None;
                    self.held = true;
                }
            }
            _ => {}
        }
        if self.doomed.is_some() {
            self.request.extend_from_slice(message);
        }
        self.doomed.is_some() && message[0] == b'S'
    }
}

fn count(orders: &Mutex<Orders>) {
    orders.lock().unwrap_or_else(PoisonError::into_inner).done += 1;
}

/// Takes one whole message off the front: a type and a length, or a length alone for the first of a client.
fn next_message(bytes: &mut Vec<u8>, typed: bool) -> Option<Vec<u8>> {
    let at = usize::from(typed);
    let length = bytes.get(at..at + 4)?.try_into().map(u32::from_be_bytes).ok()?;
    let whole = at + usize::try_from(length).ok()?;
    (bytes.len() >= whole).then(|| bytes.drain(..whole).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_and_in_order() {
        let mut bytes = vec![0, 0, 0, 5, 9, b'S', 0, 0, 0, 4, b'Q', 0, 0];
        assert_eq!(next_message(&mut bytes, false), Some(vec![0, 0, 0, 5, 9]));
        assert_eq!(next_message(&mut bytes, true), Some(vec![b'S', 0, 0, 0, 4]));
        assert_eq!(next_message(&mut bytes, true), None, "half a message");
        assert_eq!(bytes.len(), 3);
    }

    #[test]
    fn the_url_leads_through_the_proxy_alone() {
        assert_eq!(port_of("postgres://postgres:x@127.0.0.1:5432/test_1"), 5432);
    }
}

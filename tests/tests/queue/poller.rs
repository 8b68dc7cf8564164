//! A worker that polls and remembers where it stands, as the runner does.

use domain::queue::{self, Leased, LowWater, PollRequest, Polled, Turns, WorkerSpec};
use sqlx::PgConnection;

use crate::support::{Queue, worker};

pub struct Poller {
    pub worker: WorkerSpec,
    pub turns: Turns,
    marks: LowWater,
}

impl Poller {
    pub fn new() -> Self {
        Self { worker: worker(), turns: Turns::default(), marks: LowWater::default() }
    }

    /// Leases from the very beginning, once.
    pub async fn poll(&mut self, q: &Queue, limit: u16) -> Polled {
        self.ask(&mut *q.conn().await, limit, false).await
    }

    /// Polls again where it is told that there is more.
    pub async fn lease(&mut self, q: &Queue, limit: u16) -> Vec<Leased> {
        self.lease_on(&mut *q.conn().await, limit, false).await
    }

    /// As [`Self::lease`], from its marks on.
    pub async fn lease_marked(&mut self, q: &Queue, limit: u16) -> Vec<Leased> {
        self.lease_on(&mut *q.conn().await, limit, true).await
    }

    pub async fn lease_on(&mut self, conn: &mut PgConnection, limit: u16, marked: bool) -> Vec<Leased> {
        loop {
            let polled = self.ask(conn, limit, marked).await;
            if !polled.leased.is_empty() || !polled.more {
                return polled.leased;
            }
        }
    }

    /// The keys of what so many leases bring.
    pub async fn keys(&mut self, q: &Queue, limit: u16, times: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for _ in 0..times {
            keys.extend(self.lease(q, limit).await.into_iter().map(|job| job.concurrency_key.unwrap_or_default()));
        }
        keys
    }

    /// Looks, and leases nothing.
    pub async fn look(&mut self, q: &Queue) {
        let request = PollRequest { look: true, ..self.request(0, false) };
        let polled = queue::poll(&mut *q.conn().await, &self.worker, &request).await.expect("the database answers");
        self.turns = polled.turns;
    }

    async fn ask(&mut self, conn: &mut PgConnection, limit: u16, marked: bool) -> Polled {
        let polled = queue::poll(conn, &self.worker, &self.request(limit, marked)).await.expect("the database answers");
        self.marks.walked(&polled.leased, polled.short);
        self.marks.note(&polled.leased);
        self.turns = polled.turns.clone();
        polled
    }

    fn request(&self, limit: u16, marked: bool) -> PollRequest<'_> {
        let low_water = marked.then_some(&self.marks);
        PollRequest { limit, ended: &[], look: false, wall_clock: None, turns: Some(&self.turns), low_water }
    }
}

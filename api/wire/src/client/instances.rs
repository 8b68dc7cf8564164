//! Calls about instances, moves and regions.

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;

use super::{Answer, Client, Error, present, text};
use crate::{
    CutRequest, Edges, Environment, Instance, InstanceWhy, Move, MoveLook, MoveReceipt, MoveRehearsal, MoveRequest,
    MoveStep, MoveView, NewInstance, Page, PointRequest, Pointed, Region, RegionRequest, UnstickRequest,
};

/// Which moves to list.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MoveFilter {
    /// Only moves in flight, or only those that are over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Only this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only moves from or to this region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Items of one page, 1…200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
    /// Where the page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Creates an instance of an application.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_instance(
        &self,
        app: &str,
        instance: &NewInstance,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<Instance>, Error> {
        self.create(&["v1", "apps", app, "instances"], instance, idempotency_key).await
    }

    /// An application's instances, by host.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn instances(
        &self,
        app: &str,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Page<Instance>, Error> {
        let query = present([("limit", text(limit)), ("cursor", text(cursor))]);
        self.get(&["v1", "apps", app, "instances"], &query).await
    }

    /// One instance.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn instance(&self, app: &str, host: &str) -> Result<Instance, Error> {
        self.get(&["v1", "apps", app, "instances", host], &()).await
    }

    /// Why an instance is where it is, and what holds its move or its landing up.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn instance_why(&self, app: &str, host: &str) -> Result<InstanceWhy, Error> {
        self.get(&["v1", "apps", app, "instances", host, "why"], &()).await
    }

    /// Sets an instance's environment in place of the one that it has; `if_revision` refuses when the record changed since.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn set_environment(
        &self,
        app: &str,
        host: &str,
        environment: &Environment,
        if_revision: Option<i64>,
    ) -> Result<Instance, Error> {
        let mut request = self.request(Method::PUT, &["v1", "apps", app, "instances", host, "env"]).json(environment);
        if let Some(revision) = if_revision {
            request = request.header("if-match", format!("\"{revision}\""));
        }
        Ok(self.send(request).await?.value)
    }

    /// Has an instance's process end and another start, with the environment that it has now.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn restart_instance(&self, app: &str, host: &str, if_revision: Option<i64>) -> Result<Instance, Error> {
        let mut request = self.request(Method::POST, &["v1", "apps", app, "instances", host, "restart"]);
        if let Some(revision) = if_revision {
            request = request.header("if-match", format!("\"{revision}\""));
        }
        Ok(self.send(request).await?.value)
    }

    /// Parks an instance: its process is stopped, and started by nobody until it is woken.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn park_instance(&self, app: &str, host: &str) -> Result<Instance, Error> {
        Ok(self.send(self.request(Method::POST, &["v1", "apps", app, "instances", host, "park"])).await?.value)
    }

    /// Lets a parked instance run again.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn wake_instance(&self, app: &str, host: &str) -> Result<Instance, Error> {
        Ok(self.send(self.request(Method::POST, &["v1", "apps", app, "instances", host, "wake"])).await?.value)
    }

    /// Begins to move an instance; its data is copied until the move is `ready`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_instance(&self, app: &str, host: &str, to: &MoveRequest) -> Result<Move, Error> {
        self.act(&["v1", "apps", app, "instances", host, "move"], to, None).await
    }

    /// What a move would meet; nothing is begun, whatever `to` says of it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn rehearse_move(&self, app: &str, host: &str, to: &MoveRequest) -> Result<MoveRehearsal, Error> {
        let dry = MoveRequest { dry_run: true, ..to.clone() };
        self.act(&["v1", "apps", app, "instances", host, "move"], &dry, None).await
    }

    /// What the source's box found when it looked at what a move would copy.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_look(&self, app: &str, host: &str, job: Uuid) -> Result<MoveLook, Error> {
        let job = job.to_string();
        self.get(&["v1", "apps", app, "instances", host, "move", "rehearsals", &job], &()).await
    }

    /// Lets a ready move be cut.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cut_move(&self, app: &str, host: &str) -> Result<Move, Error> {
        Ok(self.send(self.request(Method::POST, &["v1", "apps", app, "instances", host, "move", "cut"])).await?.value)
    }

    /// As [`Client::cut_move`], also where the predicted freeze is over the move's budget.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn force_cut(&self, app: &str, host: &str) -> Result<Move, Error> {
        self.act(&["v1", "apps", app, "instances", host, "move", "cut"], &CutRequest { force: true }, None).await
    }

    /// Ends a move that is not being cut.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn abort_move(&self, app: &str, host: &str) -> Result<Move, Error> {
        Ok(self.send(self.request(Method::DELETE, &["v1", "apps", app, "instances", host, "move"])).await?.value)
    }

    /// Points an instance to a region by hand.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn point_instance(&self, app: &str, host: &str, to: &PointRequest) -> Result<Pointed, Error> {
        Ok(self
            .send(self.request(Method::PUT, &["v1", "apps", app, "instances", host, "region"]).json(to))
            .await?
            .value)
    }

    /// Takes back a cut that hangs.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unstick_move(&self, app: &str, host: &str, why: &UnstickRequest) -> Result<Move, Error> {
        self.act(&["v1", "apps", app, "instances", host, "move", "unstick"], why, None).await
    }

    /// An instance's moves, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn moves_of(&self, app: &str, host: &str) -> Result<Page<MoveView>, Error> {
        self.get(&["v1", "apps", app, "instances", host, "moves"], &()).await
    }

    /// Moves that match, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn moves(&self, filter: &MoveFilter) -> Result<Page<MoveView>, Error> {
        self.get(&["v1", "moves"], filter).await
    }

    /// One move.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_move(&self, id: Uuid) -> Result<MoveView, Error> {
        self.get(&["v1", "moves", &id.to_string()], &()).await
    }

    /// What a move did and left.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_receipt(&self, id: Uuid) -> Result<MoveReceipt, Error> {
        self.get(&["v1", "moves", &id.to_string(), "receipt"], &()).await
    }

    /// A move's journal, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn move_steps(
        &self,
        id: Uuid,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Page<MoveStep>, Error> {
        let query = present([("limit", text(limit)), ("cursor", text(cursor))]);
        self.get(&["v1", "moves", &id.to_string(), "steps"], &query).await
    }

    /// The regions to which an application's instances may move.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn app_regions(&self, app: &str) -> Result<Page<Region>, Error> {
        self.every(&["v1", "apps", app, "regions"], &[]).await
    }

    /// Defines or changes a region.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_region(&self, code: &str, region: &RegionRequest) -> Result<Region, Error> {
        Ok(self.send(self.request(Method::PUT, &["v1", "regions", code]).json(region)).await?.value)
    }

    /// Changes a region; refuses when it changed since it had this serial.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn change_region(&self, code: &str, region: &RegionRequest, serial: i64) -> Result<Region, Error> {
        let request = self.request(Method::PUT, &["v1", "regions", code]).header("if-match", format!("\"{serial}\""));
        Ok(self.send(request.json(region)).await?.value)
    }

    /// Every region.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn regions(&self) -> Result<Page<Region>, Error> {
        self.every(&["v1", "regions"], &[]).await
    }

    /// What the edges of a region serve.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn edges(&self, region: &str) -> Result<Edges, Error> {
        self.get(&["v1", "edges", region], &()).await
    }
}

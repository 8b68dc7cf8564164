//! Nodes that report what they own.

use serde_json::{Value, json};
use uuid::Uuid;
use wire::{NewNodeReport, NodeSession, OwnedItem, ReportOutcome, TakenNodeReport};

use crate::api::{Server, Told};
use crate::enrolment::{Machine, enrolled, put_node};

/// A machine that is a node, and its session.
#[derive(Debug)]
pub struct Reporter {
    /// The node.
    pub id: Uuid,
    /// The machine.
    pub machine: Machine,
    /// Its session.
    pub session: NodeSession,
}

/// What a node owns: instances of these hosts.
#[must_use]
pub fn items(hosts: &[&str]) -> Vec<OwnedItem> {
    hosts.iter().map(|host| OwnedItem { kind: "instance".to_owned(), id: (*host).to_owned() }).collect()
}

impl Reporter {
    /// A machine that enrols as a node that is there already.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn of(server: &Server, id: Uuid) -> Self {
        let machine = enrolled(server, id).await;
        let session = machine.open(server, id).await.expect("proven");
        Self { id, machine, session }
    }

    /// A machine that enrols as a node of its own, which no worker runs.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn start(server: &Server, identity: &str) -> Self {
        let id = put_node(server, identity).await.id;
        Self::of(server, id).await
    }

    /// A typed client with the node's bearer.
    #[must_use]
    pub fn client(&self, server: &Server) -> wire::Client {
        server.client_of(&self.session.token)
    }

    /// A report of success.
    #[must_use]
    pub fn report(&self, seq: i64, hosts: &[&str]) -> NewNodeReport {
        NewNodeReport {
            incarnation: self.session.incarnation,
            seq,
            outcome: ReportOutcome::Applied,
            items: items(hosts),
            reported_at: "2026-01-01T00:00:00Z".parse().expect("a moment"),
        }
    }

    /// Sends a report.
    ///
    /// # Errors
    /// The API's refusal.
    pub async fn put(&self, server: &Server, report: &NewNodeReport) -> Result<TakenNodeReport, wire::Error> {
        self.client(server).put_node_report(self.id, report).await
    }

    /// Sends a body as it stands.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn send(&self, server: &Server, body: impl Into<reqwest::Body>) -> Told {
        use secrecy::ExposeSecret as _;
        let request = server.bare("PUT", &format!("/v1/nodes/{}/report", self.id));
        let request =
            request.bearer_auth(self.session.token.expose_secret()).header("content-type", "application/json");
        Told::by(request.body(body)).await
    }

    /// What the API says of the record, as it stands on the wire.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn shown(&self, server: &Server) -> Value {
        let told = Told::by(server.request("GET", &format!("/v1/nodes/{}/report", self.id))).await;
        assert_eq!(told.status, 200, "{told:?}");
        told.json()
    }

    /// The rows of the node: its record byte by byte, and when it was heard.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn rows(&self, server: &Server) -> (Value, Value) {
        let (record, heard): (Option<Value>, Option<Value>) = sqlx::query_as(
            "select (select to_jsonb(r) from node_reports r where r.node_id = n.id), to_jsonb(n.heard_at)
               from nodes n where n.id = $1",
        )
        .bind(self.id)
        .fetch_one(server.db.pool())
        .await
        .expect("the node");
        (json!(record), json!(heard))
    }
}

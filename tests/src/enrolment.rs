//! Machines that enrol as nodes, and a server with a region for them.

use domain::nodes::proof::SigningKey;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use uuid::Uuid;
use wire::{EnrolmentTokenRequest, NewNode, Node, NodeSession, NodeSessionRequest};

use crate::api::{Server, Told};
use crate::fleet::region;

/// A server with the region eu.
///
/// # Panics
/// When the API does not answer.
pub async fn server() -> Server {
    let server = Server::start().await;
    server.client().put_region("eu", &region("eu")).await.expect("declared");
    server
}

/// What is needed for a record.
#[must_use]
pub fn new_node(identity: &str) -> NewNode {
    NewNode {
        identity: identity.to_owned(),
        region: "eu".to_owned(),
        hostname: format!("{identity}.example"),
        display_name: None,
    }
}

/// A record in eu.
///
/// # Panics
/// When the API refuses it.
pub async fn put_node(server: &Server, identity: &str) -> Node {
    server.client().create_node(&new_node(identity), None).await.expect("created").value
}

/// The secret of a fresh token.
///
/// # Panics
/// When the API issues none.
pub async fn secret(server: &Server, node: Uuid) -> SecretString {
    let request = EnrolmentTokenRequest::default();
    let issued = server.client().issue_enrolment_token(node, &request, None).await.expect("issued").value;
    issued.secret.expect("told once")
}

/// A machine with a key of its own.
#[derive(Debug)]
pub struct Machine {
    key: SigningKey,
}

impl Machine {
    /// One with a fresh key.
    #[must_use]
    pub fn new() -> Self {
        Self { key: SigningKey::generate() }
    }

    /// The public half, as it is sent.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.key.public().to_string()
    }

    /// A signature, as it is sent.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        self.key.sign(text.as_bytes())
    }

    /// What it sends to enrol.
    #[must_use]
    pub fn body(&self, secret: &SecretString) -> Value {
        json!({"secret": secret.expose_secret(), "public_key": self.public_key()})
    }

    /// Presents a secret, and shows the answer.
    ///
    /// # Panics
    /// When there is none.
    pub async fn present(&self, server: &Server, secret: &SecretString) -> Told {
        Told::by(server.bare("POST", "/v1/enrolments").header("x-request-id", "same").json(&self.body(secret))).await
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The API's refusal.
    ///
    /// # Panics
    /// When it gives no nonce.
    pub async fn open(&self, server: &Server, node: Uuid) -> Result<NodeSession, wire::Error> {
        let client = wire::Client::new(&server.base, None).expect("a client");
        let nonce = client.node_nonce(node).await.expect("a nonce");
        let request = NodeSessionRequest { signature: self.sign(&nonce.message), nonce: nonce.nonce };
        client.open_node_session(node, &request).await
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// A machine that enrolled as this node just now.
///
/// # Panics
/// When it is refused.
pub async fn enrolled(server: &Server, node: Uuid) -> Machine {
    let machine = Machine::new();
    let told = machine.present(server, &secret(server, node).await).await;
    assert_eq!(told.status, 200, "{told:?}");
    machine
}

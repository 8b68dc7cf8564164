//! Nodes: their records, their enrolment, their sessions.

use reqwest::Method;
use uuid::Uuid;

use super::{Answer, Client, Error, present, text};
use crate::{
    Enrolled, Enrolment, EnrolmentToken, EnrolmentTokenRequest, NewNode, NewNodeReport, Node, NodeNonce, NodeRebuild,
    NodeReport, NodeSession, NodeSessionRequest, Page, Reason, RevokedToken, TakenNodeReport,
};

impl Client {
    /// Makes a node's record.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_node(&self, node: &NewNode, idempotency_key: Option<&str>) -> Result<Answer<Node>, Error> {
        self.create(&["v1", "nodes"], node, idempotency_key).await
    }

    /// Nodes by identity, of one region or of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn nodes(
        &self,
        region: Option<&str>,
        limit: Option<u16>,
        cursor: Option<&str>,
    ) -> Result<Page<Node>, Error> {
        let query = [("region", text(region)), ("limit", text(limit)), ("cursor", text(cursor))];
        self.get(&["v1", "nodes"], &present(query)).await
    }

    /// One node.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node(&self, id: Uuid) -> Result<Node, Error> {
        self.get(&["v1", "nodes", &id.to_string()], &()).await
    }

    /// Issues an enrolment token; its secret is in this answer only.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn issue_enrolment_token(
        &self,
        node: Uuid,
        request: &EnrolmentTokenRequest,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<EnrolmentToken>, Error> {
        self.create(&["v1", "nodes", &node.to_string(), "enrolment-tokens"], request, idempotency_key).await
    }

    /// Revokes a node's outstanding token.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn revoke_enrolment_token(&self, node: Uuid, reason: &Reason) -> Result<RevokedToken, Error> {
        self.act(&["v1", "nodes", &node.to_string(), "enrolment-tokens", "revoke"], reason, None).await
    }

    /// Enrols this machine.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn enrol(&self, enrolment: &Enrolment) -> Result<Enrolled, Error> {
        self.act(&["v1", "enrolments"], enrolment, None).await
    }

    /// A nonce to sign.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node_nonce(&self, node: Uuid) -> Result<NodeNonce, Error> {
        self.act(&["v1", "nodes", &node.to_string(), "nonces"], &serde_json::json!({}), None).await
    }

    /// Opens a session with a signed nonce.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open_node_session(&self, node: Uuid, request: &NodeSessionRequest) -> Result<NodeSession, Error> {
        self.act(&["v1", "nodes", &node.to_string(), "sessions"], request, None).await
    }

    /// Reports what this node owns; the client's key is the bearer of its session.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_node_report(&self, node: Uuid, report: &NewNodeReport) -> Result<TakenNodeReport, Error> {
        let request = self.request(Method::PUT, &["v1", "nodes", &node.to_string(), "report"]);
        Ok(self.send(request.json(report)).await?.value)
    }

    /// What a node reported last.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node_report(&self, node: Uuid) -> Result<NodeReport, Error> {
        self.get(&["v1", "nodes", &node.to_string(), "report"], &()).await
    }

    /// What is wanted of a node, and what it reported last, of one moment.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node_rebuild(&self, node: Uuid) -> Result<NodeRebuild, Error> {
        self.get(&["v1", "nodes", &node.to_string(), "rebuild"], &()).await
    }
}

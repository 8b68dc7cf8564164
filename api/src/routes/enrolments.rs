//! How a machine enrols, and how it proves itself afterwards: routes that are open, since what it shows stands in the body.
//!
//! Each refusal is one constant answer: the same status, headers and bytes, after the same statements, whatever the reason
//! was. Who refuses tells the reason to operators alone, in the audit trail (A17).

use std::net::IpAddr;

use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use domain::ids::NodeId;
use domain::nodes::enrolment::{self, Enrolled, Presented, PublicKey};
use domain::nodes::proof::{self, Nonce};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use wire::{Code, Enrolment, NodeNonce, NodeSession, NodeSessionRequest, Problem};

use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::threshold::Peer;
use crate::{App, convert};

/// Enrols a machine: spends a token, and makes whoever holds the other half of `public_key` the node for which the token was
/// issued.
///
/// The machine need not know whether it joins or returns: the record decides. A machine that was this node before stops
/// working at once. Every refusal is the same answer.
#[utoipa::path(post, path = "/v1/enrolments", tag = "nodes", operation_id = "enrol", request_body = Enrolment,
    responses(
        (status = 200, description = "Who the machine is now", body = wire::Enrolled),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn enrol(
    State(app): State<App>,
    peer: Option<Extension<Peer>>,
    body: Body,
) -> Result<Response, Failure> {
    let (_, asked) = body.parse::<Enrolment>()?;
    // Judged before anything is looked up: this refusal tells nothing of the secret.
    let key = PublicKey::parse(&asked.public_key)
        .ok_or_else(|| Failure::field("/public_key", "must have 64 hexadecimal digits in lower case"))?;
    let presented = Presented::new(&asked.secret);
    let source = peer.map(|Extension(Peer(address))| address);
    let act = || redeem(&app, &presented, &key, source);
    match domain::db::retry_races(act, Failure::is_race).await? {
        Some(enrolled) => Ok(Json(wire::Enrolled {
            node_id: enrolled.node.0,
            incarnation: enrolled.incarnation,
            control_plane: convert::control_plane(app.config()),
        })
        .into_response()),
        None => {
            note(&app, presented, key, source);
            Ok(refusal(
                Code::EnrolmentRefused,
                "This secret enrols nobody: it is unknown, was used, or stopped working. If this machine made its key for \
                 this secret already, let it prove itself; else ask an administrator for another token.",
            ))
        }
    }
}

async fn redeem(
    app: &App,
    presented: &Presented,
    key: &PublicKey,
    source: Option<IpAddr>,
) -> Result<Option<Enrolled>, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    let source = source.map(|address| address.to_string());
    match enrolment::redeem(&mut tx, presented, key, source.as_deref()).await {
        Ok(Some(enrolled)) => {
            tx.commit().await?;
            Ok(Some(enrolled))
        }
        refused => {
            tx.rollback().await?;
            Ok(refused?)
        }
    }
}

/// Records why, once the answer no longer waits for it: for each refusal alike.
fn note(app: &App, presented: Presented, key: PublicKey, source: Option<IpAddr>) {
    let Some(place) = app.note() else {
        tracing::warn!("a refused enrolment is missing in the audit trail: too many came at once");
        return;
    };
    let pool = app.pool().clone();
    app.notes().spawn(async move {
        let _place = place;
        let source = source.map(|address| address.to_string());
        let noted = async {
            let mut conn = domain::db::session(&pool).await?;
            enrolment::note_refusal(&mut conn, &presented, &key, source.as_deref()).await
        };
        if let Err(error) = noted.await {
            tracing::warn!(%error, "a refused enrolment is missing in the audit trail");
        }
    });
}

/// The same bytes each time: without the request's id, which the header tells.
fn refusal(code: Code, detail: &'static str) -> Response {
    let body = serde_json::to_vec(&Problem::new(code, detail)).unwrap_or_default();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/problem+json")),
        (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"leasehold\"")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (StatusCode::from_u16(code.status()).unwrap_or(StatusCode::UNAUTHORIZED), headers, body).into_response()
}

/// Nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// A nonce for a node to sign, within a minute and once.
///
/// It is told for any id: whether there is such a node is told to nobody.
#[utoipa::path(post, path = "/v1/nodes/{id}/nonces", tag = "nodes", operation_id = "node_nonce",
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "The nonce, and the text to sign", body = NodeNonce),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn nonce(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Json<NodeNonce>, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let Nothing {} = body.parse_or_default()?;
    let mut conn = domain::db::session(app.pool()).await?;
    let (nonce, expires_at) = proof::challenge(&mut conn, id).await?;
    let message = String::from_utf8_lossy(&proof::message(id, &nonce)).into_owned();
    Ok(Json(NodeNonce { nonce: nonce.to_string(), expires_at, message }))
}

/// Opens a session of a node for whoever signed its nonce with the node's key.
///
/// The bearer works for 15 minutes, and no longer than the node's credential: it is asked about at every request. Every
/// refusal is the same answer, and spends the nonce.
#[utoipa::path(post, path = "/v1/nodes/{id}/sessions", tag = "nodes", operation_id = "open_node_session",
    request_body = NodeSessionRequest,
    params(("id" = uuid::Uuid, Path, description = "The node")),
    responses(
        (status = 200, description = "The session and its bearer", body = NodeSession),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn open_session(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let id: NodeId = id.parse().map_err(|_| Failure::not_found())?;
    let (_, asked) = body.parse::<NodeSessionRequest>()?;
    let nonce = Nonce::parse(&asked.nonce)
        .ok_or_else(|| Failure::field("/nonce", "must have 64 hexadecimal digits in lower case"))?;
    let signature = domain::digest::from_hex(&asked.signature)
        .ok_or_else(|| Failure::field("/signature", "must have 128 hexadecimal digits in lower case"))?;
    let mut tx = domain::db::begin(app.pool()).await?;
    let opened = proof::open(&mut tx, id, &nonce, &signature).await?;
    // Also where it refuses: the nonce is spent.
    tx.commit().await?;
    Ok(match opened {
        Some((bearer, session)) => Json(NodeSession {
            node_id: session.node.0,
            incarnation: session.incarnation,
            token: bearer.reveal(),
            expires_at: session.expires_at,
        })
        .into_response(),
        None => refusal(
            Code::SessionRefused,
            "The signature proves no node: the nonce is old or was used, or the key is not the node's any more. Sign a fresh \
             nonce; if that is refused too, enrol the machine again.",
        ),
    })
}

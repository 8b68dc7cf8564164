//! The dashboard: pages rendered on the server, one struct and one template each, at `/`.
//!
//! # Consistency
//! A page reads on one snapshot, within a time limit for each statement and a bounded number of them; its foot says
//! how many and how long. Whatever a page says comes from the domain: no SQL and no decision about jobs stands here.
//!
//! # Live
//! `/v1/events` says only that something changed. The script then fetches the page's own address again, with a header
//! that lets the server leave out the rest, and swaps the regions that differ. The ETag is made from the page without
//! its ages, so that a page on which nothing happened is answered by 304.
//!
//! # Rights
//! A browser signs in with an API key and gets a session; the session's cookie opens pages and the stream of events
//! and nothing else. Forms carry a token of their session.

use axum::Router;
use axum::response::Redirect;
use axum::routing::{get, post};

use crate::App;

mod act;
mod address;
mod assets;
mod chart;
mod failure;
mod headers;
mod instance;
mod instances;
mod job;
mod jobs;
mod login;
mod moves;
mod overview;
mod page;
mod queue;
mod queues;
mod theme;
mod verdict;
mod words;

pub(crate) use failure::not_found;

/// An address to which forms are sent has no page of its own.
async fn home() -> Redirect {
    Redirect::to("/")
}

/// As [`home`], of forms about queues and kinds.
async fn to_queues() -> Redirect {
    Redirect::to("/queues")
}

/// As [`home`], of forms about instances.
async fn to_instances() -> Redirect {
    Redirect::to("/instances")
}

/// The routes of all pages, with their security headers.
pub fn router() -> Router<App> {
    Router::new()
        .route("/", get(overview::show))
        .route("/jobs", get(jobs::show))
        .route("/jobs/{id}", get(job::show))
        .route("/queues", get(queues::show))
        .route("/queues/{name}", get(queue::show))
        .route("/queues/{name}/pause", post(queue::pause).get(to_queues))
        .route("/queues/{name}/resume", post(queue::resume).get(to_queues))
        .route("/queues/{name}/limits", post(queue::limit).get(to_queues))
        .route("/kinds/pause", post(queue::pause_kind).get(to_queues))
        .route("/kinds/resume", post(queue::resume_kind).get(to_queues))
        .route("/moves", get(moves::show))
        .route("/moves/{id}", get(instance::show_move))
        .route("/instances", get(instances::show))
        .route("/instances/{app}/{host}", get(instance::show))
        .route("/instances/{app}/{host}/move", post(instance::begin).get(to_instances))
        .route("/instances/{app}/{host}/rehearse", post(instance::rehearse).get(to_instances))
        .route("/instances/{app}/{host}/cut", post(instance::cut).get(to_instances))
        .route("/instances/{app}/{host}/abort", post(instance::abort).get(to_instances))
        .route("/instances/{app}/{host}/park", post(instance::park).get(to_instances))
        .route("/instances/{app}/{host}/restart", post(instance::restart).get(to_instances))
        .route("/instances/{app}/{host}/wake", post(instance::wake).get(to_instances))
        .route("/login", get(login::show).post(login::sign_in))
        .route("/logout", post(login::sign_out).get(home))
        .route("/theme", post(theme::choose).get(home))
        .layer(axum::middleware::from_fn(failure::dress))
        .route("/assets/{name}", get(assets::serve))
        .layer(axum::middleware::from_fn(headers::secure))
}

//! What Leasehold speaks: the HTTP API and the dashboard.
//!
//! Handlers translate: they read a request, call the domain on one connection or in one transaction, and answer. What
//! is decided and recorded stands in `domain`; what a message looks like stands in `wire`.

mod app;
mod convert;
pub mod dashboard;
pub mod door;
pub mod events;
mod hints;
mod metrics;
mod openapi;
mod operating;
mod routes;
mod serve;

pub use app::{App, Config};
pub use metrics::handle as metrics_handle;
pub use openapi::openapi;
pub use routes::router;
pub use serve::{LISTENS, ServeError, serve, serve_metrics};

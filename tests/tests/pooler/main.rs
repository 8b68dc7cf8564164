//! Everything through a transaction pooler: Debian's PgBouncer, whose clients share four sessions of the server.

mod processes;
mod role;
#[path = "../runner/support.rs"]
#[allow(dead_code, reason = "this area needs a part of it")]
mod support;
mod work;

//! What the tests share.

use std::time::Duration;

use reqwest::redirect::Policy;

/// How long anything may take that happens soon.
pub const SOON: Duration = Duration::from_secs(20);

/// A plain client.
pub fn client() -> reqwest::Client {
    // The typed client installs the process's TLS provider, without which no other HTTP client can be made.
    let _ = wire::Client::new("http://127.0.0.1:1", None).expect("a client");
    reqwest::Client::builder().no_proxy().redirect(Policy::none()).timeout(SOON).build().expect("a client")
}

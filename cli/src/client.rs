//! The API, as commands speak to it.

use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;

use crate::exit::{Ending, Exit};
use crate::failure;
use crate::settings::{Settings, table};

/// The largest key file that is read; a key has about a hundred bytes.
const MAX_KEY_BYTES: u64 = 4096;

/// How much longer the HTTP client waits than a call may take: the refusal that names the setting comes first.
const MARGIN: Duration = Duration::from_secs(5);

/// The API with the caller's key.
pub(crate) struct Api {
    client: wire::Client,
    url: String,
    /// Where the key came from, for a message about its refusal.
    origin: String,
    limit: Duration,
}

impl Api {
    /// Reads address and key. Nothing is asked yet.
    ///
    /// # Errors
    /// No key, or a key file that cannot be read.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        let url = settings.require(&table::URL)?.to_owned();
        let (key, origin) = key(settings)?;
        let limit = settings.seconds(&table::TIMEOUT_SECONDS);
        let client = wire::Client::with_timeout(&url, Some(key), limit + MARGIN)?;
        Ok(Self { client, url, origin, limit })
    }

    /// Makes one call, bounded in time.
    ///
    /// # Errors
    /// The API's, or that it did not answer in time.
    pub(crate) async fn call<'a, T, F>(&'a self, call: impl FnOnce(&'a wire::Client) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, wire::Error>>,
    {
        match tokio::time::timeout(self.limit, call(&self.client)).await {
            Ok(Err(error)) if error.problem().is_some_and(|problem| problem.is(wire::Code::Unauthenticated)) => {
                Err(anyhow::Error::from(error)
                    .context(format!("the key from {} was refused by {}", self.origin, self.url)))
            }
            Ok(answer) => Ok(answer?),
            Err(_elapsed) => {
                let message = format!("{} did not answer within {:?}; raise timeout_seconds", self.url, self.limit);
                Err(Ending { exit: Exit::Unavailable, message }.into())
            }
        }
    }

    /// As [`Api::call`], about a thing with a name: a refusal says that it was not found, and which.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub(crate) async fn call_about<'a, T, F>(
        &'a self,
        what: &str,
        call: impl FnOnce(&'a wire::Client) -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, wire::Error>>,
    {
        self.call(call).await.map_err(|error| failure::absent(error, what))
    }
}

fn key(settings: &Settings) -> anyhow::Result<(SecretString, String)> {
    if let Some(key) = settings.secret(&table::KEY) {
        let origin = settings.get(&table::KEY).map(|(_, source)| source.to_string());
        return Ok((key, origin.unwrap_or_default()));
    }
    if let Some(path) = settings.path(&table::KEY_FILE) {
        return Ok((read_key(&path)?, path.display().to_string()));
    }
    let message = "no API key: set LEASEHOLD_KEY_FILE to a file that holds one (`leasehold dev` keeps its key in \
                   .leasehold/dev-key; `leasehold key bootstrap` makes the first of an installation)";
    Err(Ending { exit: Exit::Denied, message: message.to_owned() }.into())
}

/// The key in a file: its only line.
///
/// # Errors
/// A file that cannot be read, or that holds something else. Its content is never quoted.
pub(crate) fn read_key(path: &Path) -> anyhow::Result<SecretString> {
    let unread = |error: std::io::Error| Ending {
        exit: Exit::Denied,
        message: format!("read the key file {}: {error}; LEASEHOLD_KEY_FILE names it", path.display()),
    };
    let about = std::fs::metadata(path).map_err(unread)?;
    let wrong = || Ending { exit: Exit::Denied, message: format!("{} does not hold an API key alone", path.display()) };
    if about.len() > MAX_KEY_BYTES {
        return Err(wrong().into());
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let key = text.trim();
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(wrong().into());
    }
    Ok(SecretString::from(key))
}

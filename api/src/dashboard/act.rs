//! What a form needs that changes something: the session's token in it, and the permission of whoever sends it.

use domain::authority::{Caller, Permission, Scopes};
use domain::{digest, instances, queue};
use wire::Code;

use super::failure::Failure;
use super::page::Ask;
use crate::App;
use crate::door::known::Shown;
use crate::door::session::caller_of;

/// Compares digests, so that the time it takes tells nothing of the token.
pub(super) fn same(one: &str, two: &str) -> bool {
    digest::sha256(one.as_bytes()) == digest::sha256(two.as_bytes())
}

/// Who sends a form. A cookie travels by itself: without the session's token in the form, another site could have made
/// the visitor send it.
pub(super) async fn sender(app: &App, ask: &Ask, csrf: &str, needed: Permission) -> Result<Caller, Failure> {
    let Some(token) = &ask.token else { return Err(Failure::SignIn) };
    if !same(&token.form_token(), csrf) {
        return Err(Failure::Forged);
    }
    let mut conn = domain::db::session(app.pool()).await?;
    let Some(caller) = caller_of(&mut conn, token).await? else { return Err(Failure::SignIn) };
    app.rates().accepted(&Shown::session_of(&token.reveal()));
    if !caller.may(needed) {
        return Err(Failure::Forbidden(needed));
    }
    if caller.scopes != Scopes::default() {
        return Err(Failure::Scoped);
    }
    app.rates().take(caller.key).map_err(|_| Failure::TooMany)?;
    Ok(caller)
}

/// Runs a form's whole transaction again while it loses races, as the API's doors do.
///
/// # Errors
/// The last try's.
pub(super) async fn again<T, F, Fut>(transaction: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let is_race = |failure: &Failure| matches!(failure, Failure::Store(error) if domain::db::lost_a_race(error));
    domain::db::retry_races(transaction, is_race).await
}

/// What a refusal means is the API's to say; here it gets words for a form, whose fields are named otherwise.
impl From<queue::Error> for Failure {
    fn from(error: queue::Error) -> Self {
        if let queue::Error::Store(source) = error {
            return source.into();
        }
        let refused = crate::door::failure::Failure::from(error);
        let problem = refused.problem();
        if refused.code() == Code::StaleRevision {
            return Self::Stale;
        }
        let field = problem.errors.first().and_then(|error| Some((error.pointer.as_deref()?, &error.detail)));
        Self::Invalid(match field {
            Some((pointer, rule)) => format!("{}: {rule}.", pointer.trim_start_matches('/').replace('_', " ")),
            None => problem.detail.clone(),
        })
    }
}

/// As above: of a refusal by the present state, the API's own code and sentence.
impl From<instances::Error> for Failure {
    fn from(error: instances::Error) -> Self {
        if let instances::Error::Store(source) = error {
            return source.into();
        }
        let refused = crate::door::failure::Failure::from(error);
        let code = refused.code();
        if code == Code::NotFound {
            return Self::NotFound("instance");
        }
        if code == Code::StaleRevision {
            return Self::Stale;
        }
        Self::Refused(code, refused.problem().detail.clone())
    }
}

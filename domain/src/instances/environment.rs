//! The environment of an instance's child, set by its tenant.

use std::collections::BTreeMap;

use sqlx::{Connection as _, PgConnection};

use super::new::check_environment;
use super::{Error, Refusal, jobs, sealed, store};
use crate::audit::{self, Actor};
use crate::ids::{AppName, Host, QueueName};
use crate::{db, nodes, queue};

/// Sets the environment of an instance in place of the one that it has. A child that runs keeps what it was started with; what
/// could not start, or land, for its environment is tried again at once.
///
/// One transaction: the record, its region's serial, the audit event with the names that changed and no value. An environment
/// that it has already changes nothing. Returns the queue of the landing that is to look again, for a hint.
///
/// # Errors
/// [`Error::Invalid`]; [`Refusal::NotFound`], [`Refusal::Stale`] where the record is not at `if_revision`,
/// [`Refusal::RegionHoldsNoKey`] for a newly sealed value where no live box of its region opens any; the database's.
pub async fn set_environment(
    conn: &mut PgConnection,
    (app, host): (&AppName, &Host),
    env: &BTreeMap<String, String>,
    if_revision: Option<i64>,
    actor: Actor,
) -> Result<Option<QueueName>, Error> {
    check_environment(env)?;
    let mut tx = conn.begin().await?;
    let done = async {
        let found = store::rescue::lock(&mut tx, app, host).await?.ok_or(Refusal::NotFound)?;
        if let Some(expected) = if_revision.filter(|expected| *expected != found.revision) {
            return Err(Refusal::Stale { expected, found: found.revision }.into());
        }
        let changed: Vec<&String> =
            env.iter().filter(|(name, value)| found.env.get(*name) != Some(value)).map(|it| it.0).collect();
        let removed: Vec<&String> = found.env.keys().filter(|name| !env.contains_key(*name)).collect();
        if changed.is_empty() && removed.is_empty() {
            return Ok(None);
        }
        // What stays sealed as it was is no reason to refuse the rest while its boxes are silent.
        if changed.iter().any(|name| sealed::is_sealed(&env[*name]))
            && nodes::region(&mut tx, &found.region).await?.is_none_or(|region| region.config_key.is_empty())
        {
            return Err(Refusal::RegionHoldsNoKey(found.region).into());
        }
        store::set_environment(&mut tx, found.id, env).await?;
        nodes::bump_serial(&mut tx, &found.region).await?;
        let queue = queue::nudge(&mut tx, jobs::LAND_KIND, &jobs::land_key(found.id, &found.region)).await?;
        let event = audit::Event {
            actor,
            action: "instance.env",
            subject_kind: "instance",
            subject: host.to_string(),
            reason: None,
            detail: serde_json::json!({"set": changed, "removed": removed}),
        };
        audit::record(&mut tx, &event).await?;
        Ok::<_, Error>(queue)
    }
    .await;
    db::finish(tx, done).await
}

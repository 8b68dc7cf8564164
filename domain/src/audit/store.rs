use sqlx::PgConnection;

use super::{Actor, Event, Filter, Recorded};
use crate::ids::{IdentityId, KeyId};

pub(super) async fn record(conn: &mut PgConnection, event: &Event<'_>) -> Result<(), sqlx::Error> {
    let (identity, key) = match event.actor {
        Actor::Key { identity, key } => (Some(identity.0), Some(key.0)),
        Actor::System => (None, None),
    };
    sqlx::query!(
        r#"
        insert into audit_events (at, identity_id, key_id, action, subject_kind, subject, reason, detail)
        values ((select lh_now()), $1, $2, $3, $4, $5, $6, $7)
        "#,
        identity,
        key,
        event.action,
        event.subject_kind,
        event.subject,
        event.reason,
        event.detail,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Acts with ids below `$1`, newest first, at most `$2`.
macro_rules! acts {
    ($narrowed:literal, $order:literal, $($parameter:expr),+) => {
        sqlx::query_as!(
            Recorded,
            r#"
            select e.id, e.at, e.identity_id as "identity: IdentityId", i.name as "identity_name?",
                   e.key_id as "key: KeyId", e.action, e.subject_kind, e.subject, e.reason, e.detail
              from audit_events e
              left join identities i on i.id = e.identity_id
             where e.id < $1 "# + $narrowed + r#"
             order by "# + $order + r#"
             limit $2
            "#,
            $($parameter),+
        )
    };
}

/// One statement for each index: a plan for all of them would follow none.
pub(super) async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Vec<Recorded>, sqlx::Error> {
    let (before, limit) = (filter.before.unwrap_or(i64::MAX), i64::from(limit));
    match (filter.subject_kind.as_deref(), filter.subject.as_deref()) {
        (None, None) => acts!("", "e.id desc", before, limit).fetch_all(conn).await,
        // Of one kind, said as a range: a plan made for any kind takes each for a common one, and would read all acts
        // in the order of their ids.
        (Some(kind), None) => {
            acts!(
                "and (e.subject_kind, e.id) < ($3, $1) and e.subject_kind >= $3",
                "e.subject_kind desc, e.id desc",
                before,
                limit,
                kind
            )
            .fetch_all(conn)
            .await
        }
        (None, Some(subject)) => {
            acts!(
                "and (e.subject, e.id) < ($3, $1) and e.subject >= $3",
                "e.subject desc, e.id desc",
                before,
                limit,
                subject
            )
            .fetch_all(conn)
            .await
        }
        (Some(kind), Some(subject)) => {
            acts!(
                "and (e.subject, e.id) < ($3, $1) and e.subject >= $3 and e.subject_kind = $4",
                "e.subject desc, e.id desc",
                before,
                limit,
                subject,
                kind
            )
            .fetch_all(conn)
            .await
        }
    }
}

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

pub(super) async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Vec<Recorded>, sqlx::Error> {
    sqlx::query_as!(
        Recorded,
        r#"
        select e.id, e.at, e.identity_id as "identity: IdentityId", i.name as "identity_name?",
               e.key_id as "key: KeyId", e.action, e.subject_kind, e.subject, e.reason, e.detail
          from audit_events e
          left join identities i on i.id = e.identity_id
         where ($1::text is null or e.subject_kind = $1)
           and ($2::text is null or e.subject = $2)
           and ($3::bigint is null or e.id < $3)
         order by e.id desc
         limit $4
        "#,
        filter.subject_kind,
        filter.subject,
        filter.before,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

use sqlx::PgConnection;
use sqlx::types::Json;

use super::{INSTANCE, Item, Kept, Mark, Report, Standing, View};
use crate::clock::Timestamp;
use crate::ids::NodeId;
use crate::nodes::proof::Session;

/// How the node of a session stands. The caller holds the node's row: what was done while it waited for it is seen here, since
/// a statement sees what was committed before it began.
pub(super) async fn standing(conn: &mut PgConnection, session: &Session) -> Result<Standing, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select n.incarnation,
               exists (
                   select
                     from node_sessions s
                     join node_credentials c on c.id = s.credential_id
                    where s.id = $2
                      and s.node_id = n.id
                      and s.incarnation = n.incarnation
                      and s.expires_at > (select lh_now())
                      and c.revoked_at is null
               ) as "live!",
               r.incarnation as "kept_incarnation?", r.seq as "kept_seq?"
          from nodes n
          left join node_reports r on r.node_id = n.id
         where n.id = $1
        "#,
        session.node.0,
        session.id.0,
    )
    .fetch_one(conn)
    .await?;
    let kept = row.kept_incarnation.zip(row.kept_seq).map(|(incarnation, seq)| Mark { incarnation, seq });
    Ok(Standing { incarnation: row.incarnation, live: row.live, kept })
}

/// Moves the moment at which the machine was last heard, and tells it.
pub(super) async fn hear(conn: &mut PgConnection, node: NodeId) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        r#"update nodes set heard_at = (select lh_now()) where id = $1 returning heard_at as "at!""#,
        node.0,
    )
    .fetch_one(conn)
    .await
}

/// Replaces the record whole. That the report is later than the record was asked while the node's row is held, which every
/// writer of records holds.
pub(super) async fn replace(
    conn: &mut PgConnection,
    node: NodeId,
    report: &Report,
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into node_reports (node_id, incarnation, seq, items, reported_at, received_at)
        values ($1, $2, $3, $4, $5, $6)
            on conflict (node_id)
            do update set incarnation = excluded.incarnation,
                          seq = excluded.seq,
                          items = excluded.items,
                          reported_at = excluded.reported_at,
                          received_at = excluded.received_at
        "#,
        node.0,
        report.mark.incarnation,
        report.mark.seq,
        Json(&report.items) as Json<&Vec<Item>>,
        report.reported_at,
        at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The record and the declaration, in one statement and so of one snapshot; ages by one reading of the clock.
pub(super) async fn view(conn: &mut PgConnection, node: NodeId) -> Result<Option<View>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select n.identity, n.incarnation,
               greatest(0, floor(extract(epoch from m.at - greatest(n.seen_at, n.heard_at)) * 1000))::bigint
                   as "last_seen_age_ms!",
               greatest(n.seen_at, n.heard_at) is not null as "seen!",
               greatest(0, floor(extract(epoch from m.at - n.heard_at) * 1000))::bigint as "last_sent_age_ms!",
               n.heard_at is not null as "sent!",
               r.incarnation as "kept_incarnation?", r.seq as "kept_seq?", r.items as "items?: Json<Vec<Item>>",
               r.reported_at as "reported_at?", r.received_at as "received_at?",
               greatest(0, floor(extract(epoch from m.at - r.received_at) * 1000))::bigint as "age_ms!",
               -- Whatever the route's state: also what is landing or being cut is wanted here, and what is parked.
               array(select t.host from routes t where t.node_id = n.id order by t.host) as "hosts!"
          from nodes n
         cross join (select (select lh_now()) as at) m
          left join node_reports r on r.node_id = n.id
         where n.id = $1
        "#,
        node.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let kept = match (row.kept_incarnation, row.kept_seq, row.items, row.reported_at, row.received_at) {
            (Some(incarnation), Some(seq), Some(Json(items)), Some(reported_at), Some(received_at)) => {
                Some(Kept { mark: Mark { incarnation, seq }, items, reported_at, received_at, age_ms: row.age_ms })
            }
            _ => None,
        };
        let declared = |id: String| Item { kind: INSTANCE.to_owned(), id };
        View {
            identity: row.identity,
            incarnation: row.incarnation,
            last_seen_age_ms: row.seen.then_some(row.last_seen_age_ms),
            last_sent_age_ms: row.sent.then_some(row.last_sent_age_ms),
            kept,
            declaration: row.hosts.into_iter().map(declared).collect(),
        }
    }))
}

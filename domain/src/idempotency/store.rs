use std::time::Duration;

use sqlx::PgConnection;

use super::{Answer, Begun, Call};

/// Tries to claim a key whose holder is swept away between the claim and the look.
const MAX_TRIES: usize = 3;

pub(super) async fn begin(conn: &mut PgConnection, call: &Call<'_>, kept: Duration) -> Result<Begun, sqlx::Error> {
    for _ in 0..MAX_TRIES {
        if let Some(begun) = try_begin(conn, call, kept).await? {
            return Ok(begun);
        }
    }
    Err(sqlx::Error::RowNotFound)
}

async fn try_begin(conn: &mut PgConnection, call: &Call<'_>, kept: Duration) -> Result<Option<Begun>, sqlx::Error> {
    // An answer past its time counts as swept. The status 0 is seen by no other transaction: it is replaced before the
    // commit, and rolled back otherwise.
    let first = sqlx::query!(
        r#"
        insert into idempotency_keys as k (identity_id, route, key, request_hash, status, body, created_at)
        values ($1, $2, $3, $4, 0, '', (select lh_now()))
            on conflict (identity_id, route, key) do update
               set request_hash = excluded.request_hash, status = 0, body = '', created_at = excluded.created_at
             where k.created_at < (select lh_now()) - $5 * interval '1 second'
        "#,
        call.identity.0,
        call.route,
        call.key,
        call.request_hash.as_slice(),
        kept.as_secs_f64(),
    )
    .execute(&mut *conn)
    .await?;
    if first.rows_affected() == 1 {
        return Ok(Some(Begun::First));
    }
    let row = sqlx::query!(
        "select request_hash, status, body from idempotency_keys where identity_id = $1 and route = $2 and key = $3",
        call.identity.0,
        call.route,
        call.key,
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    if row.request_hash != call.request_hash {
        return Ok(Some(Begun::OtherRequest));
    }
    Ok(Some(Begun::Answered(Answer { status: row.status.unsigned_abs(), body: row.body })))
}

pub(super) async fn finish(conn: &mut PgConnection, call: &Call<'_>, answer: &Answer) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update idempotency_keys set status = $4, body = $5 where identity_id = $1 and route = $2 and key = $3",
        call.identity.0,
        call.route,
        call.key,
        i16::try_from(answer.status).unwrap_or(i16::MAX),
        answer.body,
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub(super) async fn sweep(conn: &mut PgConnection, kept: Duration, limit: u16) -> Result<u64, sqlx::Error> {
    // A key past its time may be claimed again at this very moment: a row that is held is passed by, and one that was
    // claimed after it was picked is young again when it is deleted.
    let done = sqlx::query!(
        r#"
        with old as materialized (
            select identity_id, route, key
              from idempotency_keys
             where created_at < (select lh_now()) - $1 * interval '1 second'
             order by created_at
             limit $2
               for update skip locked
        )
        delete from idempotency_keys k
         using old o
         where k.identity_id = o.identity_id
           and k.route = o.route
           and k.key = o.key
           and k.created_at < (select lh_now()) - $1 * interval '1 second'
        "#,
        kept.as_secs_f64(),
        i64::from(limit),
    )
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

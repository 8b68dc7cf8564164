//! The journal of copies.

use sqlx::PgConnection;

use crate::ids::MoveId;
use crate::instances::Error;
use crate::instances::moves::CopiedKey;
use crate::lease::Lease;
use crate::queue;

/// At most `limit` rows of a pair whose keys come after `after`, by the bytes of the key.
///
/// # Errors
/// Only the database's.
pub async fn keys_page(
    conn: &mut PgConnection,
    id: MoveId,
    pair: i16,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<CopiedKey>, sqlx::Error> {
    sqlx::query_as!(
        CopiedKey,
        r#"
        select key, src_etag, size, copied_etag
          from move_keys
         where move_id = $1
           and pair = $2
           and key > coalesce($3, '')
         order by key
         limit $4
        "#,
        id.0,
        pair,
        after,
        limit,
    )
    .fetch_all(conn)
    .await
}

/// Remembers copies in one statement; a row of the same key is replaced. All or nothing.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn record_keys(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    pair: i16,
    copied: &[CopiedKey],
) -> Result<(), Error> {
    let keys: Vec<&str> = copied.iter().map(|c| c.key.as_str()).collect();
    let src_etags: Vec<&str> = copied.iter().map(|c| c.src_etag.as_str()).collect();
    let sizes: Vec<i64> = copied.iter().map(|c| c.size).collect();
    let copied_etags: Vec<&str> = copied.iter().map(|c| c.copied_etag.as_str()).collect();
    queue::fenced(conn, lease, async |tx| {
        sqlx::query!(
            r#"
        insert into move_keys (move_id, pair, key, src_etag, size, copied_etag)
        select $1, $2, a.key, a.src_etag, a.size, a.copied_etag
          from unnest($3::text[], $4::text[], $5::bigint[], $6::text[]) as a(key, src_etag, size, copied_etag)
            on conflict (move_id, pair, key)
            do update set src_etag = excluded.src_etag,
                          size = excluded.size,
                          copied_etag = excluded.copied_etag
        "#,
            id.0,
            pair,
            &keys as &[&str],
            &src_etags as &[&str],
            &sizes,
            &copied_etags as &[&str],
        )
        .execute(tx)
        .await?;
        Ok(())
    })
    .await
}

/// Forgets keys in one statement; unknown ones are no error. All or nothing.
///
/// # Errors
/// [`Error::LeaseLost`], or the database's.
pub async fn forget_keys(
    conn: &mut PgConnection,
    lease: Lease,
    id: MoveId,
    pair: i16,
    keys: &[String],
) -> Result<(), Error> {
    queue::fenced(conn, lease, async |tx| {
        sqlx::query!("delete from move_keys where move_id = $1 and pair = $2 and key = any($3)", id.0, pair, keys)
            .execute(tx)
            .await?;
        Ok(())
    })
    .await
}

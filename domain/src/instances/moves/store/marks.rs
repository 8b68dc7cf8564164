//! A cheap mark of what changed, for hints to live pages.

use sqlx::PgConnection;

/// A text that differs when a record, a region, a move or its rounds changed; it means nothing else.
///
/// # Errors
/// Only the database's.
pub async fn change_mark(conn: &mut PgConnection) -> Result<String, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select concat_ws('/',
                   -- Every change that boxes must notice raises a serial; rounds write the journal, and the status of
                   -- their move at their end.
                   (select sum(serial) from regions),
                   (select max(id) from move_steps),
                   (select sum(hashtext(m.status::text)::bigint) from (
                       select status from moves where finished_at is null order by id limit 500
                   ) m)) as "mark!"
        "#
    )
    .fetch_one(conn)
    .await
}

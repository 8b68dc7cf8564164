use std::time::Duration;

use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Transaction};

pub(super) async fn lift_timeouts(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("set statement_timeout = 0").execute(&mut *conn).await?;
    sqlx::query!("set lock_timeout = 0").execute(&mut *conn).await?;
    sqlx::query!("set idle_in_transaction_session_timeout = 0").execute(&mut *conn).await?;
    conn.ping().await
}

/// 0 where no migration was ever applied.
pub(super) async fn schema_version(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Checked at run time: the migrator's own table is made by the migrator, not by a migration.
    let exists: bool = sqlx::query_scalar!(r#"select to_regclass('_sqlx_migrations') is not null as "exists!""#)
        .fetch_one(&mut *conn)
        .await?;
    if !exists {
        return Ok(0);
    }
    sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations where success").fetch_one(conn).await
}

pub(super) async fn begin_read(pool: &PgPool, limit: Duration) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = pool.begin_with("begin isolation level repeatable read, read only").await?;
    // `set local` takes no parameters; set_config with `true` is the same for this transaction.
    sqlx::query_scalar!(
        r#"select set_config('statement_timeout', $1, true) as "set!""#,
        limit.as_millis().to_string(),
    )
    .fetch_one(&mut *transaction)
    .await?;
    Ok(transaction)
}

use sqlx::{Connection as _, PgConnection};

pub(super) async fn lift_statement_timeout(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("set statement_timeout = 0").execute(&mut *conn).await?;
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

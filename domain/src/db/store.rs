use std::time::Duration;

use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Transaction};

use super::session::{Manner, is_behind_pooler};

/// A transaction behind a pooler: first of all the session forgets what others prepared in it.
const LENT: &str = "begin; deallocate all; set local jit = off";
/// The same settings as [`super::hot`] has, for one transaction.
const LENT_HOT: &str = "begin; deallocate all; set local enable_seqscan = off; set local enable_bitmapscan = off; \
                        set local enable_hashjoin = off; set local enable_mergejoin = off; set local jit = off";
/// And those of [`super::impatient`].
const LENT_IMPATIENT: &str = "begin; deallocate all; set local enable_seqscan = off; set local enable_bitmapscan = off; \
                              set local enable_hashjoin = off; set local enable_mergejoin = off; set local jit = off; \
                              set local lock_timeout = 200";
const LENT_READ: &str = "begin isolation level repeatable read, read only; deallocate all";

pub(super) async fn begin_lent(pool: &PgPool, manner: Manner) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    // One message, and one answer: the settings cost no round trip.
    pool.begin_with(match manner {
        Manner::Plain => LENT,
        Manner::Hot => LENT_HOT,
        Manner::Impatient => LENT_IMPATIENT,
    })
    .await
}

/// A migration's transaction: it may take its time, and no other of them runs.
pub(super) async fn begin_migration(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        select set_config('statement_timeout', '0', true) as "statement!",
               set_config('lock_timeout', '0', true) as "lock!",
               set_config('idle_in_transaction_session_timeout', '0', true) as "idle!"
        "#
    )
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query!("select pg_advisory_xact_lock(hashtext('leasehold migrate'))").execute(conn).await?;
    Ok(())
}

/// The role's name, and what is set for it now, timeouts in milliseconds.
pub(super) async fn role_settings(conn: &mut PgConnection) -> Result<(String, Vec<(String, String)>), sqlx::Error> {
    let role = sqlx::query_scalar!(r#"select current_user::text as "role!""#).fetch_one(&mut *conn).await?;
    let rows = sqlx::query!(
        r#"
        select name as "name!", setting as "setting!"
          from pg_settings
         where name in ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'plan_cache_mode')
         order by name
         limit 4
        "#
    )
    .fetch_all(conn)
    .await?;
    Ok((role, rows.into_iter().map(|row| (row.name, row.setting)).collect()))
}

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
    let begin = if is_behind_pooler(&pool.connect_options()) {
        LENT_READ
    } else {
        "begin isolation level repeatable read, read only"
    };
    let mut transaction = pool.begin_with(begin).await?;
    // `set local` takes no parameters; set_config with `true` is the same for this transaction.
    sqlx::query_scalar!(
        r#"select set_config('statement_timeout', $1, true) as "set!""#,
        limit.as_millis().to_string(),
    )
    .fetch_one(&mut *transaction)
    .await?;
    Ok(transaction)
}

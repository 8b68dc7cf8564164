use std::time::Duration;

use sqlx::PgConnection;

use super::one_more;
use crate::doctor::server::{Durability, Migration, Prepared, Sequence, Session, Slot, Table};

/// None where no migration was ever applied.
pub(in crate::doctor) async fn migrations(conn: &mut PgConnection) -> Result<Vec<Migration>, sqlx::Error> {
    let exists = sqlx::query_scalar!(r#"select to_regclass('_sqlx_migrations') is not null as "exists!""#)
        .fetch_one(&mut *conn)
        .await?;
    if !exists {
        return Ok(Vec::new());
    }
    // Checked at run time: the migrator's own table is made by the migrator, not by a migration.
    let rows: Vec<(i64, bool, Vec<u8>)> =
        sqlx::query_as("select version, success, checksum from _sqlx_migrations order by version")
            .fetch_all(conn)
            .await?;
    let migration = |(version, succeeded, checksum)| Migration { version, succeeded, checksum };
    Ok(rows.into_iter().map(migration).collect())
}

pub(in crate::doctor) async fn durability(conn: &mut PgConnection) -> Result<Durability, sqlx::Error> {
    sqlx::query_as!(
        Durability,
        r#"
        select current_setting('fsync') as "fsync!",
               current_setting('full_page_writes') as "full_page_writes!",
               current_setting('synchronous_commit') as "synchronous_commit!"
        "#
    )
    .fetch_one(conn)
    .await
}

/// Sessions of this database whose transaction is older than `age`, oldest first, and whether this role may see them all.
///
/// What they run is not read: a statement may hold a payload.
pub(in crate::doctor) async fn old_transactions(
    conn: &mut PgConnection,
    age: Duration,
    named: usize,
) -> Result<(Vec<Session>, bool), sqlx::Error> {
    let sessions = sqlx::query_as!(
        Session,
        r#"
        select pid as "pid!", coalesce(usename, '') as "user!", coalesce(application_name, '') as "application!",
               coalesce(state, '') as "state!",
               extract(epoch from (select lh_now()) - xact_start)::float8 as "age_s!"
          from pg_stat_activity
         where datname = current_database()
           and pid <> pg_backend_pid()
           -- Vacuum's own transactions hold nothing back.
           and backend_type = 'client backend'
           and xact_start < (select lh_now()) - $1::float8 * interval '1 second'
         order by xact_start, pid
         limit $2
        "#,
        age.as_secs_f64(),
        one_more(named),
    )
    .fetch_all(&mut *conn)
    .await?;
    let sees_all =
        sqlx::query_scalar!(r#"select pg_has_role(current_user, 'pg_read_all_stats', 'usage') as "sees_all!""#)
            .fetch_one(conn)
            .await?;
    Ok((sessions, sees_all))
}

pub(in crate::doctor) async fn prepared(
    conn: &mut PgConnection,
    age: Duration,
    named: usize,
) -> Result<Vec<Prepared>, sqlx::Error> {
    sqlx::query_as!(
        Prepared,
        r#"
        select gid as "name!", owner::text as "owner!",
               extract(epoch from (select lh_now()) - prepared)::float8 as "age_s!"
          from pg_prepared_xacts
         where database = current_database()
           and prepared < (select lh_now()) - $1::float8 * interval '1 second'
         order by prepared, gid
         limit $2
        "#,
        age.as_secs_f64(),
        one_more(named),
    )
    .fetch_all(conn)
    .await
}

/// Slots that nobody reads and that hold something back; those of the whole server, since the log is one for all.
pub(in crate::doctor) async fn slots(conn: &mut PgConnection, named: usize) -> Result<Vec<Slot>, sqlx::Error> {
    sqlx::query_as!(
        Slot,
        r#"
        select slot_name::text as "name!",
               coalesce(pg_wal_lsn_diff(
                   case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                   restart_lsn), 0)::bigint as "kept_bytes!",
               (xmin is not null or catalog_xmin is not null) as "pins_horizon!"
          from pg_replication_slots
         where not active
           and (restart_lsn is not null or xmin is not null or catalog_xmin is not null)
         order by slot_name
         limit $1
        "#,
        one_more(named),
    )
    .fetch_all(conn)
    .await
}

/// Indexes of ours that are not valid and that nobody builds at this moment.
pub(in crate::doctor) async fn invalid_indexes(
    conn: &mut PgConnection,
    named: usize,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select c.relname::text as "name!"
          from pg_index i
          join pg_class c on c.oid = i.indexrelid
         where c.relnamespace = to_regnamespace(current_schema()::text)
           and not (i.indisvalid and i.indisready and i.indislive)
           and not exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)
         order by c.relname
         limit $1
        "#,
        one_more(named),
    )
    .fetch_all(conn)
    .await
}

/// Tables of ours with the most dead rows, as the statistics have them.
pub(in crate::doctor) async fn tables(conn: &mut PgConnection) -> Result<Vec<Table>, sqlx::Error> {
    sqlx::query_as!(
        Table,
        r#"
        select relname::text as "name!", n_live_tup as "live!", n_dead_tup as "dead!"
          from pg_stat_user_tables
         where schemaname = current_schema()
         order by n_dead_tup desc, relname
         limit 100
        "#
    )
    .fetch_all(conn)
    .await
}

pub(in crate::doctor) async fn sequences(conn: &mut PgConnection) -> Result<Vec<Sequence>, sqlx::Error> {
    sqlx::query_as!(
        Sequence,
        r#"
        select sequencename::text as "name!", coalesce(last_value, 0) as "given!", max_value as "last!"
          from pg_sequences
         where schemaname = current_schema()
         order by sequencename
         limit 100
        "#
    )
    .fetch_all(conn)
    .await
}

/// How many transactions ago the oldest one began that this database must still tell apart.
pub(in crate::doctor) async fn oldest_transaction_id(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select age(datfrozenxid)::bigint as "age!" from pg_database where datname = current_database()"#
    )
    .fetch_one(conn)
    .await
}

//! A stop inside a statement: between what it read and what it writes.

use std::time::Duration;

use sqlx::PgPool;

use crate::db::Database;

/// Only sessions that ask for it wait, in every statement that reads the time, while the gate is shut. The statement has
/// its snapshot by then, so it goes on with what it saw before.
const GATE: &str = r"
    create table lh_test_gate (shut boolean not null);
    insert into lh_test_gate values (false);
    create or replace function lh_now() returns timestamptz language plpgsql volatile as $$
    begin
        if current_setting('lh_test.gated', true) = 'on' then
            while (select shut from lh_test_gate) loop
                perform pg_sleep(0.002);
            end loop;
        end if;
        return clock_timestamp() + (select shift from lh_test_clock);
    end $$;
";

/// A gate in one test's database.
#[derive(Debug)]
pub struct Gate {
    pool: PgPool,
    url: String,
}

impl Gate {
    /// Builds an open gate.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn build(db: &Database) -> Self {
        let pool = db.pool_of(2).await;
        sqlx::raw_sql(GATE).execute(&pool).await.expect("the test's database answers");
        Self { pool, url: format!("{}?options[lh_test.gated]=on", db.url()) }
    }

    /// The database for those who wait at the gate.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Shuts it.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn shut(&self) {
        self.set(true).await;
    }

    /// Opens it.
    ///
    /// # Panics
    /// When the database does not answer.
    pub async fn open(&self) {
        self.set(false).await;
    }

    async fn set(&self, shut: bool) {
        sqlx::query("update lh_test_gate set shut = $1")
            .bind(shut)
            .execute(&self.pool)
            .await
            .expect("the test's database answers");
    }

    /// Waits until a statement stands at the gate.
    ///
    /// # Panics
    /// When none does within ten seconds.
    pub async fn until_reached(&self) {
        crate::wait::until("a statement stands at the gate", Duration::from_secs(10), || async {
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'",
            )
            .fetch_one(&self.pool)
            .await
            .expect("the test's database answers");
            (waiting > 0).then_some(())
        })
        .await;
    }
}

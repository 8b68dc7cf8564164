use sqlx::PgConnection;

use super::Timestamp;

pub(super) async fn now(conn: &mut PgConnection) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(r#"select lh_now() as "now!""#).fetch_one(conn).await
}

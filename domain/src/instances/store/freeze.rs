//! The cuts from which a freeze is predicted.

use std::time::Duration;

use sqlx::PgConnection;

use crate::clock::Timestamp;
use crate::ids::{MoveId, RegionCode};
use crate::instances::freeze::{Act, Prediction};

/// Cuts that a prediction is made of: the newest of the two regions.
const CUTS: i64 = 20;
/// Rows of a journal that a prediction is divided by.
const ACTS: i64 = 200;

/// The cut in the middle, by length, of the newest between two regions.
struct Middle {
    id: MoveId,
    cut_at: Timestamp,
    landed_at: Timestamp,
    cuts: i64,
}

/// From the verb `cut` to the first moment at which the target served, the median of the newest cuts between two regions;
/// `None` where there was none. That long nobody serves the instance, and so long its writes are to be frozen.
///
/// # Errors
/// Only the database's.
pub async fn freeze(
    conn: &mut PgConnection,
    from: &RegionCode,
    to: &RegionCode,
) -> Result<Option<Duration>, sqlx::Error> {
    let middle = middle(conn, from, to).await?;
    // A clock that was set back is no reason for a negative span.
    Ok(middle.map(|it| (it.landed_at - it.cut_at).to_std().unwrap_or_default()))
}

/// As [`freeze`], and what it is made of: the steps of the very cut that is the median.
///
/// # Errors
/// Only the database's.
pub async fn predict(
    conn: &mut PgConnection,
    from: &RegionCode,
    to: &RegionCode,
) -> Result<Option<Prediction>, sqlx::Error> {
    let Some(middle) = middle(conn, from, to).await? else { return Ok(None) };
    let acts = sqlx::query_as!(
        Act,
        r#"
        select step, started_at, ended_at as "ended_at!"
          from move_steps
         where move_id = $1
           and ended_at > $2
           and started_at < $3
         order by started_at, id
         limit $4
        "#,
        middle.id.0,
        middle.cut_at,
        middle.landed_at,
        ACTS,
    )
    .fetch_all(conn)
    .await?;
    let cuts = u32::try_from(middle.cuts).unwrap_or(u32::MAX);
    Ok(Some(Prediction::of((middle.id, cuts), (middle.cut_at, middle.landed_at), &acts)))
}

async fn middle(conn: &mut PgConnection, from: &RegionCode, to: &RegionCode) -> Result<Option<Middle>, sqlx::Error> {
    sqlx::query_as!(
        Middle,
        r#"
        with cuts as (
            select m.id, m.cut_at, m.landed_at
              from moves m
             where m.from_region = $1
               and m.to_region = $2
               and m.landed_at is not null
               and m.cut_at is not null
             order by m.id desc
             limit $3
        )
        select id as "id: MoveId", cut_at as "cut_at!", landed_at as "landed_at!",
               (select count(*) from cuts) as "cuts!"
          from cuts
         order by landed_at - cut_at, id
        -- Of two in the middle the longer: a budget is held against it.
        offset (select count(*) / 2 from cuts)
         limit 1
        "#,
        from.as_str(),
        to.as_str(),
        CUTS,
    )
    .fetch_optional(conn)
    .await
}

//! The list of moves: bounded whatever it is narrowed to.

use sqlx::PgConnection;
use uuid::Uuid;

use super::read::select;
use crate::ids::{MoveId, RegionCode};
use crate::instances::moves::{Filter, MoveState, Page};

/// Most moves that one look for a filter reads.
const LOOK: i64 = 2_000;
/// Most looks that one page takes.
const LOOKS: usize = 5;
/// Most instances whose moves are looked for instance by instance.
const FEW: i64 = 200;

/// Moves that match, newest first, 1 to 200 of them.
///
/// Bounded whatever the filter: a page reads at most some 10,000 moves with their instances, of those in flight alone
/// where the filter asks for them. It may hold fewer than `limit`, or none, and still say where the next one begins.
/// Applications with at most 200 instances are looked for instance by instance: among the moves of all, theirs may be
/// few.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: u16) -> Result<Page, sqlx::Error> {
    let limit = limit.clamp(1, 200);
    let before = filter.before.map_or(Uuid::max(), |id| id.0);
    let mut ids = Vec::new();
    let instances = match &filter.apps {
        Some(apps) if filter.open != Some(true) => few(conn, apps).await?,
        Some(_) | None => None,
    };
    let next = if let Some(instances) = instances {
        ids = of_few(conn, filter, &instances, i64::from(limit) + 1).await?;
        None
    } else {
        look_through(conn, filter, before, limit, &mut ids).await?
    };
    let more = ids.len() > usize::from(limit);
    ids.truncate(usize::from(limit));
    let next = if more { ids.last().copied() } else { next };
    Ok(Page { items: select(conn, &ids).await?, next: next.map(MoveId) })
}

/// Collects one id more than the page shows; returns the place behind the last look where moves may be left there.
async fn look_through(
    conn: &mut PgConnection,
    filter: &Filter,
    mut before: Uuid,
    limit: u16,
    ids: &mut Vec<Uuid>,
) -> Result<Option<Uuid>, sqlx::Error> {
    for _ in 0..LOOKS {
        // Every move behind this one is left to the next look, so one that ends in between is missed by none.
        let horizon = horizon(conn, filter, before).await?;
        let wanted = i64::from(limit) + 1 - i64::try_from(ids.len()).unwrap_or_default();
        ids.extend(look(conn, filter, before, horizon, wanted).await?);
        let Some(horizon) = horizon.filter(|_| ids.len() <= usize::from(limit)) else { return Ok(None) };
        before = horizon;
    }
    Ok(Some(before))
}

/// The id behind which one look at moves below `before` does not go; `None` where it needs no such bound: nothing is
/// left out, or all that there is lies before it.
async fn horizon(conn: &mut PgConnection, filter: &Filter, before: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    if filter.state.is_none() && filter.region.is_none() && filter.apps.is_none() && filter.open != Some(false) {
        return Ok(None);
    }
    if filter.open == Some(true) {
        return sqlx::query_scalar!(
            "select id from moves where finished_at is null and id < $1 order by id desc offset $2 limit 1",
            before,
            LOOK - 1,
        )
        .fetch_optional(conn)
        .await;
    }
    sqlx::query_scalar!("select id from moves where id < $1 order by id desc offset $2 limit 1", before, LOOK - 1)
        .fetch_optional(conn)
        .await
}

/// The moves that match between two ids, the newest `limit` of them. The application is asked of each move alone, as a
/// plan that joined the two tables would read all instances.
async fn look(
    conn: &mut PgConnection,
    filter: &Filter,
    before: Uuid,
    horizon: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let (state, region) = (filter.state.map(MoveState::as_str), filter.region.as_ref().map(RegionCode::as_str));
    let horizon = horizon.unwrap_or(Uuid::nil());
    if filter.open == Some(true) {
        // Named in the words of the index of those in flight: a plan that also serves those that are over would read
        // all of history.
        return sqlx::query_scalar!(
            r#"
            select id
              from moves m
             where finished_at is null
               and ($1::text is null or state = $1)
               and ($2::text is null or from_region = $2 or to_region = $2)
               and ($3::text[] is null or (select app from instances where id = m.instance_id) = any ($3))
               and id < $4
               and id >= $5
             order by id desc
             limit $6
            "#,
            state,
            region,
            filter.apps.as_deref() as Option<&[String]>,
            before,
            horizon,
            limit,
        )
        .fetch_all(conn)
        .await;
    }
    sqlx::query_scalar!(
        r#"
        select id
          from moves m
         where ($1::bool is null or (finished_at is null) = $1)
           and ($2::text is null or state = $2)
           and ($3::text is null or from_region = $3 or to_region = $3)
           and ($4::text[] is null or (select app from instances where id = m.instance_id) = any ($4))
           and id < $5
           and id >= $6
         order by id desc
         limit $7
        "#,
        filter.open,
        state,
        region,
        filter.apps.as_deref() as Option<&[String]>,
        before,
        horizon,
        limit,
    )
    .fetch_all(conn)
    .await
}

/// The instances of these applications; `None` where they are more than [`FEW`].
async fn few(conn: &mut PgConnection, apps: &[String]) -> Result<Option<Vec<Uuid>>, sqlx::Error> {
    let found = sqlx::query_scalar!(
        r#"
        select i.id
          from unnest($1::text[]) as wanted (app)
         cross join lateral (
               select id
                 from instances
                where app = wanted.app
                order by host
                limit $2::bigint + 1) i
         limit $2::bigint + 1
        "#,
        apps,
        FEW,
    )
    .fetch_all(conn)
    .await?;
    Ok((found.len() <= usize::try_from(FEW).unwrap_or_default()).then_some(found))
}

/// Follows the index of each of these instances.
async fn of_few(
    conn: &mut PgConnection,
    filter: &Filter,
    instances: &[Uuid],
    limit: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select m.id
          from unnest($6::uuid[]) as i (id)
         cross join lateral (
               select id
                 from moves
                where instance_id = i.id
                  and ($1::bool is null or (finished_at is null) = $1)
                  and ($2::text is null or state = $2)
                  and ($3::text is null or from_region = $3 or to_region = $3)
                  and id < $4
                order by id desc
                limit $5) m
         order by m.id desc
         limit $5
        "#,
        filter.open,
        filter.state.map(MoveState::as_str),
        filter.region.as_ref().map(RegionCode::as_str),
        filter.before.map_or(Uuid::max(), |id| id.0),
        limit,
        instances,
    )
    .fetch_all(conn)
    .await
}

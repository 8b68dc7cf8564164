use sqlx::{Connection as _, PgConnection};

use super::{Bucket, Capabilities, Error, InUse, Node, NodeSpec, Region, RegionSpec, SILENT_AFTER, Users};
use crate::db;
use crate::ids::{NodeId, RegionCode};

/// Most boxes that a list shows, and most of each that are counted as users of a region.
const MAX_NODES: i64 = 1000;

/// Declares a region, or changes what is declared of it; raises its serial.
///
/// # Errors
/// [`Error::InUse`] when the region has another bucket already and something uses it: replicas would be split;
/// [`Error::DefaultTaken`], [`Error::Invalid`]; or the database's.
pub async fn put_region(conn: &mut PgConnection, spec: &RegionSpec) -> Result<Region, Error> {
    put_region_if(conn, spec, None).await
}

/// As [`put_region`], only where the region is at this serial.
///
/// # Errors
/// As [`put_region`], and [`Error::Stale`].
pub async fn put_region_if(
    conn: &mut PgConnection,
    spec: &RegionSpec,
    if_serial: Option<i64>,
) -> Result<Region, Error> {
    spec.check()?;
    let mut tx = conn.begin().await?;
    let done = async {
        if insert_region(&mut tx, spec).await? {
            if let Some(expected) = if_serial {
                return Err(Error::Stale { code: spec.code.clone(), expected });
            }
        } else {
            change_region(&mut tx, spec, if_serial).await?;
        }
        region(&mut tx, &spec.code).await?.ok_or_else(|| Error::RegionUnknown(spec.code.clone()))
    }
    .await;
    db::finish(tx, done).await
}

/// Declares a region; `false` where it was declared before.
async fn insert_region(conn: &mut PgConnection, spec: &RegionSpec) -> Result<bool, Error> {
    let (bucket, bucket_region) = split(spec.data.as_ref());
    let done = sqlx::query!(
        r#"
        insert into regions (code, name, armed, dormant, home, is_default, data_bucket, data_bucket_region, created_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, (select lh_now()))
            on conflict (code) do nothing
        "#,
        spec.code.as_str(),
        spec.name,
        spec.armed,
        spec.dormant,
        spec.home,
        spec.is_default,
        bucket,
        bucket_region,
    )
    .execute(conn)
    .await
    .map_err(default_taken)?;
    Ok(done.rows_affected() == 1)
}

async fn change_region(conn: &mut PgConnection, spec: &RegionSpec, if_serial: Option<i64>) -> Result<(), Error> {
    // Locked before anybody asks who uses it: whoever begins to raises its serial, and so waits here.
    let found = sqlx::query!(
        "select serial, data_bucket, data_bucket_region from regions where code = $1 for no key update",
        spec.code.as_str(),
    )
    .fetch_one(&mut *conn)
    .await?;
    if let Some(expected) = if_serial.filter(|expected| found.serial != *expected) {
        return Err(Error::Stale { code: spec.code.clone(), expected });
    }
    if let (Some(expected), Some(asked)) = (join(found.data_bucket, found.data_bucket_region), spec.data.clone())
        && expected != asked
    {
        let users = users(conn, &spec.code).await?;
        if !users.is_empty() {
            return Err(Error::InUse(Box::new(InUse { region: spec.code.clone(), expected, asked, users })));
        }
    }
    let (bucket, bucket_region) = split(spec.data.as_ref());
    sqlx::query!(
        r#"
        update regions
           set name = $2, armed = $3, dormant = $4, home = $5, is_default = $6,
               data_bucket = coalesce($7, data_bucket),
               data_bucket_region = coalesce($8, data_bucket_region),
               serial = serial + 1
         where code = $1
        "#,
        spec.code.as_str(),
        spec.name,
        spec.armed,
        spec.dormant,
        spec.home,
        spec.is_default,
        bucket,
        bucket_region,
    )
    .execute(conn)
    .await
    .map_err(default_taken)?;
    Ok(())
}

/// What uses a region. Moves that are over use nothing; instances are looked through whole, which only the rare change
/// of a bucket asks for.
async fn users(conn: &mut PgConnection, code: &RegionCode) -> Result<Users, sqlx::Error> {
    sqlx::query_as!(
        Users,
        r#"
        with at_nodes as materialized (
            select identity from nodes where region = $1 order by identity limit $2
        ), at_instances as materialized (
            select host
              from instances
             where region = $1
                or pending_landing_to = $1
                or $1 = any (replica_regions)
             limit $2
        ), at_moves as materialized (
            select from moves where finished_at is null and (from_region = $1 or to_region = $1) limit $2
        )
        select (select count(*) from at_nodes) as "nodes!",
               (select min(identity) from at_nodes) as node,
               (select count(*) from at_instances) as "instances!",
               (select min(host) from at_instances) as instance,
               (select count(*) from at_moves) as "moves!"
        "#,
        code.as_str(),
        MAX_NODES,
    )
    .fetch_one(conn)
    .await
}

fn default_taken(error: sqlx::Error) -> Error {
    let constraint = error.as_database_error().and_then(|error| error.constraint());
    if constraint == Some("regions_one_default") { Error::DefaultTaken } else { error.into() }
}

/// Regions by code: those behind `after`, with the dormant ones or without, at most `limit`.
///
/// # Errors
/// Only the database's.
pub async fn regions(
    conn: &mut PgConnection,
    dormant: bool,
    after: Option<&RegionCode>,
    limit: u16,
) -> Result<Vec<Region>, sqlx::Error> {
    select_regions(conn, None, dormant, after, limit).await
}

/// One region; `None` where it was never declared.
///
/// # Errors
/// Only the database's.
pub async fn region(conn: &mut PgConnection, code: &RegionCode) -> Result<Option<Region>, sqlx::Error> {
    Ok(select_regions(conn, Some(code), true, None, 1).await?.pop())
}

async fn select_regions(
    conn: &mut PgConnection,
    code: Option<&RegionCode>,
    dormant: bool,
    after: Option<&RegionCode>,
    limit: u16,
) -> Result<Vec<Region>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select r.code as "code: RegionCode", r.name, r.armed, r.dormant, r.home, r.is_default, r.data_bucket,
               r.data_bucket_region, r.serial,
               exists (
                   select
                     from nodes n
                    where n.region = r.code
                      and n.capabilities -> 'exec' = 'true'::jsonb
                      and n.seen_at > (select lh_now()) - $2::float8 * interval '1 second'
               ) as "can_host!",
               array(
                   select distinct k.recipient
                     from nodes n
                    cross join jsonb_array_elements_text(n.capabilities -> 'config_key') k (recipient)
                    where n.region = r.code
                      and n.capabilities -> 'exec' = 'true'::jsonb
                      and n.seen_at > (select lh_now()) - $2::float8 * interval '1 second'
                    order by k.recipient
               ) as "config_key!"
          from regions r
         where ($1::text is null or r.code = $1)
           and ($3::bool or not r.dormant)
           and ($4::text is null or r.code > $4)
         order by r.code
         limit $5
        "#,
        code.map(RegionCode::as_str),
        SILENT_AFTER.as_secs_f64(),
        dormant,
        after.map(RegionCode::as_str),
        i64::from(limit),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| Region {
            code: r.code,
            name: r.name,
            armed: r.armed,
            dormant: r.dormant,
            home: r.home,
            is_default: r.is_default,
            data: join(r.data_bucket, r.data_bucket_region),
            serial: r.serial,
            can_host: r.can_host,
            config_key: r.config_key,
        })
        .collect())
}

/// Raises a region's serial: its boxes and edges look again. Returns the new one; `None` for an unknown region.
///
/// Call it after the rows of instances and moves, so that all writers take their locks in one order.
///
/// # Errors
/// Only the database's.
pub async fn bump_serial(conn: &mut PgConnection, code: &RegionCode) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!("update regions set serial = serial + 1 where code = $1 returning serial", code.as_str())
        .fetch_optional(conn)
        .await
}

/// Records a box at the start of its worker; the same identity is the same box after every restart.
///
/// The first box to publish a bucket names its region's, where nobody declared one.
///
/// # Errors
/// [`Error::RegionUnknown`], [`Error::RegionDiffers`], [`Error::BucketDiffers`], [`Error::Invalid`], or the database's.
pub async fn register(conn: &mut PgConnection, spec: &NodeSpec) -> Result<Node, Error> {
    if spec.identity.is_empty() || spec.identity.chars().count() > 200 || spec.identity.chars().any(char::is_control) {
        return Err(Error::Invalid {
            field: "node",
            rule: "an identity has 1 to 200 characters and no control characters",
        });
    }
    let mut tx = conn.begin().await?;
    let done = async {
        let known = region(&mut tx, &spec.region).await?;
        if known.is_none() {
            return Err(Error::RegionUnknown(spec.region.clone()));
        }
        let (bucket, bucket_region) = split(spec.data.as_ref());
        let row = sqlx::query!(
            r#"
            insert into nodes (id, identity, region, capabilities, data_bucket, data_bucket_region, created_at, seen_at)
            values ($1, $2, $3, $4, $5, $6, (select lh_now()), (select lh_now()))
                on conflict (identity)
                do update set capabilities = excluded.capabilities,
                              data_bucket = excluded.data_bucket,
                              data_bucket_region = excluded.data_bucket_region,
                              seen_at = excluded.seen_at
            returning id as "id: NodeId", region as "region: RegionCode"
            "#,
            NodeId::generate().0,
            spec.identity,
            spec.region.as_str(),
            serde_json::json!(spec.capabilities),
            bucket,
            bucket_region,
        )
        .fetch_one(&mut *tx)
        .await?;
        if row.region != spec.region {
            return Err(Error::RegionDiffers {
                identity: spec.identity.clone(),
                registered: row.region,
                asked: spec.region.clone(),
            });
        }
        // One statement decides whose bucket is the region's, also for two boxes that register at once.
        let region = sqlx::query!(
            r#"
            update regions
               set data_bucket = coalesce(data_bucket, $2),
                   data_bucket_region = coalesce(data_bucket_region, $3),
                   serial = serial + 1
             where code = $1
            returning data_bucket, data_bucket_region
            "#,
            spec.region.as_str(),
            bucket,
            bucket_region,
        )
        .fetch_one(&mut *tx)
        .await?;
        refuse_other_bucket(
            &spec.region,
            join(region.data_bucket, region.data_bucket_region).as_ref(),
            spec.data.as_ref(),
        )?;
        let node = get(&mut tx, row.id).await?.ok_or(sqlx::Error::RowNotFound)?;
        Ok::<_, Error>(node)
    }
    .await;
    db::finish(tx, done).await
}

/// Notes that a box lives; `false` where it was never registered.
///
/// # Errors
/// Only the database's.
pub async fn seen(conn: &mut PgConnection, id: NodeId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!("update nodes set seen_at = (select lh_now()) where id = $1", id.0).execute(conn).await?;
    Ok(done.rows_affected() == 1)
}

/// One box; `None` where it was never heard.
///
/// # Errors
/// Only the database's.
pub async fn get(conn: &mut PgConnection, id: NodeId) -> Result<Option<Node>, sqlx::Error> {
    Ok(select_nodes(conn, Some(id), None).await?.pop())
}

/// The boxes of one region, or of all, by identity.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, region: Option<&RegionCode>) -> Result<Vec<Node>, sqlx::Error> {
    select_nodes(conn, None, region).await
}

async fn select_nodes(
    conn: &mut PgConnection,
    id: Option<NodeId>,
    region: Option<&RegionCode>,
) -> Result<Vec<Node>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select n.id as "id: NodeId", n.identity, n.region as "region: RegionCode", n.capabilities, n.data_bucket,
               n.data_bucket_region, n.seen_at as "seen_at!",
               n.seen_at > (select lh_now()) - $3::float8 * interval '1 second' as "live!",
               (select count(*) from routes r where r.node_id = n.id) as "routes!"
          from nodes n
         where ($1::uuid is null or n.id = $1)
           and ($2::text is null or n.region = $2)
           and n.seen_at is not null   -- a record whose machine was never heard is no box yet
         order by n.identity
         limit $4
        "#,
        id.map(|id| id.0),
        region.map(RegionCode::as_str),
        SILENT_AFTER.as_secs_f64(),
        MAX_NODES,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|n| {
            let capabilities: Capabilities =
                serde_json::from_value(n.capabilities).map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
            Ok(Node {
                id: n.id,
                identity: n.identity,
                region: n.region,
                capabilities,
                data: join(n.data_bucket, n.data_bucket_region),
                seen_at: n.seen_at,
                live: n.live,
                routes: n.routes,
            })
        })
        .collect()
}

fn split(bucket: Option<&Bucket>) -> (Option<&str>, Option<&str>) {
    (bucket.map(|b| b.name.as_str()), bucket.map(|b| b.region.as_str()))
}

fn join(name: Option<String>, region: Option<String>) -> Option<Bucket> {
    Some(Bucket { name: name?, region: region? })
}

fn refuse_other_bucket(code: &RegionCode, is: Option<&Bucket>, published: Option<&Bucket>) -> Result<(), Error> {
    match (is, published) {
        (Some(expected), Some(published)) if expected != published => {
            Err(Error::BucketDiffers { region: code.clone(), expected: expected.clone(), published: published.clone() })
        }
        _ => Ok(()),
    }
}

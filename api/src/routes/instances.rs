//! Instances of an application.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use domain::authority::Permission;
use domain::ids::{AppName, Host, QueueName, RegionCode};
use domain::instances::{self, InstanceKind, NewInstance, Record, Refusal, Role};
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use wire::{Code, Environment, Instance, Page, Problem};

use crate::App;
use crate::door::auth::Caller;
use crate::door::body::Body;
use crate::door::failure::Failure;
use crate::door::repeat::Repeatable;
use crate::door::{page, precondition, query};

/// Stands for a value that the caller may not see.
const REDACTED: &str = "redacted";

/// Creates an instance. A capable box of its region takes it soon after.
#[utoipa::path(post, path = "/v1/apps/{app}/instances", tag = "instances", operation_id = "create_instance",
    request_body = wire::NewInstance,
    params(
        ("app" = String, Path, description = "The application"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated call acts once, for 7 days")),
    responses(
        (status = 201, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let owner = visible_app(&caller, &name)?;
    let (plain, asked) = body.parse::<wire::NewInstance>()?;
    let call = Repeatable::new(&headers, &caller, format!("POST /v1/apps/{owner}/instances"), &plain)?;
    let new = read_new(owner, asked)?;
    domain::db::retry_races(|| create_once(&app, &caller, &call, &new), Failure::is_race).await
}

async fn create_once(app: &App, caller: &Caller, call: &Repeatable, new: &NewInstance) -> Result<Response, Failure> {
    let mut tx = domain::db::begin(app.pool()).await?;
    if let Some(answer) = call.begin(&mut tx).await? {
        return precondition::mark_again(answer, |_| None).await;
    }
    let record = instances::create(&mut tx, new, caller.actor()).await?;
    let mut response = call.finish(&mut tx, StatusCode::CREATED, &record, &record).await?;
    tx.commit().await?;
    app.hints().add(&QueueName::of_region(&new.region), 1);
    precondition::mark(response.headers_mut(), record.revision.unwrap_or_default());
    Ok(response)
}

fn read_new(app: AppName, asked: wire::NewInstance) -> Result<NewInstance, Failure> {
    let host = Host::new(asked.host).map_err(|error| Failure::field("/host", error.rule))?;
    // A code that no region can have names no region: the same answer as for any other unknown one (M-016).
    let region = RegionCode::new(asked.region.as_str()).map_err(|_| Refusal::RegionUnknown(asked.region))?;
    let mut new = NewInstance::new(app, host, region);
    if let Some(kind) = asked.kind {
        let all = InstanceKind::ALL.map(InstanceKind::as_str).join(", ");
        let known = InstanceKind::ALL.into_iter().find(|known| known.as_str() == kind);
        new.kind = known.ok_or_else(|| Failure::field("/kind", format!("must be one of {all}")))?;
    }
    if let Some(role) = asked.role {
        new.role = match role.as_str() {
            "original" => Role::Original,
            "replica" => Role::Replica,
            _ => return Err(Failure::field("/role", "must be original or replica")),
        };
    }
    if let Some(backing) = asked.backing {
        new.backing = backing;
    }
    new.placement = asked.placement;
    new.pool = asked.pool.unwrap_or_default();
    new.hibernate = asked.hibernate.unwrap_or(true);
    new.replica_regions = asked
        .replica_regions
        .into_iter()
        .map(|code| RegionCode::new(code.as_str()).map_err(|_| Refusal::RegionUnknown(code)))
        .collect::<Result<_, _>>()?;
    new.env = asked.env;
    Ok(new)
}

#[derive(Debug, Deserialize)]
struct Asked {
    limit: Option<i64>,
    cursor: Option<String>,
}

/// An application's instances, by host.
#[utoipa::path(get, path = "/v1/apps/{app}/instances", tag = "instances", operation_id = "list_instances",
    params(
        ("app" = String, Path, description = "The application"),
        ("limit" = Option<u16>, Query, description = "1…200 items, 50 where not named"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")),
    responses(
        (status = 200, description = "A page", body = Page<Instance>),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<Json<Page<Record>>, Failure> {
    let owner = visible_app(&caller, &name)?;
    let asked: Asked = query::read(&uri)?;
    let limit = page::limit(asked.limit)?;
    let after = page::cursor::<Host>(asked.cursor.as_deref())?;
    let mut conn = domain::db::session(app.pool()).await?;
    let found = instances::list(&mut conn, &owner, after.as_ref(), limit + 1).await?;
    Ok(Json(page::of(found, limit, |record| record.host.to_string(), |record| shown(&caller, record))))
}

/// One instance's record, with its move while one is in flight.
#[utoipa::path(get, path = "/v1/apps/{app}/instances/{host}", tag = "instances", operation_id = "get_instance",
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host")),
    responses(
        (status = 200, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let mut conn = domain::db::session(app.pool()).await?;
    // The record's own form is the wire's: its fields stand in one order, whoever writes it (M-002).
    let record = instances::get(&mut conn, &owner, &host).await?.ok_or_else(Failure::not_found)?;
    Ok(answer(&caller, record))
}

/// Sets an instance's environment in place of the one that it has.
///
/// A process that runs keeps the environment that it was started with until its next start: `POST …/restart`. What could not
/// start or land for its environment is tried again at once. The environment that it has already changes nothing.
#[utoipa::path(put, path = "/v1/apps/{app}/instances/{host}/env", tag = "instances", operation_id = "set_environment",
    request_body = Environment,
    params(
        ("app" = String, Path, description = "The application"),
        ("host" = String, Path, description = "The instance's host"),
        ("If-Match" = Option<String>, Header, description = "The record's revision that was seen, in quotation marks")),
    responses(
        (status = 200, description = "The record", body = Instance),
        (status = "default", description = "Why not", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn set_environment(
    State(app): State<App>,
    caller: Caller,
    Path((name, host)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let (owner, host) = visible(&caller, &name, &host)?;
    let if_revision = precondition::expected(&headers)?;
    known(&app, &owner, &host).await?;
    let (_, Environment { env }) = body.parse()?;
    let act = async || {
        let mut conn = domain::db::session(app.pool()).await?;
        let queue = instances::set_environment(&mut conn, (&owner, &host), &env, if_revision, caller.actor()).await?;
        let record = instances::get(&mut conn, &owner, &host).await?.ok_or_else(Failure::not_found)?;
        Ok(conn.done((queue, record)).await?)
    };
    let told = async {
        let (queue, record) = domain::db::retry_races(act, Failure::is_race).await?;
        if let Some(queue) = &queue {
            app.hints().add(queue, 1);
        }
        Ok(answer(&caller, record))
    };
    with_record(&app, &caller, (&owner, &host), told.await).await
}

/// A record as an answer, marked with its revision.
pub(super) fn answer(caller: &Caller, record: Record) -> Response {
    let record = shown(caller, record);
    let mut response = Json(&record).into_response();
    precondition::mark(response.headers_mut(), record.revision.unwrap_or_default());
    response
}

/// The record as this caller may see it. An environment holds its tenant's secrets: who may not write it sees the names
/// alone.
pub(super) fn shown(caller: &Caller, mut record: Record) -> Record {
    if !caller.may(Permission::InstancesWrite) {
        record.env.iter_mut().flatten().for_each(|(_, value)| *value = REDACTED.to_owned());
    }
    record
}

/// A refusal by the move's state shows the record as it is, as its caller may see it.
pub(super) async fn with_record(
    app: &App,
    caller: &Caller,
    (owner, host): (&AppName, &Host),
    told: Result<Response, Failure>,
) -> Result<Response, Failure> {
    let by_state = |code| {
        matches!(
            code,
            Code::MoveInFlight
                | Code::NoMove
                | Code::MoveNotReady
                | Code::FreezeOverBudget
                | Code::MoveNotCutting
                | Code::MovePastRecall
                | Code::InstanceServed
                | Code::StaleRevision
        )
    };
    match told {
        Err(failure) if by_state(failure.code()) => {
            let mut conn = domain::db::session(app.pool()).await?;
            let record = instances::get(&mut conn, owner, host).await?;
            Err(failure.with_current(record.map(|record| serde_json::json!(shown(caller, record)))))
        }
        told => told,
    }
}

/// Whether the instance exists, before its caller's body is looked at: of several faults the first is told.
pub(super) async fn known(app: &App, owner: &AppName, host: &Host) -> Result<(), Failure> {
    let mut conn = domain::db::session(app.pool()).await?;
    instances::get(&mut conn, owner, host).await?.map(drop).ok_or_else(Failure::not_found)
}

/// The application that a path names, if this caller may see it; what is no name names nothing.
pub(super) fn visible_app(caller: &Caller, name: &str) -> Result<AppName, Failure> {
    if !caller.sees_app(name) {
        return Err(Failure::not_found());
    }
    AppName::new(name).map_err(|_| Failure::not_found())
}

/// The application and the host that a path names.
pub(super) fn visible(caller: &Caller, name: &str, host: &str) -> Result<(AppName, Host), Failure> {
    let owner = visible_app(caller, name)?;
    Ok((owner, Host::new(host).map_err(|_| Failure::not_found())?))
}

//! The one place that says what each route needs.

use domain::authority::Permission;

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// A key with this permission.
    Needs(Permission),
    /// A key with this permission, unless the configuration opens the metrics.
    NeedsUnlessPublic(Permission),
}

/// Every route of the API: method, path, what it needs. A route that is missing here is refused to everybody, and the
/// router's construction fails on it.
pub const TABLE: &[(&str, &str, Access)] = &[
    ("GET", "/healthz", Access::Open),
    ("GET", "/readyz", Access::Open),
    ("GET", "/openapi.json", Access::Open),
    ("GET", "/docs", Access::Open),
    ("GET", "/docs/errors/{code}", Access::Open),
    ("GET", "/metrics", Access::NeedsUnlessPublic(Permission::MetricsRead)),
    ("POST", "/v1/jobs", Access::Needs(Permission::JobsWrite)),
    ("GET", "/v1/jobs", Access::Needs(Permission::JobsRead)),
    ("POST", "/v1/jobs/batch", Access::Needs(Permission::JobsWrite)),
    ("GET", "/v1/jobs/{id}", Access::Needs(Permission::JobsRead)),
    ("GET", "/v1/jobs/{id}/attempts", Access::Needs(Permission::JobsRead)),
    ("GET", "/v1/jobs/{id}/steps", Access::Needs(Permission::JobsRead)),
    ("GET", "/v1/jobs/{id}/log", Access::Needs(Permission::JobsRead)),
    ("POST", "/v1/jobs/{id}/cancel", Access::Needs(Permission::JobsOperate)),
    ("POST", "/v1/jobs/{id}/retry", Access::Needs(Permission::JobsOperate)),
    ("GET", "/v1/kinds", Access::Needs(Permission::QueuesRead)),
    ("GET", "/v1/queues", Access::Needs(Permission::QueuesRead)),
    ("GET", "/v1/queues/{name}", Access::Needs(Permission::QueuesRead)),
    ("GET", "/v1/throughput", Access::Needs(Permission::QueuesRead)),
    ("GET", "/v1/workers", Access::Needs(Permission::WorkersRead)),
    ("GET", "/v1/workers/{id}", Access::Needs(Permission::WorkersRead)),
    ("GET", "/v1/fenced-writes", Access::Needs(Permission::JobsRead)),
    ("GET", "/v1/events", Access::Needs(Permission::JobsRead)),
    ("POST", "/v1/apps/{app}/instances", Access::Needs(Permission::InstancesWrite)),
    ("GET", "/v1/apps/{app}/instances", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/apps/{app}/instances/{host}", Access::Needs(Permission::InstancesRead)),
    ("POST", "/v1/apps/{app}/instances/{host}/move", Access::Needs(Permission::MovesWrite)),
    ("GET", "/v1/apps/{app}/instances/{host}/moves", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/apps/{app}/regions", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/moves", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/moves/{id}", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/moves/{id}/steps", Access::Needs(Permission::InstancesRead)),
    ("GET", "/v1/edges/{region}", Access::Needs(Permission::EdgesRead)),
    ("GET", "/v1/regions", Access::Needs(Permission::NodesRead)),
    ("PUT", "/v1/regions/{code}", Access::Needs(Permission::RegionsWrite)),
    ("GET", "/v1/audit", Access::Needs(Permission::AuditRead)),
    ("GET", "/v1/keys", Access::Needs(Permission::KeysManage)),
    ("POST", "/v1/keys", Access::Needs(Permission::KeysManage)),
    ("POST", "/v1/keys/{id}/revoke", Access::Needs(Permission::KeysManage)),
];

/// Routes that a browser's session opens too. Only reads may stand here: a cookie travels by itself, a key does not.
pub const BY_SESSION: &[&str] = &["/v1/events"];

/// What a route needs; `None` where there is no such route. HEAD is answered as GET is.
#[must_use]
pub fn of(method: &str, path: &str) -> Option<Access> {
    let method = if method == "HEAD" { "GET" } else { method };
    TABLE.iter().find(|(m, p, _)| *m == method && *p == path).map(|(_, _, access)| *access)
}

/// The methods that a path knows, as the `Allow` header lists them.
#[must_use]
pub fn methods(path: &str) -> String {
    let mut methods: Vec<&str> = TABLE.iter().filter(|(_, p, _)| *p == path).map(|(m, _, _)| *m).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.join(", ")
}

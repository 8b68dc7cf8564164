//! The one place that says what each route needs.

use domain::authority::{Permission, Scopes};

/// The dimensions of a key's scopes that a route honours: it shows, and takes, nothing beyond them. A key that is
/// narrowed in another dimension is refused: what does not know of a scope cannot keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Honours {
    /// Applications.
    pub app: bool,
    /// Nodes.
    pub node: bool,
}

impl Honours {
    /// No scope: the route tells of the whole fleet.
    pub const NONE: Self = Self { app: false, node: false };
    /// The applications of the key.
    pub const APP: Self = Self { app: true, node: false };
    /// The nodes of the key.
    pub const NODE: Self = Self { app: false, node: true };
    /// Both.
    pub const BOTH: Self = Self { app: true, node: true };

    /// The first dimension in which a key is narrowed and which the route does not honour.
    #[must_use]
    pub const fn lacks(self, scopes: &Scopes) -> Option<&'static str> {
        if scopes.app.is_some() && !self.app {
            Some("app")
        } else if scopes.node.is_some() && !self.node {
            Some("node")
        } else {
            None
        }
    }

    /// In a sentence, for the API's description.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match (self.app, self.node) {
            (false, false) => "A key with scopes is refused: this tells of the whole fleet.",
            (true, false) => "Keeps to a key's `scopes.app`; a key with `scopes.node` is refused.",
            (false, true) => "Keeps to a key's `scopes.node`; a key with `scopes.app` is refused.",
            (true, true) => "Keeps to a key's scopes.",
        }
    }
}

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// A key with this permission, and narrowed in no other dimension than these.
    Needs(Permission, Honours),
    /// A key with this permission and without scopes, unless the configuration opens the metrics.
    NeedsUnlessPublic(Permission),
}

impl Access {
    /// The permission, and the scopes that are honoured; `None` for what is open.
    #[must_use]
    pub const fn needed(self) -> Option<(Permission, Honours)> {
        match self {
            Self::Open => None,
            Self::Needs(permission, honours) => Some((permission, honours)),
            Self::NeedsUnlessPublic(permission) => Some((permission, Honours::NONE)),
        }
    }
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
    ("POST", "/v1/jobs", Access::Needs(Permission::JobsWrite, Honours::NONE)),
    ("GET", "/v1/jobs", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("POST", "/v1/jobs/batch", Access::Needs(Permission::JobsWrite, Honours::NONE)),
    ("GET", "/v1/jobs/{id}", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("GET", "/v1/jobs/{id}/why", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("GET", "/v1/jobs/{id}/attempts", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("GET", "/v1/jobs/{id}/steps", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("GET", "/v1/jobs/{id}/log", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("POST", "/v1/jobs/{id}/cancel", Access::Needs(Permission::JobsOperate, Honours::NONE)),
    ("POST", "/v1/jobs/{id}/retry", Access::Needs(Permission::JobsOperate, Honours::NONE)),
    ("POST", "/v1/jobs/{id}/run-again", Access::Needs(Permission::JobsOperate, Honours::NONE)),
    ("GET", "/v1/kinds", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("GET", "/v1/queues", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("GET", "/v1/queues/{name}", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("GET", "/v1/queues/{name}/limits", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("PUT", "/v1/queues/{name}/limits", Access::Needs(Permission::QueuesOperate, Honours::NONE)),
    ("POST", "/v1/queues/{name}/pause", Access::Needs(Permission::QueuesOperate, Honours::NONE)),
    ("POST", "/v1/queues/{name}/resume", Access::Needs(Permission::QueuesOperate, Honours::NONE)),
    ("POST", "/v1/kinds/{kind}/pause", Access::Needs(Permission::QueuesOperate, Honours::NONE)),
    ("POST", "/v1/kinds/{kind}/resume", Access::Needs(Permission::QueuesOperate, Honours::NONE)),
    ("GET", "/v1/pauses", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("GET", "/v1/throughput", Access::Needs(Permission::QueuesRead, Honours::NONE)),
    ("GET", "/v1/workers", Access::Needs(Permission::WorkersRead, Honours::NONE)),
    ("GET", "/v1/workers/{id}", Access::Needs(Permission::WorkersRead, Honours::NONE)),
    ("GET", "/v1/fenced-writes", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("GET", "/v1/events", Access::Needs(Permission::JobsRead, Honours::NONE)),
    ("POST", "/v1/apps/{app}/instances", Access::Needs(Permission::InstancesWrite, Honours::APP)),
    ("GET", "/v1/apps/{app}/instances", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/apps/{app}/instances/{host}", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/apps/{app}/instances/{host}/why", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("PUT", "/v1/apps/{app}/instances/{host}/env", Access::Needs(Permission::InstancesWrite, Honours::APP)),
    ("POST", "/v1/apps/{app}/instances/{host}/park", Access::Needs(Permission::MovesWrite, Honours::APP)),
    ("POST", "/v1/apps/{app}/instances/{host}/restart", Access::Needs(Permission::MovesWrite, Honours::APP)),
    ("POST", "/v1/apps/{app}/instances/{host}/wake", Access::Needs(Permission::MovesWrite, Honours::APP)),
    ("POST", "/v1/apps/{app}/instances/{host}/move", Access::Needs(Permission::MovesWrite, Honours::APP)),
    ("DELETE", "/v1/apps/{app}/instances/{host}/move", Access::Needs(Permission::MovesWrite, Honours::APP)),
    (
        "GET",
        "/v1/apps/{app}/instances/{host}/move/rehearsals/{id}",
        Access::Needs(Permission::InstancesRead, Honours::APP),
    ),
    ("POST", "/v1/apps/{app}/instances/{host}/move/cut", Access::Needs(Permission::MovesWrite, Honours::APP)),
    ("POST", "/v1/apps/{app}/instances/{host}/move/unstick", Access::Needs(Permission::InstancesOperate, Honours::APP)),
    ("PUT", "/v1/apps/{app}/instances/{host}/region", Access::Needs(Permission::InstancesOperate, Honours::APP)),
    ("GET", "/v1/apps/{app}/instances/{host}/moves", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/apps/{app}/regions", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/moves", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/moves/{id}", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/moves/{id}/steps", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/moves/{id}/receipt", Access::Needs(Permission::InstancesRead, Honours::APP)),
    ("GET", "/v1/edges/{region}", Access::Needs(Permission::EdgesRead, Honours::NODE)),
    ("GET", "/v1/regions", Access::Needs(Permission::NodesRead, Honours::NONE)),
    ("PUT", "/v1/regions/{code}", Access::Needs(Permission::RegionsWrite, Honours::NONE)),
    ("POST", "/v1/nodes", Access::Needs(Permission::NodesWrite, Honours::NODE)),
    ("GET", "/v1/nodes", Access::Needs(Permission::NodesRead, Honours::NODE)),
    ("GET", "/v1/nodes/{id}", Access::Needs(Permission::NodesRead, Honours::NODE)),
    ("POST", "/v1/nodes/{id}/enrolment-tokens", Access::Needs(Permission::NodesWrite, Honours::NODE)),
    ("POST", "/v1/nodes/{id}/enrolment-tokens/revoke", Access::Needs(Permission::NodesWrite, Honours::NODE)),
    // The node itself, by its session: the route asks for one besides.
    ("PUT", "/v1/nodes/{id}/report", Access::Needs(Permission::NodesReport, Honours::NODE)),
    ("GET", "/v1/nodes/{id}/report", Access::Needs(Permission::NodesRead, Honours::NODE)),
    ("GET", "/v1/nodes/{id}/rebuild", Access::Needs(Permission::NodesRebuild, Honours::NODE)),
    // A machine that has nothing yet but a token's secret, or its own key: what it shows stands in the body.
    ("POST", "/v1/enrolments", Access::Open),
    ("POST", "/v1/nodes/{id}/nonces", Access::Open),
    ("POST", "/v1/nodes/{id}/sessions", Access::Open),
    ("GET", "/v1/audit", Access::Needs(Permission::AuditRead, Honours::NONE)),
    ("GET", "/v1/keys", Access::Needs(Permission::KeysManage, Honours::BOTH)),
    ("POST", "/v1/keys", Access::Needs(Permission::KeysManage, Honours::BOTH)),
    ("POST", "/v1/keys/{id}/revoke", Access::Needs(Permission::KeysManage, Honours::BOTH)),
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

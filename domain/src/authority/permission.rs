//! What can be permitted, and what each role and each kind of identity is given.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that a caller may do. Each route of the API needs exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Permission {
    /// Read jobs, their attempts, steps and logs, and the evidence of refused writes.
    #[serde(rename = "jobs.read")]
    JobsRead,
    /// Enqueue jobs.
    #[serde(rename = "jobs.write")]
    JobsWrite,
    /// Cancel and retry jobs.
    #[serde(rename = "jobs.operate")]
    JobsOperate,
    /// Read queues, kinds and throughput.
    #[serde(rename = "queues.read")]
    QueuesRead,
    /// Limit, pause and resume queues, and pause and resume kinds.
    #[serde(rename = "queues.operate")]
    QueuesOperate,
    /// Read workers.
    #[serde(rename = "workers.read")]
    WorkersRead,
    /// Read instances, their moves, and the regions they may move to.
    #[serde(rename = "instances.read")]
    InstancesRead,
    /// Create instances.
    #[serde(rename = "instances.write")]
    InstancesWrite,
    /// Point instances to a region by hand, and take back a cut that hangs.
    #[serde(rename = "instances.operate")]
    InstancesOperate,
    /// Move instances between regions.
    #[serde(rename = "moves.write")]
    MovesWrite,
    /// Read the document that tells the edges what to serve.
    #[serde(rename = "edges.read")]
    EdgesRead,
    /// Read nodes and regions.
    #[serde(rename = "nodes.read")]
    NodesRead,
    /// Make nodes' records, and issue and revoke their enrolment tokens.
    #[serde(rename = "nodes.write")]
    NodesWrite,
    /// Report what a node owns: a node for itself, by its session.
    #[serde(rename = "nodes.report")]
    NodesReport,
    /// Read what a rebuilt node is given: a node for itself, and whoever reads nodes.
    #[serde(rename = "nodes.rebuild")]
    NodesRebuild,
    /// Define regions.
    #[serde(rename = "regions.write")]
    RegionsWrite,
    /// Create identities and keys, and revoke keys.
    #[serde(rename = "keys.manage")]
    KeysManage,
    /// Read metrics.
    #[serde(rename = "metrics.read")]
    MetricsRead,
    /// Read the audit trail.
    #[serde(rename = "audit.read")]
    AuditRead,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 19] = [
        Self::JobsRead,
        Self::JobsWrite,
        Self::JobsOperate,
        Self::QueuesRead,
        Self::QueuesOperate,
        Self::WorkersRead,
        Self::InstancesRead,
        Self::InstancesWrite,
        Self::InstancesOperate,
        Self::MovesWrite,
        Self::EdgesRead,
        Self::NodesRead,
        Self::NodesWrite,
        Self::NodesReport,
        Self::NodesRebuild,
        Self::RegionsWrite,
        Self::KeysManage,
        Self::MetricsRead,
        Self::AuditRead,
    ];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JobsRead => "jobs.read",
            Self::JobsWrite => "jobs.write",
            Self::JobsOperate => "jobs.operate",
            Self::QueuesRead => "queues.read",
            Self::QueuesOperate => "queues.operate",
            Self::WorkersRead => "workers.read",
            Self::InstancesRead => "instances.read",
            Self::InstancesWrite => "instances.write",
            Self::InstancesOperate => "instances.operate",
            Self::MovesWrite => "moves.write",
            Self::EdgesRead => "edges.read",
            Self::NodesRead => "nodes.read",
            Self::NodesWrite => "nodes.write",
            Self::NodesReport => "nodes.report",
            Self::NodesRebuild => "nodes.rebuild",
            Self::RegionsWrite => "regions.write",
            Self::KeysManage => "keys.manage",
            Self::MetricsRead => "metrics.read",
            Self::AuditRead => "audit.read",
        }
    }

    /// Reads a permission; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.as_str() == text)
    }

    /// The least role that has it.
    const fn least_role(self) -> Role {
        match self {
            Self::JobsRead
            | Self::QueuesRead
            | Self::WorkersRead
            | Self::InstancesRead
            | Self::EdgesRead
            | Self::NodesRead
            | Self::NodesRebuild
            | Self::MetricsRead => Role::Viewer,
            Self::JobsWrite
            | Self::JobsOperate
            | Self::QueuesOperate
            | Self::InstancesWrite
            | Self::InstancesOperate
            | Self::MovesWrite
            | Self::AuditRead => Role::Operator,
            // Whoever enrols a machine gives it a node's trust.
            Self::NodesWrite | Self::RegionsWrite | Self::KeysManage => Role::Admin,
            // The route asks for a node's session besides, which no role gives.
            Self::NodesReport => Role::Admin,
        }
    }

    /// Whether an identity of this kind has it without any role, and the most that it can ever have.
    const fn of_kind(self, kind: IdentityKind) -> bool {
        match kind {
            // A person has what its roles give.
            IdentityKind::Person => false,
            IdentityKind::App => matches!(self, Self::InstancesRead | Self::InstancesWrite | Self::MovesWrite),
            IdentityKind::Node => matches!(self, Self::EdgesRead | Self::NodesReport | Self::NodesRebuild),
            // The instance's own identity passes no instance door (M-014).
            IdentityKind::Instance => false,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an identity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentityKind {
    /// A human being, or a program that acts for one.
    Person,
    /// An application: the bearer of its tenants' doors.
    App,
    /// A machine.
    Node,
    /// One instance of an application.
    Instance,
}

impl IdentityKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Person, Self::App, Self::Node, Self::Instance];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::App => "app",
            Self::Node => "node",
            Self::Instance => "instance",
        }
    }

    /// Reads a kind; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// What a person is here; each has everything that the one before it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads and operates.
    Operator,
    /// Does everything.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// As it stands in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Reads a role; `None` for a word that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A set of permissions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions(BTreeSet<Permission>);

impl Permissions {
    /// What an identity of this kind with these roles may do through a key that is narrowed to `narrowed`.
    #[must_use]
    pub fn effective(kind: IdentityKind, roles: &BTreeSet<Role>, narrowed: Option<&BTreeSet<Permission>>) -> Self {
        let by_role = |permission: Permission| {
            kind == IdentityKind::Person && roles.iter().any(|&role| role >= permission.least_role())
        };
        Self(
            Permission::ALL
                .into_iter()
                .filter(|&permission| permission.of_kind(kind) || by_role(permission))
                .filter(|permission| narrowed.is_none_or(|narrowed| narrowed.contains(permission)))
                .collect(),
        )
    }

    /// Whether it holds this one.
    #[must_use]
    pub fn has(&self, permission: Permission) -> bool {
        self.0.contains(&permission)
    }

    /// The first permission here that `other` lacks.
    #[must_use]
    pub fn first_beyond(&self, other: &Self) -> Option<Permission> {
        self.0.difference(&other.0).next().copied()
    }

    /// Each permission, in order.
    pub fn iter(&self) -> impl Iterator<Item = Permission> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: IdentityKind, roles: &[Role]) -> Permissions {
        Permissions::effective(kind, &roles.iter().copied().collect(), None)
    }

    #[test]
    fn each_role_has_everything_that_the_one_before_it_has() {
        let [viewer, operator, admin] = Role::ALL.map(|role| of(IdentityKind::Person, &[role]));
        assert_eq!(viewer.first_beyond(&operator), None);
        assert_eq!(operator.first_beyond(&admin), None);
        assert_eq!(admin.iter().count(), Permission::ALL.len());
        assert!(!viewer.has(Permission::JobsWrite));
        assert!(!operator.has(Permission::KeysManage));
    }

    #[test]
    fn roles_give_nothing_to_machines_and_an_instance_has_nothing_at_all() {
        for kind in [IdentityKind::App, IdentityKind::Node, IdentityKind::Instance] {
            assert_eq!(of(kind, &[Role::Admin]), of(kind, &[]));
        }
        assert_eq!(of(IdentityKind::Instance, &[]), Permissions::default());
        assert!(of(IdentityKind::App, &[]).has(Permission::MovesWrite));
        assert!(!of(IdentityKind::App, &[]).has(Permission::JobsRead));
    }

    #[test]
    fn a_key_narrows_and_never_widens() {
        let narrowed = BTreeSet::from([Permission::JobsRead, Permission::KeysManage]);
        let viewer = BTreeSet::from([Role::Viewer]);
        let set = Permissions::effective(IdentityKind::Person, &viewer, Some(&narrowed));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Permission::JobsRead]);
    }

    #[test]
    fn every_name_is_read_back() {
        for permission in Permission::ALL {
            assert_eq!(Permission::parse(permission.as_str()), Some(permission));
            assert_eq!(serde_json::json!(permission), permission.as_str());
        }
        assert_eq!(Permission::parse("jobs"), None);
    }
}

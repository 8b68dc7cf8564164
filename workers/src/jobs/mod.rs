//! The list of kinds. A kind is one file here, its line in the list of modules and its line in `kinds!`; no migration,
//! no enum and no match elsewhere.

use domain::queue::KindSpec;
use sqlx::PgPool;

use crate::node::NodeContext;
pub use crate::runner::{Done, Job, JobContext, JobError, Registry};

mod halt;
pub mod instance_land;
pub mod instance_move;
pub mod instance_purge;
pub mod instance_rehearse;
mod replica;
mod sweep;
pub mod system_noop;
pub mod system_sleep;

/// What jobs are made of: the things that they act through.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Environment {
    /// The database, for jobs that record what they did in domain tables under their fence.
    pub pool: PgPool,
    /// The box that the worker is, for jobs on instances; `None` where it is none.
    pub node: Option<NodeContext>,
}

impl Environment {
    /// An environment that has only the database.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool, node: None }
    }

    /// The environment of a worker that is this box.
    #[must_use]
    pub fn with_node(self, node: NodeContext) -> Self {
        Self { node: Some(node), ..self }
    }
}

/// Makes the catalogue and the registry from one list. What stands behind `=>` gives a job, or an `Option` of one that
/// is `None` where the environment cannot run the kind.
macro_rules! kinds {
    ($($job:ty => |$environment:ident| $make:expr;)*) => {
        /// What is known of every kind, whoever runs it: for the API's doors.
        #[must_use]
        pub fn catalogue() -> Vec<KindSpec> {
            vec![$(<$job as Job>::spec()),*]
        }

        /// The kinds that a worker in this environment can run.
        #[must_use]
        pub fn registry(environment: &Environment) -> Registry {
            let mut registry = Registry::default();
            $({
                let $environment = environment;
                let job: Option<$job> = ($make).into();
                if let Some(job) = job {
                    registry.add(job);
                }
            })*
            registry
        }
    };
}

kinds! {
    instance_land::InstanceLand => |environment| instance_land::InstanceLand::of(environment);
    instance_move::InstanceMove => |environment| instance_move::InstanceMove::of(environment);
    instance_purge::InstancePurge => |environment| instance_purge::InstancePurge::of(environment);
    instance_rehearse::InstanceRehearse => |environment| instance_rehearse::InstanceRehearse::of(environment);
    system_noop::Noop => |_environment| system_noop::Noop;
    system_sleep::Sleep => |_environment| system_sleep::Sleep;
}

#[cfg(test)]
mod tests {
    use domain::queue::Retention;

    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_a_schema() {
        let catalogue = catalogue();
        let mut names: Vec<&str> = catalogue.iter().map(|spec| spec.kind.as_str()).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(names.contains(&"system.noop"));
        for spec in &catalogue {
            assert!(spec.schema.is_object(), "{}", spec.kind);
            assert!(!spec.protected || spec.deadline.is_none(), "{} is protected, so it has no deadline", spec.kind);
        }
        Retention::default().with_kinds(&catalogue).check().expect("no kind keeps its jobs for too short a time");
    }
}

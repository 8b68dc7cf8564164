//! Why the activator did not do what was asked.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use domain::ids::Host;
use domain::instances::sealed::Unopened;

use crate::objects;

/// What runs for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The tenant's program.
    Child,
    /// What replicates its database.
    Litestream,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Child => "child",
            Self::Litestream => "litestream",
        })
    }
}

/// Why the activator did not do what was asked. Each names the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder of the box could not be used.
    #[error("use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The box has no program to run for its instances.
    #[error("{host} stays parked: this box has no program to run (set node.exec)")]
    NoProgram {
        /// Whose child was to start.
        host: Host,
    },
    /// A program that the settings name is not there.
    #[error("find the program {0}: give its path, or put it on PATH")]
    NoSuchProgram(PathBuf),
    /// Whoever asked may not have the child started now.
    #[error("{host} may not start now: this box does not serve it")]
    NotPermitted {
        /// Whose child was to start.
        host: Host,
    },
    /// Whether the child may start could not be told. Nothing was started.
    #[error("ask whether {host} may start")]
    Permit {
        /// Whose child was to start.
        host: Host,
        /// Why there is no answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tenant's environment has a name or a value that no process can have.
    #[error("the environment of {host} has {name:?}, which no process can have: correct its record")]
    Environment {
        /// Whose.
        host: Host,
        /// The name.
        name: String,
    },
    /// A sealed value does not open with the keys of this box. Nothing was started.
    #[error("open the configuration of {host} (config_key)")]
    ConfigKey {
        /// Whose.
        host: Host,
        /// Which value, and why.
        #[source]
        source: Unopened,
    },
    /// The processes of this machine could not be looked at. Nothing is taken as ended.
    #[error("look at the processes of {host}")]
    Processes {
        /// Whose.
        host: Host,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A process could not be started.
    #[error("start the {role} of {host}")]
    Launch {
        /// Whose.
        host: Host,
        /// What.
        role: Role,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended by itself before it was ready.
    #[error("the {role} of {host} ended before it was ready; see {log}:\n{tail}")]
    Exited {
        /// Whose.
        host: Host,
        /// What.
        role: Role,
        /// Its log.
        log: PathBuf,
        /// The log's end.
        tail: String,
    },
    /// It runs and was not ready in time. It goes on.
    #[error("the {role} of {host} was not ready within {limit:?}; it goes on, see {log}:\n{tail}")]
    NotReady {
        /// Whose.
        host: Host,
        /// What.
        role: Role,
        /// How long it was given.
        limit: Duration,
        /// Its log.
        log: PathBuf,
        /// The log's end.
        tail: String,
    },
    /// It was told to end and did not. Nobody kills it: what it has not written would be lost.
    #[error(
        "the {role} of {host} does not end: process {pid} was sent SIGTERM and given {waited:?}; \
         still there: {lingering:?} (look at it, and end it by hand)"
    )]
    Hangs {
        /// Whose.
        host: Host,
        /// What.
        role: Role,
        /// The process that was started, which is the number of its group.
        pid: u32,
        /// Every process of its group and session that lives, itself included.
        lingering: Vec<u32>,
        /// How long it was given.
        waited: Duration,
    },
    /// What was asked is refused while this runs.
    #[error("refused while the {role} of {host} runs (process {pid}): stop it first")]
    Runs {
        /// Whose.
        host: Host,
        /// What.
        role: Role,
        /// The process, or one of its group.
        pid: u32,
    },
    /// There is no database here.
    #[error("{host} has no database on this box")]
    Absent {
        /// Whose.
        host: Host,
    },
    /// The replica is there and the database is not: a child would begin with nothing, and replicate that.
    #[error(
        "{host} has a replica and no database on this box, so that its child would begin with nothing: restore it first"
    )]
    Lost {
        /// Whose.
        host: Host,
    },
    /// litestream failed, or took too long.
    #[error("litestream {verb} for {host}: {said}")]
    Litestream {
        /// Whose.
        host: Host,
        /// The command.
        verb: &'static str,
        /// What it said, or its time limit.
        said: String,
    },
    /// The database, or its replica, is not whole, and does not become so by itself. Purge nothing.
    #[error("{host}: {why}")]
    Broken {
        /// Whose.
        host: Host,
        /// What is damaged, and how.
        why: String,
    },
    /// The replica does not carry everything that the database holds. Purge nothing.
    #[error("the replica of {host} does not carry its tail: {why}")]
    Tail {
        /// Whose.
        host: Host,
        /// What differs.
        why: String,
    },
    /// Objects of the replica are missing, so that nothing restores it to its end. Purge nothing.
    #[error("the replica of {host} has a hole: {why}")]
    Hole {
        /// Whose.
        host: Host,
        /// Where.
        why: String,
    },
    /// The replica could not be listed, or its newest object not be read. Purge nothing.
    #[error("look at the replica of {host}")]
    Listing {
        /// Whose.
        host: Host,
        /// Why.
        #[source]
        source: objects::Error,
    },
    /// SQLite refused.
    #[error("read the database of {host}")]
    Database {
        /// Whose.
        host: Host,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// Somebody still uses the database, although the child is down.
    #[error("checkpoint the database of {host}: SQLite answered {answer:?} instead of (0, 0, 0); who has it open?")]
    InUse {
        /// Whose.
        host: Host,
        /// SQLite's answer: busy, pages in the log, pages that were checkpointed.
        answer: (i64, i64, i64),
    },
    /// What was restored is not there any more, or the database in its place is another.
    #[error("nothing to adopt for {host} at {path}: restore it again")]
    NotRestored {
        /// Whose.
        host: Host,
        /// Where it was to be.
        path: PathBuf,
    },
}

impl Error {
    /// For `map_err`: a file that could not be used.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

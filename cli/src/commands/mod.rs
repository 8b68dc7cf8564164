//! The command line: one file a noun, and here what they share.

mod api;
mod completions;
mod config;
mod doctor;
mod instance;
mod job;
mod key;
mod migrate;
mod node;
mod prune;
mod queue;
mod region;
mod sandbox;
mod worker;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::client::Api;
use crate::exit::{self, Exit};
use crate::output::Output;
use crate::settings::{Setting, Settings, Sources};

/// A fleet control plane: durable jobs under fenced leases, and what is built on them.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, after_help = exit::HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    /// Whether answers and failures are for programs.
    pub(crate) fn wants_json(&self) -> bool {
        self.global.json
    }
}

/// What every command takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// The configuration file [default: leasehold.toml in the working folder, if it is there]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Everywhere")]
    config: Option<PathBuf>,
    /// Answer in JSON, for programs; a failure is one JSON object on stderr
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the HTTP API and the dashboard
    Api(api::Args),
    /// Run jobs, or look at the workers that do
    Worker(worker::Args),
    /// Bring the database's schema to this program's version
    Migrate(migrate::Args),
    /// Find what is wrong with an installation, and what to do about it
    Doctor(doctor::Args),
    /// Remove finished jobs and other things that are past their time
    Prune(prune::Args),
    /// Run the whole of Leasehold on this machine, for a developer
    Dev(sandbox::Dev),
    /// Watch one real move, then 20,000 jobs through a storm: each proves itself
    Demo(sandbox::Demo),
    /// Enqueue, look at and steer jobs
    #[command(subcommand)]
    Job(job::Command),
    /// Look at queues, limit and pause them
    #[command(subcommand)]
    Queue(queue::Command),
    /// Register, look at and move instances
    #[command(subcommand)]
    Instance(instance::Command),
    /// Define and look at regions
    #[command(subcommand)]
    Region(region::Command),
    /// Make nodes' records, and enrol machines as them
    #[command(subcommand)]
    Node(node::Command),
    /// Manage API keys
    #[command(subcommand)]
    Key(key::Command),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Print the completion script of a shell
    Completions(completions::Args),
}

/// What a command works with.
pub(crate) struct Context {
    global: Global,
    /// How to answer.
    pub(crate) output: Output,
}

impl Context {
    /// Where settings come from, with what the command's own flags say.
    fn sources(&self, flags: Vec<(&'static Setting, Option<String>)>) -> Sources {
        let mut sources = Sources::of_process(self.global.config.clone());
        sources.flags = flags.into_iter().filter_map(|(setting, value)| Some((setting, value?))).collect();
        sources
    }

    /// The settings, with the log set up as they say.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn settings(&self, flags: Vec<(&'static Setting, Option<String>)>) -> anyhow::Result<Settings> {
        let settings = self.quiet_settings(flags)?;
        crate::log::start(&settings)?;
        Ok(settings)
    }

    /// The settings, for a command that sets up its log elsewhere.
    ///
    /// # Errors
    /// What is wrong with them.
    fn quiet_settings(&self, flags: Vec<(&'static Setting, Option<String>)>) -> anyhow::Result<Settings> {
        Ok(self.sources(flags).read()?)
    }

    /// The API with the caller's key, for a verb.
    ///
    /// # Errors
    /// What is wrong with the settings, or that there is no key.
    pub(crate) fn api(&self) -> anyhow::Result<Api> {
        Api::new(&self.settings(Vec::new())?)
    }
}

/// Runs a command to its end.
///
/// # Errors
/// What went wrong, with the exit code in the chain where it is not 1.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Exit> {
    let context = Context { output: Output::new(cli.global.json), global: cli.global };
    match cli.command {
        Command::Api(args) => api::run(&context, args),
        Command::Worker(args) => worker::run(&context, args),
        Command::Dev(args) => sandbox::dev(&context, args),
        Command::Demo(args) => sandbox::demo(&context, &args),
        Command::Migrate(args) => migrate::run(&context, &args),
        Command::Doctor(args) => doctor::run(&context, &args),
        Command::Prune(args) => prune::run(&context, &args),
        Command::Job(command) => job::run(&context, command),
        Command::Queue(command) => queue::run(&context, command),
        Command::Instance(command) => instance::run(&context, command),
        Command::Region(command) => region::run(&context, command),
        Command::Node(command) => node::run(&context, command),
        Command::Key(command) => key::run(&context, command),
        Command::Config(command) => config::run(&context, command),
        Command::Completions(args) => completions::run(&args),
    }
}

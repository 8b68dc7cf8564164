//! `leasehold`: every role and every operator's verb in one binary.
//!
//! Roles (`api`, `worker`, `migrate`), `doctor`, `prune`, `key bootstrap` and the sandbox (`dev`, `demo`) act directly;
//! all other verbs go through the API, where they are authorised and audited.

mod client;
mod commands;
mod database;
mod demo;
mod dev;
mod environment;
mod exit;
mod failure;
mod folder;
mod input;
mod interrupt;
mod log;
mod output;
mod pages;
mod parse;
mod retention;
mod roles;
mod runtime;
mod settings;
mod stack;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use commands::Cli;
use exit::Exit;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // First of all, while this process has a single thread and before anything is parsed: the words
    // after it belong to another program.
    if let [_, first, rest @ ..] = args.as_slice()
        && first == workers::activator::SUBCOMMAND
    {
        workers::activator::internal_detach(rest);
    }
    if let [_, first, rest @ ..] = args.as_slice()
        && first == stack::INSTANCE_KEY
    {
        return stack::internal_instance_key(rest);
    }
    if let Some(code) = args.get(1..).and_then(sandbox::hidden) {
        return code;
    }
    // What was not understood is told as was most likely asked.
    let asks_for_json = args.iter().any(|arg| arg == "--json");
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if asks_for_json && error.use_stderr() => {
            let told = failure::local(Exit::Usage, error.to_string().trim_end());
            let _ = writeln!(std::io::stderr(), "{told}");
            return Exit::Usage.into();
        }
        Err(error) => {
            // Help and version are no failure. A closed stdout is nobody's problem here.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    let json = cli.wants_json();
    match commands::run(cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            // The one place that prints a whole chain of causes. A closed stderr changes no exit code.
            let told = if json { failure::for_programs(&error).to_string() } else { failure::for_people(&error) };
            let _ = writeln!(std::io::stderr(), "{told}");
            exit::code_of(&error).into()
        }
    }
}

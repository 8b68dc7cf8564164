//! The hidden subcommand that makes a process outlive us: leave our session, say who it is, become the program.
//!
//! The record of a process is written by that process itself, before it is the program: a worker that is killed at any
//! instant leaves no child that the next one does not know. And in this order: first the record, then a look whether
//! the worker still lives. A worker that follows looks for records after the first one's death; so it sees the record,
//! or the look sees the death and nothing becomes the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, getppid, setsid};

use super::durable;
use super::identity::Identity;
use super::record::Record;

/// The name of the hidden subcommand, as the launcher's first argument.
pub const SUBCOMMAND: &str = "internal-detach";

/// Exit code for arguments that make no sense.
const BAD_USAGE: i32 = 125;
/// Exit code when the worker is gone, or the record could not be written.
const NOT_BEGUN: i32 = 126;
/// Exit code when the program could not be executed, as shells have it.
const NOT_EXECUTED: i32 = 127;

/// Runs the hidden subcommand; `args` are what follows its name, the environment of the program comes on stdin.
///
/// Call it first thing in `main`, before any thread or runtime exists. Never returns: the process becomes the program,
/// or ends with 125 (usage), 126 (not begun) or 127 (not executed) and a line on stderr.
pub fn internal_detach(args: &[OsString]) -> ! {
    let (code, message) = match args {
        [parent, record, note, dashes, program, args @ ..] if dashes == "--" => {
            begin(parent, Path::new(record), note, program, args)
        }
        _ => (BAD_USAGE, "expected PARENT RECORD NOTE -- PROGRAM ARGS…".to_owned()),
    };
    eprintln!("{SUBCOMMAND}: {message}");
    std::process::exit(code)
}

/// Returns only on failure: the exit code and what went wrong.
fn begin(parent: &OsStr, record: &Path, note: &OsStr, program: &OsStr, args: &[OsString]) -> (i32, String) {
    let parent: Option<i32> = parent.to_str().and_then(|text| text.parse().ok());
    let (Some(parent), Some(note)) = (parent, note.to_str()) else {
        return (BAD_USAGE, "PARENT is a number, NOTE is UTF-8".to_owned());
    };
    // A session is a process group as well. It has no terminal: no hang-up and no Ctrl-C of ours reaches it.
    if let Err(error) = setsid() {
        return (NOT_BEGUN, format!("leave the session: {error}"));
    }
    let mut block = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut block) {
        return (NOT_BEGUN, format!("read the environment: {error}"));
    }
    let own = Identity::own().and_then(|identity| durable::write(record, &Record::begun(identity, note).to_bytes()));
    if let Err(error) = own {
        return (NOT_BEGUN, format!("write {}: {error}", record.display()));
    }
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return (NOT_BEGUN, format!("the worker {parent} is gone"));
    }
    let environment = decode(&block);
    let error = Command::new(program).args(args).stdin(Stdio::null()).env_clear().envs(environment).exec();
    (NOT_EXECUTED, format!("execute {}: {error}", program.display()))
}

/// The environment as `/proc/<pid>/environ` has it: `NAME=VALUE`, each ended by a zero byte.
pub(super) fn encode(environment: &BTreeMap<OsString, OsString>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in environment {
        block.extend_from_slice(name.as_bytes());
        block.push(b'=');
        block.extend_from_slice(value.as_bytes());
        block.push(0);
    }
    block
}

fn decode(block: &[u8]) -> BTreeMap<OsString, OsString> {
    let entries = block.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(entry[..at].to_vec()), OsString::from_vec(entry[at + 1..].to_vec())))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_arrives_as_it_was_sent() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let environment = BTreeMap::from([pair("A", "1=2\n3"), pair("B", ""), pair("Ä", "ö")]);
        assert_eq!(decode(&encode(&environment)), environment);
    }
}

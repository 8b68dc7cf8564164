//! The hidden subcommand: bind to the parent, then become the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Gid, Pid, Signal, Uid, getppid, set_parent_process_death_signal};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The name of the hidden subcommand, as the launcher's first argument.
pub const SUBCOMMAND: &str = "internal-exec";

/// Exit code for arguments that make no sense.
const BAD_USAGE: i32 = 125;
/// Exit code when the parent had already died or the kernel refused what ties us to it.
const NOT_BOUND: i32 = 126;
/// Exit code when the program could not be executed, as shells have it.
const NOT_EXECUTED: i32 = 127;

/// Runs the hidden subcommand; `args` are what follows its name.
///
/// Call it first thing in `main`, before any thread or runtime exists. Never returns: the process
/// becomes the program, or ends with 125 (usage), 126 (not bound to the parent) or 127 (not
/// executed) and a line on stderr.
pub fn internal_exec(args: &[OsString]) -> ! {
    let (code, message) = match Plan::parse(args) {
        Ok(plan) => plan.become_program(),
        Err(message) => (BAD_USAGE, message),
    };
    eprintln!("{SUBCOMMAND}: {message}");
    std::process::exit(code)
}

#[derive(Debug, PartialEq)]
struct Plan<'a> {
    parent: i32,
    identity: Option<(u32, u32)>,
    program: &'a OsStr,
    args: &'a [OsString],
}

impl<'a> Plan<'a> {
    fn parse(args: &'a [OsString]) -> Result<Self, String> {
        let (mut parent, mut uid, mut gid) = (None, None, None);
        let mut rest = args;
        loop {
            match rest {
                [dashes, program, args @ ..] if dashes == "--" => {
                    let parent = parent.ok_or("--parent is missing")?;
                    let identity = match (uid, gid) {
                        (Some(uid), Some(gid)) => Some((uid, gid)),
                        (None, None) => None,
                        (Some(_), None) | (None, Some(_)) => return Err("--uid and --gid go together".to_owned()),
                    };
                    return Ok(Self { parent, identity, program, args });
                }
                [flag, value, tail @ ..] => {
                    match flag.to_str() {
                        Some("--parent") => parent = Some(number(value)?),
                        Some("--uid") => uid = Some(number(value)?),
                        Some("--gid") => gid = Some(number(value)?),
                        Some(_) | None => return Err(format!("unknown argument {}", flag.display())),
                    }
                    rest = tail;
                }
                _ => return Err("expected --parent PID [--uid N --gid N] -- PROGRAM ARGS…".to_owned()),
            }
        }
    }

    /// Returns only on failure: the exit code and what went wrong.
    fn become_program(&self) -> (i32, String) {
        if let Err(message) = self.bind() {
            return (NOT_BOUND, message);
        }
        let error = Command::new(self.program).args(self.args).exec();
        (NOT_EXECUTED, format!("execute {}: {error}", self.program.display()))
    }

    fn bind(&self) -> Result<(), String> {
        if let Some((uid, gid)) = self.identity {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            // Groups and gid while we still may; the uid last, since it takes that right away.
            set_thread_groups(&[]).map_err(|error| format!("drop groups: {error}"))?;
            set_thread_res_gid(gid, gid, gid).map_err(|error| format!("set gid: {error}"))?;
            set_thread_res_uid(uid, uid, uid).map_err(|error| format!("set uid: {error}"))?;
        }
        // Only now: the kernel clears this on every change of uid or gid.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("set parent-death signal: {error}"))?;
        // The parent may have died before the line above; then no signal would ever come.
        if getppid().map(Pid::as_raw_pid) == Some(self.parent) {
            Ok(())
        } else {
            Err(format!("the parent {} is gone", self.parent))
        }
    }
}

fn number<T: std::str::FromStr>(value: &OsStr) -> Result<T, String> {
    value.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| format!("not a number: {}", value.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn a_plan_names_parent_identity_and_program() {
        let args = words("--parent 7 --uid 65534 --gid 65534 -- initdb -D x");
        let plan = Plan::parse(&args).expect("parses");
        assert_eq!((plan.parent, plan.identity), (7, Some((65_534, 65_534))));
        assert_eq!((plan.program, plan.args), (OsStr::new("initdb"), &args[8..]));
    }

    #[test]
    fn a_plan_without_parent_program_or_whole_identity_is_refused() {
        for text in
            ["-- sh", "--parent 7", "--parent 7 --", "--parent x -- sh", "--parent 7 --uid 1 -- sh", "--pid 7 -- sh"]
        {
            assert!(Plan::parse(&words(text)).is_err(), "{text}");
        }
    }
}

//! `leasehold instance env`, and the environment of an instance from a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wire::Environment;

use super::{Context, Named};
use crate::client::Api;
use crate::exit::{Ending, Exit};
use crate::{input, runtime};

/// What `env --help` says below its flags.
pub(super) const HELP: &str = "Example: leasehold instance env acme ledger.acme.example --file ledger.env

The file has a NAME=VALUE a line, and all of the environment: what it does not name is gone. `leasehold instance show` names
what there is, and with --json has the values. A value stands as it is, its spaces and quotes too; empty lines and those that
begin with # say nothing. A name has letters, digits and underscores; CARLOS_REGION, LD_PRELOAD, LD_LIBRARY_PATH and LEASEHOLD_*
are the box's. At most 200 variables and 64 KiB.

The instance's process keeps what it was started with: `leasehold instance restart` starts it with the new one. What could not
start or land for its environment is tried again at once.";

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    #[command(flatten)]
    of: Named,
    /// A file with all of its environment, a NAME=VALUE a line; - is stdin
    #[arg(long, value_name = "PATH", required_unless_present = "empty")]
    file: Option<PathBuf>,
    /// Take all of it away
    #[arg(long, conflicts_with = "file")]
    empty: bool,
    /// Refuse where the record is not at this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<i64>,
}

/// Sets the environment of an instance.
pub(super) fn set(context: &Context, api: &Api, args: &Set) -> anyhow::Result<()> {
    let env = args.file.as_deref().map(read).transpose()?.unwrap_or_default();
    if env.is_empty() && !args.empty {
        // What fills a pipe may have failed.
        let message = "there is no variable in it, and all that there are would go: pass --empty for that".to_owned();
        return Err(Ending { exit: Exit::Usage, message }.into());
    }
    let (of, environment) = (&args.of, Environment { env });
    let ask =
        async |client: &wire::Client| client.set_environment(&of.app, &of.host, &environment, args.if_revision).await;
    let record = runtime::run(api.call_about(&of.what(), ask))?;
    context.output.show(&record, |it| {
        let (count, things) = (it.env.len(), if it.env.len() == 1 { "variable" } else { "variables" });
        format!("{}: {count} {things}, from its next start on (leasehold instance restart)", it.host)
    })
}

/// The largest environment that is read; the API takes less.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads the variables of a file: never from arguments, which every user of a machine sees.
pub(super) fn read(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    variables(&input::read(path, MAX_BYTES)?)
        .map_err(|error| Ending { exit: Exit::Usage, message: format!("{}: {error}", path.display()) }.into())
}

/// One NAME=VALUE a line, the value as it stands; empty lines and those that begin with # say nothing. A refusal names
/// the line and quotes nothing of it.
fn variables(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let number = index + 1;
        let pair = line.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) = pair.ok_or_else(|| format!("line {number} is not NAME=VALUE"))?;
        if found.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("line {number} names a variable for the second time"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_a_variable_a_line() {
        let read = variables("# of acme\nMODE=quiet\n\nKEY=a=b c\nEMPTY=\n").unwrap();
        let expected = [("EMPTY", ""), ("KEY", "a=b c"), ("MODE", "quiet")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn a_refused_environment_names_the_line_and_quotes_nothing() {
        for (text, line) in [("A=1\nhunter2", "line 2"), ("=hunter2", "line 1"), ("A=1\nA=hunter2", "line 2")] {
            let refused = variables(text).unwrap_err();
            assert!(refused.starts_with(line) && !refused.contains("hunter2"), "{refused}");
        }
    }
}

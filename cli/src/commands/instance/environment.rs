//! The environment of an instance, from a file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::exit::{Ending, Exit};
use crate::input;

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

//! Reads the file, the variables and the flags into [`Settings`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::table::{ALL, OUTSIDE_VARIABLES};
use super::{Error, Setting, Settings};
use crate::environment;

/// The file that is read when none is named.
const DEFAULT_FILE: &str = "leasehold.toml";
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The table.
    Default,
    /// The file at this path.
    File(PathBuf),
    /// This variable.
    Variable(String),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Where to read from. Tests hand over their own variables.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The file that was named; `leasehold.toml` in the working folder is read otherwise, if it is there.
    pub(crate) file: Option<PathBuf>,
    /// All `LEASEHOLD_*` variables.
    pub(crate) variables: BTreeMap<String, String>,
    /// What flags said, by setting.
    pub(crate) flags: Vec<(&'static Setting, String)>,
}

impl Sources {
    /// The process's variables, and the file that the command line named.
    pub(crate) fn of_process(file: Option<PathBuf>) -> Self {
        Self { file, variables: environment::leasehold(), flags: Vec::new() }
    }

    /// A path that a variable names; an empty one names none.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(name).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    /// Reads everything.
    ///
    /// # Errors
    /// The first thing that is wrong, file before variables before flags.
    pub(crate) fn read(self) -> Result<Settings, Error> {
        let mut values = BTreeMap::new();
        for setting in ALL {
            if let Some(text) = setting.default {
                let value = setting.bounds.parse(text).expect("a test parses every default of the table");
                values.insert(setting.key, (value, Source::Default));
            }
        }
        let named = self.file.clone().or_else(|| self.variable("LEASEHOLD_CONFIG"));
        let path = named.clone().unwrap_or_else(|| DEFAULT_FILE.into());
        if let Some(text) = read_file(&path, named.is_some())? {
            for (name, value) in flatten(&path, &text)? {
                let origin = Source::File(path.clone());
                let setting = find(&name).ok_or_else(|| unknown(&format!("{name} in {}", path.display()), &name))?;
                let value = setting.bounds.parse_toml(&value).ok_or_else(|| refused(setting, &origin))?;
                values.insert(setting.key, (value, origin));
            }
        }
        for (name, text) in &self.variables {
            // An empty variable is one that is not set, as compose files and service managers write it.
            if text.is_empty() || OUTSIDE_VARIABLES.iter().any(|(known, _)| name == known) {
                continue;
            }
            let setting =
                ALL.iter().find(|setting| setting.variable() == *name).ok_or_else(|| unknown_variable(name))?;
            let origin = Source::Variable(name.clone());
            let value = setting.bounds.parse(text).ok_or_else(|| refused(setting, &origin))?;
            values.insert(setting.key, (value, origin));
        }
        for (setting, text) in self.flags {
            let origin = Source::Flag(setting.flag.expect("only settings with a flag come from flags"));
            let value = setting.bounds.parse(&text).ok_or_else(|| refused(setting, &origin))?;
            values.insert(setting.key, (value, origin));
        }
        Ok(Settings { values })
    }
}

fn find(key: &str) -> Option<&'static Setting> {
    ALL.iter().copied().find(|setting| setting.key == key)
}

fn refused(setting: &Setting, origin: &Source) -> Error {
    Error::Value { key: setting.key, origin: origin.clone(), rule: setting.bounds.rule() }
}

fn unknown(from: &str, key: &str) -> Error {
    let similar = ALL.iter().map(|setting| setting.key).min_by_key(|known| distance(known, key));
    Error::Unknown { from: from.to_owned(), suggestion: suggest(similar, key) }
}

fn unknown_variable(name: &str) -> Error {
    let variables: Vec<String> = ALL.iter().map(|setting| setting.variable()).collect();
    let similar = variables.iter().map(String::as_str).min_by_key(|known| distance(known, name));
    Error::Unknown { from: name.to_owned(), suggestion: suggest(similar, name) }
}

fn suggest(similar: Option<&str>, name: &str) -> String {
    similar
        .filter(|similar| distance(similar, name) <= 3)
        .map(|similar| format!(", did you mean {similar}?"))
        .unwrap_or_default()
}

/// Edits that turn one name into the other (Levenshtein): names are short, so the plain table will do.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, left_char) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, right_char) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(left_char != *right_char);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

/// The file's text; `None` where no file was named and there is none.
fn read_file(path: &Path, named: bool) -> Result<Option<String>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Ok(about) if about.len() > MAX_FILE_BYTES => {
            return Err(failed(std::io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes"))));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    std::fs::read_to_string(path).map(Some).map_err(failed)
}

/// The file's values by dotted name.
fn flatten(path: &Path, text: &str) -> Result<Vec<(String, toml::Value)>, Error> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| Error::Toml {
        path: path.to_owned(),
        // Not the error's own display: it quotes the line, which may hold a secret.
        message: format!(
            "{}{}",
            error.message(),
            error.span().map(|span| at_line(text, span.start)).unwrap_or_default()
        ),
    })?;
    let mut flat = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(section) => {
                flat.extend(section.into_iter().map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Array(_) => flat.push((name, value)),
        }
    }
    Ok(flat)
}

fn at_line(text: &str, offset: usize) -> String {
    let line = text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1);
    format!(" (line {line})")
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    fn sources(file: &str, variables: &[(&str, &str)]) -> (tempfile::NamedTempFile, Sources) {
        let path = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(path.path(), file).expect("write it");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let sources = Sources { file: Some(path.path().to_owned()), variables, flags: Vec::new() };
        (path, sources)
    }

    fn refusal(file: &str, variables: &[(&str, &str)]) -> String {
        let (_file, sources) = sources(file, variables);
        sources.read().expect_err("refused").to_string()
    }

    #[test]
    fn flags_beat_variables_which_beat_the_file_which_beats_the_default() {
        let file = "[worker]\nconcurrency = 3\ndrain_seconds = 4\n";
        let (_file, mut sources) = sources(file, &[("LEASEHOLD_WORKER_CONCURRENCY", "5")]);
        sources.flags.push((&table::WORKER_QUEUES, "a,b".to_owned()));
        let settings = sources.read().expect("accepted");
        assert_eq!(settings.number(&table::WORKER_CONCURRENCY), 5);
        assert_eq!(settings.number(&table::WORKER_DRAIN_SECONDS), 4);
        assert_eq!(settings.list(&table::WORKER_QUEUES), ["a", "b"]);
        assert_eq!(settings.address(&table::API_LISTEN).map(|address| address.port()), Some(7070));
    }

    #[test]
    fn a_misspelt_name_is_refused_with_the_right_one() {
        let message = refusal("[worker]\nconcurency = 3\n", &[]);
        assert!(message.contains("did you mean worker.concurrency?"), "{message}");
        let message = refusal("", &[("LEASEHOLD_DATABSE_URL", "postgres://h/d")]);
        assert!(message.contains("did you mean LEASEHOLD_DATABASE_URL?"), "{message}");
    }

    #[test]
    fn a_refused_value_is_told_by_its_bounds_and_never_quoted() {
        let message = refusal("", &[("LEASEHOLD_DATABASE_URL", "mysql://u:hunter2@h/d")]);
        assert!(message.contains("database.url") && message.contains("postgres://"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        let message = refusal("[database]\nurl = \"postgres://u:hunter2@h\n", &[]);
        assert!(message.contains("line 2") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn a_named_file_must_be_there_and_an_empty_variable_is_not_set() {
        let absent = Sources { file: Some("/nowhere/leasehold.toml".into()), ..Sources::default() };
        assert!(matches!(absent.read(), Err(Error::Read { .. })));
        let (_file, sources) = sources("", &[("LEASEHOLD_WORKER_CONCURRENCY", "")]);
        assert_eq!(
            sources.read().expect("accepted").get(&table::WORKER_CONCURRENCY).map(|(_, from)| from),
            Some(&Source::Default)
        );
    }
}

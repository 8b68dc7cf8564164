//! The project's files, as these tests see them.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file that needs no entry in `sizes.txt`, in lines.
const MAX_LINES: usize = 400;
/// Folders that hold nothing of ours.
const NOT_OURS: [&str; 6] = [".git", ".tools", ".leasehold", "target", "node_modules", "__pycache__"];

/// A file of the project: its path from the root, and its text.
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    /// Lines with their numbers, comments left out where `comment` begins them.
    pub fn code<'a>(&'a self, comment: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(n, line)| (n + 1, line))
            .filter(move |(_, l)| !l.trim().starts_with(comment))
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Every text file below `folder` whose name ends with one of `endings`, by path.
pub fn under(folder: &str, endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root().join(folder), endings, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(folder: &Path, endings: &[&str], found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.expect("a readable folder")) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                walk(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending))
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails with every finding, one a line.
pub fn none(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n  {}", findings.join("\n  "));
}

/// A file over the limit has an entry with its length, which may shrink and not grow.
#[test]
fn no_file_grows_beyond_four_hundred_lines() {
    let allowed: Vec<(String, usize)> = read("tests/tests/tidy/sizes.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (path, lines) = line.rsplit_once(' ').unwrap_or_else(|| panic!("PATH LINES, not {line:?}"));
            (path.to_owned(), lines.parse().unwrap_or_else(|_| panic!("a number, not {lines:?}")))
        })
        .collect();
    let files = under("", &[".rs", ".sql", ".js", ".css", ".html", ".py", ".sh"]);
    let mut findings = Vec::new();
    for file in &files {
        let lines = file.text.lines().count();
        match allowed.iter().find(|(path, _)| *path == file.path) {
            Some((_, limit)) if lines > *limit => {
                findings.push(format!("{}: {lines} lines, {limit} allowed", file.path))
            }
            Some(_) if lines <= MAX_LINES => findings.push(format!("{}: short now, take its entry away", file.path)),
            None if lines > MAX_LINES => findings.push(format!("{}: {lines} lines: split it by subject", file.path)),
            Some(_) | None => {}
        }
    }
    for (path, _) in &allowed {
        if files.iter().all(|file| file.path != *path) {
            findings.push(format!("{path}: no such file, take its entry away"));
        }
    }
    none("files and their lengths", &findings);
}

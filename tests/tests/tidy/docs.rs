//! Names in the documents exist: a page that names a dead path or a lost test misleads.

use std::collections::BTreeSet;

use crate::files::{none, read, root, under};

/// Pages whose every name in backquotes must exist.
const PAGES: [&str; 2] = ["ARCHITECTURE.md", "README.md"];

/// Everything that a document can name: functions, types, modules, tables, states, settings, targets of make.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in under("", &[".rs", ".sql", ".toml", "Makefile"]) {
        let words = file.text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        names.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
    }
    names
}

/// What stands in backquotes, outside fenced blocks.
fn quoted(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn exists(token: &str, names: &BTreeSet<String>) -> bool {
    // What is made here and kept out of the repository has its name in .gitignore; what begins with ~ is a user's.
    let ignored = read(".gitignore").lines().any(|line| line.trim_matches('/') == token.trim_matches('/'));
    if ignored || token.starts_with('~') || root().join(token).exists() {
        return true;
    }
    // A command line, an address or a pattern is no name; a path is one, and it leads nowhere.
    if token.contains([' ', '-', '<', '*', '{', '$', '…']) || token.starts_with('/') {
        return true;
    }
    let words = token.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    !token.contains('/') && words.into_iter().all(|word| names.contains(word))
}

#[test]
fn a_dead_path_and_a_lost_name_are_found() {
    let names = BTreeSet::from(["settle".to_owned()]);
    for alive in ["domain/src/queue", "settle", "settle()", "Cargo.toml", "make test", "/v1/jobs", ".tools/"] {
        assert!(exists(alive, &names), "{alive}");
    }
    for dead in ["domain/src/nowhere", "unsettle", "settle::never"] {
        assert!(!exists(dead, &names), "{dead}");
    }
}

#[test]
fn every_name_in_the_pages_exists() {
    let names = names();
    let findings: Vec<String> = PAGES
        .iter()
        .flat_map(|page| {
            let dead = quoted(&read(page)).into_iter().filter(|token| !exists(token, &names));
            dead.map(|token| format!("{page}: `{token}`")).collect::<Vec<_>>()
        })
        .collect();
    none("names that nothing bears", &findings);
}

/// Each row of docs/guarantees.md: the promise, its ids, and tests that stand as functions.
#[test]
fn every_guarantee_names_tests_that_exist() {
    let functions: BTreeSet<String> = under("", &[".rs"])
        .iter()
        .flat_map(|file| {
            let after = file.text.split("fn ").skip(1);
            after
                .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
                .collect::<Vec<String>>()
        })
        // Tests that a macro makes of a list bear the name on its right side.
        .chain(under("tests", &[".rs"]).iter().flat_map(|file| {
            let made = file.text.lines().filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once(" as "));
            made.map(|(_, name)| name.trim().to_owned()).collect::<Vec<_>>()
        }))
        .collect();
    let page = read("docs/guarantees.md");
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| Promise")).collect();
    assert!(rows.len() > 20, "the page has its table");
    let mut findings = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let tests = cells.last().map(|cell| quoted(cell)).unwrap_or_default();
        if cells.len() != 3 || tests.is_empty() {
            findings.push(format!("not PROMISE | IDS | TESTS: {row}"));
        }
        let dead = tests.iter().filter(|name| !functions.contains(name.split("::").last().unwrap_or_default()));
        findings.extend(dead.map(|name| format!("no test {name}")));
    }
    none("docs/guarantees.md", &findings);
}

/// The shared requirement of a link: what it points at is there.
#[test]
fn links_between_pages_lead_somewhere() {
    let mut findings = Vec::new();
    for page in under("", &[".md"]) {
        let folder = root().join(&page.path).parent().expect("a page lies in a folder").to_owned();
        for target in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let is_here = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
            if is_here && !path.contains(' ') && !folder.join(path).exists() {
                findings.push(format!("{}: {target}", page.path));
            }
        }
    }
    none("links", &findings);
}

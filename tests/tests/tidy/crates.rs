//! Who may import whom, and that every dependency has a reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::{none, read, under};

const PACKAGES: [&str; 8] = ["domain", "workers", "api", "api/wire", "cli", "sandbox", "tests", "bench"];

/// Names that a package's code never says: they are there for a feature, or another crate's macro says them.
const UNSAID: [(&str, &str, &str); 0] = [];

fn manifest(package: &str) -> toml::Table {
    read(&format!("{package}/Cargo.toml")).parse().unwrap_or_else(|error| panic!("{package}/Cargo.toml: {error}"))
}

fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    manifest.get(section).and_then(|s| s.as_table()).map(|s| s.keys().cloned().collect()).unwrap_or_default()
}

/// `cli → {wire, api, workers, sandbox, domain}` and so on, as ARCHITECTURE.md has it.
#[test]
fn crates_import_only_whom_they_may() {
    let may: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("domain", &[][..]),
        ("sandbox", &[]),
        ("api/wire", &[]),
        ("workers", &["domain", "wire"]),
        ("api", &["wire", "domain"]),
        ("cli", &["wire", "api", "workers", "sandbox", "domain"]),
        ("tests", &["domain", "workers", "api", "wire", "sandbox"]),
        ("bench", &["domain", "workers", "api", "wire", "sandbox"]),
    ]);
    const OURS: [&str; 5] = ["domain", "workers", "api", "wire", "sandbox"];
    let mut findings = Vec::new();
    for package in PACKAGES {
        let manifest = manifest(package);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for name in dependencies(&manifest, section).iter().filter(|name| OURS.contains(&name.as_str())) {
                if !may[package].contains(&name.as_str()) {
                    findings.push(format!("{package} may not import {name} ({section})"));
                }
            }
        }
    }
    none("imports between our crates", &findings);
}

/// `api` and `workers` meet in PostgreSQL alone, so the shipped kinds speak the wire's types only where a node talks to
/// the API.
#[test]
fn workers_speak_the_wire_only_in_a_nodes_part() {
    let findings: Vec<String> = under("workers/src", &[".rs"])
        .iter()
        .filter(|file| !file.path.starts_with("workers/src/node/"))
        .flat_map(|file| {
            let said = file.code("//").filter(|(_, line)| line.contains("wire::") && !line.contains("_wire::"));
            said.map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())).collect::<Vec<_>>()
        })
        .collect();
    none("the wire in workers", &findings);
}

/// A dependency that no line of its package names is taken away.
#[test]
fn every_dependency_is_used() {
    let mut findings = Vec::new();
    for package in PACKAGES {
        let manifest = manifest(package);
        // A package inside another is not its code.
        let inner = |path: &str| package == "api" && path.starts_with("api/wire/");
        let text: String =
            under(package, &[".rs"]).iter().filter(|f| !inner(&f.path)).map(|f| f.text.as_str()).collect();
        for section in ["dependencies", "dev-dependencies"] {
            for name in dependencies(&manifest, section) {
                let word = name.replace('-', "_");
                let said = text.match_indices(&word).any(|(at, _)| {
                    let before = text[..at].chars().next_back();
                    let after = text[at + word.len()..].chars().next();
                    let of_a_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    !of_a_word(before) && !of_a_word(after)
                });
                if !said && !UNSAID.iter().any(|(p, n, _)| *p == package && *n == name) {
                    findings.push(format!("{package}/Cargo.toml: {name}"));
                }
            }
        }
    }
    none("dependencies that nothing names", &findings);
}

/// Versions stand in the workspace alone; a package says that it takes one, and with which features.
#[test]
fn versions_stand_in_the_workspace_alone() {
    let mut findings = Vec::new();
    for package in PACKAGES {
        let manifest = manifest(package);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(|s| s.as_table()) else { continue };
            for (name, how) in table {
                if how.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    findings.push(format!("{package}/Cargo.toml: {name}"));
                }
            }
        }
    }
    none("dependencies that do not come from the workspace", &findings);
}

#[test]
fn every_dependency_of_the_workspace_is_taken_by_a_package() {
    let root: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml");
    let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
    let taken: BTreeSet<String> = PACKAGES
        .iter()
        .flat_map(|package| sections.iter().flat_map(|section| dependencies(&manifest(package), section)))
        .collect();
    let offered = root["workspace"]["dependencies"].as_table().expect("a table");
    let idle: Vec<String> = offered.keys().filter(|name| !taken.contains(*name)).cloned().collect();
    none("dependencies of the workspace that no package takes", &idle);
}

/// docs/dependencies.md has a row for each dependency from outside, and for nothing else.
#[test]
fn every_dependency_has_its_reason_in_docs() {
    let root: toml::Table = read("Cargo.toml").parse().expect("Cargo.toml");
    let wanted: BTreeSet<String> = root["workspace"]["dependencies"]
        .as_table()
        .expect("a table")
        .iter()
        .filter(|(_, how)| how.get("path").is_none())
        .map(|(name, _)| name.clone())
        .collect();
    let told: BTreeSet<String> = read("docs/dependencies.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned()))
        .collect();
    let missing = wanted.difference(&told).map(|name| format!("no row: {name}"));
    let idle = told.difference(&wanted).map(|name| format!("no such dependency: {name}"));
    none("docs/dependencies.md", &missing.chain(idle).collect::<Vec<_>>());
}

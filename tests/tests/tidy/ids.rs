//! Ids of promises and invariants that a comment cites stand in the pages: an id that nobody can look up says nothing.

use crate::files::{none, read, under};

/// The ids `X-000` and `D-X00` of a line, in their order. `M-001…M-006` are two.
fn cited(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| is_promise(word) || is_decision(word)).map(str::to_owned).collect()
}

fn is_promise(word: &str) -> bool {
    let number = word.strip_prefix("Q-").or_else(|| word.strip_prefix("M-"));
    number.is_some_and(|number| number.len() == 3 && number.bytes().all(|b| b.is_ascii_digit()))
}

fn is_decision(word: &str) -> bool {
    let number = word.strip_prefix("D-").and_then(|rest| rest.get(1..));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a word is an invariant's: I1 to I99.
fn is_invariant(word: &str) -> bool {
    let number = word.strip_prefix('I');
    number.is_some_and(|number| matches!(number.len(), 1 | 2) && number.bytes().all(|b| b.is_ascii_digit()))
}

#[test]
fn ids_are_found_in_a_line() {
    let line = "//! Every edge (Q-001, M-015…M-024; D-M05), not IQ-001x, Q-1 or sha-256";
    assert_eq!(cited(line), ["Q-001", "M-015", "M-024", "D-M05"]);
    assert!(is_invariant("I1") && is_invariant("I11") && !is_invariant("I") && !is_invariant("IO"));
}

#[test]
fn every_cited_id_stands_in_the_pages() {
    let promises = cited(&read("docs/guarantees.md"));
    let architecture = read("ARCHITECTURE.md");
    let invariants: Vec<&str> =
        architecture.lines().filter_map(|line| line.strip_prefix("| I")?.split(' ').next()).collect();
    assert!(promises.len() > 100 && invariants.len() >= 11, "the pages have their tables");
    let mut findings = Vec::new();
    for file in under("", &[".rs", ".sql"]).iter().filter(|file| file.path != "tests/tests/tidy/ids.rs") {
        let comment = if file.path.ends_with(".sql") { "--" } else { "//" };
        for (index, line) in file.text.lines().enumerate() {
            let Some((_, said)) = line.split_once(comment) else { continue };
            let mut unknown: Vec<String> = cited(said).into_iter().filter(|id| !promises.contains(id)).collect();
            let words = said.split(|c: char| !c.is_ascii_alphanumeric());
            let lost = words.filter(|word| is_invariant(word) && !invariants.contains(&&word[1..]));
            unknown.extend(lost.map(str::to_owned));
            findings.extend(unknown.iter().map(|id| format!("{}:{}: {id}", file.path, index + 1)));
        }
    }
    none("ids that no page explains", &findings);
}

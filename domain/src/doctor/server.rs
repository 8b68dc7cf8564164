//! What is wrong with the server, the schema and its tables. Pure: facts in, findings out.

use std::time::Duration;

use serde_json::json;

use super::queue::span;
use super::{Finding, listed};

/// How long a transaction may last before it is told: dead rows that it could still see are kept, and leasing slows.
pub(super) const OLD_TRANSACTION: Duration = Duration::from_secs(300);
/// Fewest dead rows that are told: autovacuum comes by once a minute.
const MANY_DEAD: i64 = 50_000;
/// How many dead rows there may be for each live one.
const DEAD_PER_LIVE: i64 = 4;
/// Share of a sequence's numbers, in percent, from which on it is told.
const NEARLY_USED: i64 = 80;
/// Age of the oldest transaction id from which on it is told: PostgreSQL itself warns at 2.1 billion less 40 million.
const OLD_TRANSACTION_ID: i64 = 1_000_000_000;

/// A migration, applied or known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Migration {
    pub(super) version: i64,
    pub(super) succeeded: bool,
    pub(super) checksum: Vec<u8>,
}

/// What decides whether a commit survives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Durability {
    pub(super) fsync: String,
    pub(super) full_page_writes: String,
    pub(super) synchronous_commit: String,
}

/// A session with an old transaction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Session {
    pub(super) pid: i32,
    pub(super) user: String,
    pub(super) application: String,
    pub(super) state: String,
    pub(super) age_s: f64,
}

/// A transaction that was prepared and neither committed nor rolled back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prepared {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) age_s: f64,
}

/// A replication slot that nobody uses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) kept_bytes: i64,
    pub(super) pins_horizon: bool,
}

/// What the statistics say of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) live: i64,
    pub(super) dead: i64,
}

/// How far a sequence is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sequence {
    pub(super) name: String,
    pub(super) given: i64,
    pub(super) last: i64,
}

pub(super) fn schema(applied: &[Migration], known: &[Migration]) -> Vec<Finding> {
    let missing: Vec<i64> =
        known.iter().map(|it| it.version).filter(|v| applied.iter().all(|a| a.version != *v)).collect();
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(Finding {
            what: format!("Migrations are not applied: {}.", listed(&missing, i64::to_string)),
            advice: "Run `leasehold migrate`; CHANGELOG.md says which of them wants the workers stopped.".to_owned(),
            facts: json!({ "missing": missing }),
        });
    }
    for it in applied {
        let facts = json!({ "migration": it.version });
        let (what, advice) = match known.iter().find(|known| known.version == it.version) {
            None => (
                format!("Migration {} is applied, which this program does not know.", it.version),
                "Use the program of the newer version.",
            ),
            Some(_) if !it.succeeded => (
                format!("Migration {} began and did not end.", it.version),
                "Look at what `leasehold migrate` said, undo what it left behind, and run it again.",
            ),
            Some(known) if known.checksum != it.checksum => (
                format!("Migration {} was applied with another text than this program's.", it.version),
                "Use the program that migrated this database, or restore the database that belongs to this one.",
            ),
            Some(_) => continue,
        };
        findings.push(Finding { what, advice: advice.to_owned(), facts });
    }
    findings
}

pub(super) fn durability(durability: &Durability) -> Vec<Finding> {
    let settings = [
        ("fsync", &durability.fsync, "a crash of the machine can corrupt the database"),
        ("full_page_writes", &durability.full_page_writes, "a crash of the machine can corrupt the database"),
        (
            "synchronous_commit",
            &durability.synchronous_commit,
            "a crash loses what was acknowledged, and a fence can be given twice",
        ),
    ];
    let off = settings.into_iter().filter(|(_, value, _)| *value == "off");
    let finding = |(name, _, risk): (&str, &String, &str)| Finding {
        what: format!("{name} is off: {risk}."),
        advice: format!("`alter system set {name} = on`, then `select pg_reload_conf()`."),
        facts: json!({ "setting": name }),
    };
    off.map(finding).collect()
}

pub(super) fn transactions(sessions: &[Session]) -> Vec<Finding> {
    let finding = |it: &Session| Finding {
        what: format!(
            "Session {} of {} ({}) has had a transaction open for {}, and is {}: dead rows cannot be removed meanwhile.",
            it.pid,
            it.user,
            if it.application.is_empty() { "no name" } else { &it.application },
            span(it.age_s),
            it.state
        ),
        advice: format!(
            "End what it does; if nobody knows it, `select pg_terminate_backend({})`. Set \
             idle_in_transaction_session_timeout for its role.",
            it.pid
        ),
        facts: json!({
            "pid": it.pid, "user": it.user, "application": it.application, "state": it.state,
            "age_seconds": it.age_s.round()
        }),
    };
    sessions.iter().map(finding).collect()
}

pub(super) fn prepared(transactions: &[Prepared]) -> Vec<Finding> {
    let finding = |it: &Prepared| Finding {
        what: format!(
            "The prepared transaction {:?} of {} has waited for {}: dead rows cannot be removed meanwhile.",
            it.name,
            it.owner,
            span(it.age_s)
        ),
        advice: "Ask whoever prepared it; then `commit prepared` or `rollback prepared` by that name.".to_owned(),
        facts: json!({ "name": it.name, "owner": it.owner, "age_seconds": it.age_s.round() }),
    };
    transactions.iter().map(finding).collect()
}

pub(super) fn slots(slots: &[Slot]) -> Vec<Finding> {
    let finding = |it: &Slot| Finding {
        what: format!(
            "Nobody reads the replication slot {:?}: it keeps {} MiB of write-ahead log{}.",
            it.name,
            it.kept_bytes / (1024 * 1024),
            if it.pins_horizon { ", and dead rows cannot be removed" } else { "" }
        ),
        advice: format!(
            "Start its reader again, or `select pg_drop_replication_slot('{}')` where there is none any more.",
            it.name
        ),
        facts: json!({ "slot": it.name, "kept_bytes": it.kept_bytes, "pins_horizon": it.pins_horizon }),
    };
    slots.iter().map(finding).collect()
}

pub(super) fn indexes(names: &[String]) -> Vec<Finding> {
    let finding = |name: &String| Finding {
        what: format!("The index {name} is not valid: no query uses it, or what it should hold together may not."),
        advice: format!("`reindex index concurrently {name}`."),
        facts: json!({ "index": name }),
    };
    names.iter().map(finding).collect()
}

pub(super) fn bloat(tables: &[Table]) -> Vec<Finding> {
    let bloated = tables.iter().filter(|it| it.dead >= MANY_DEAD && it.dead > it.live.saturating_mul(DEAD_PER_LIVE));
    let finding = |it: &Table| Finding {
        what: format!("{} holds {} dead rows beside {} live ones.", it.name, it.dead, it.live),
        advice: format!(
            "See that autovacuum is on and what `long_transactions` says; then `vacuum {}`, or `reindex table \
             concurrently {}` where it stays slow.",
            it.name, it.name
        ),
        facts: json!({ "table": it.name, "live": it.live, "dead": it.dead }),
    };
    bloated.map(finding).collect()
}

pub(super) fn sequences(sequences: &[Sequence]) -> Vec<Finding> {
    let used = |it: &Sequence| i128::from(it.given) * 100 / i128::from(it.last.max(1));
    let near = sequences.iter().filter(|it| used(it) >= i128::from(NEARLY_USED));
    let finding = |it: &Sequence| Finding {
        what: format!("{} % of the numbers of {} are given.", used(it), it.name),
        advice: "Nothing of ours comes near that by itself: find out who set it, before the next number is refused."
            .to_owned(),
        facts: json!({ "sequence": it.name, "given": it.given, "last": it.last }),
    };
    near.map(finding).collect()
}

pub(super) fn transaction_ids(age: i64) -> Option<Finding> {
    (age >= OLD_TRANSACTION_ID).then(|| Finding {
        what: format!(
            "The oldest transaction id is {age} transactions old; PostgreSQL stops taking writes at 2.1 billion."
        ),
        advice:
            "See what `long_transactions`, `prepared_transactions` and `replication_slots` say, then `vacuum freeze`."
                .to_owned(),
        facts: json!({ "age": age }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(version: i64, succeeded: bool, checksum: u8) -> Migration {
        Migration { version, succeeded, checksum: vec![checksum] }
    }

    #[test]
    fn a_schema_is_told_by_what_is_missing_unknown_half_done_or_changed() {
        let known = [migration(1, true, 1), migration(2, true, 2)];
        assert_eq!(schema(&known, &known), []);
        let told = |applied: &[Migration]| schema(applied, &known).remove(0).what;
        assert!(told(&known[..1]).contains("not applied: 2"));
        assert!(told(&[known.as_slice(), &[migration(3, true, 3)]].concat()).contains("does not know"));
        assert!(told(&[migration(1, true, 1), migration(2, false, 2)]).contains("did not end"));
        assert!(told(&[migration(1, true, 9), migration(2, true, 2)]).contains("another text"));
    }

    #[test]
    fn dead_rows_are_told_when_they_are_many_and_outnumber_the_living() {
        let table = |live, dead| Table { name: "jobs".to_owned(), live, dead };
        assert!(bloat(&[table(0, 49_999), table(20_000, 80_000)]).is_empty());
        assert_eq!(bloat(&[table(0, 50_000), table(19_999, 80_000)]).len(), 2);
    }

    #[test]
    fn numbers_are_told_before_they_run_out() {
        let sequence = |given| Sequence { name: "s".to_owned(), given, last: i64::MAX };
        assert!(sequences(&[sequence(1), sequence(i64::MAX / 100 * 79)]).is_empty());
        assert_eq!(sequences(&[sequence(i64::MAX / 100 * 81)]).len(), 1);
        assert!(transaction_ids(999_999_999).is_none() && transaction_ids(1_000_000_000).is_some());
    }
}

//! What may stand in which file.

use crate::files::{Source, none, under};

fn is_store(path: &str) -> bool {
    path.starts_with("domain/src/") && (path.ends_with("/store.rs") || path.contains("/store/"))
}

/// Everything that is shipped. Tests and bench may talk to the database as they like.
fn shipped() -> Vec<Source> {
    ["domain", "workers", "api", "cli", "sandbox"].iter().flat_map(|package| under(package, &[".rs"])).collect()
}

/// I10. SQL is recognised by the calls that carry it.
#[test]
fn sql_stands_in_store_files_alone() {
    const CALLS: [&str; 7] =
        ["sqlx::query", "query!(", "query_as!(", "query_scalar!(", "raw_sql(", "QueryBuilder", "query_file"];
    let mut findings = Vec::new();
    let mut stores = 0;
    for file in shipped() {
        let calls = file.code("//").filter(|(_, line)| CALLS.iter().any(|call| line.contains(call)));
        if is_store(&file.path) {
            stores += calls.count();
        } else {
            findings.extend(calls.map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())));
        }
    }
    assert!(stores > 50, "the search finds what it looks for: {stores}");
    none("SQL outside a store", &findings);
}

/// Whoever takes a connection from a pool by itself breaks behind a transaction pooler: `domain::db` knows how.
#[test]
fn connections_are_taken_where_a_pooler_is_known() {
    let mut findings = Vec::new();
    let mut taken = 0;
    for file in shipped().into_iter().filter(|file| !file.path.contains("/tests/")) {
        let calls = file.code("//").filter(|(_, line)| {
            let of_a_pool =
                |call: &str| line.contains(&format!("pool.{call}")) || line.contains(&format!("pool().{call}"));
            of_a_pool("acquire()") || of_a_pool("begin()") || of_a_pool("begin_with(")
        });
        if file.path.starts_with("domain/src/db/") {
            taken += calls.count();
        } else {
            findings.extend(calls.map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())));
        }
    }
    assert!(taken >= 4, "the search finds what it looks for: {taken}");
    none("connections taken past the pooler", &findings);
}

/// I10, Q-003: the clock is read through one function, as a scalar subquery, which stays an index condition.
#[test]
fn sql_reads_time_only_as_select_lh_now() {
    let mut findings = Vec::new();
    let mut seen = 0;
    let stores = under("domain/src", &[".rs"]).into_iter().filter(|file| is_store(&file.path));
    for file in stores.chain(under("migrations", &[".sql"])) {
        let is_sql = file.path.ends_with(".sql");
        let comment = if is_sql { "--" } else { "//" };
        for (n, line) in file.code(comment) {
            let code = line.split("--").next().unwrap_or_default();
            let defines_it = is_sql && code.contains("$$ select clock_timestamp() $$");
            if reads_another_clock(code) && !defines_it {
                findings.push(format!("{}:{n}: {}", file.path, line.trim()));
            }
            seen += code.matches("lh_now()").count();
            let bare = code.matches("lh_now()").count() > code.matches("select lh_now()").count();
            // A function's body in PL/pgSQL assigns it; everything else asks for it in a subquery.
            if bare && !(is_sql && (code.contains("create function lh_now()") || code.contains(":="))) {
                findings.push(format!("{}:{n}: not as (select lh_now()): {}", file.path, line.trim()));
            }
        }
    }
    assert!(seen > 50, "the search finds what it looks for: {seen}");
    none("time in SQL", &findings);
}

fn reads_another_clock(code: &str) -> bool {
    const WORDS: [&str; 9] = [
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "current_timestamp",
        "localtimestamp",
        "current_date",
        "current_time",
        "timeofday",
        "'now'",
    ];
    let code = code.to_lowercase();
    let called = code.match_indices("now()").any(|(at, _)| {
        // `lh_now()` and Rust's `Instant::now()` are other words.
        !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.'))
    });
    called || WORDS.iter().any(|word| code.contains(word))
}

#[test]
fn the_search_for_other_clocks_finds_them() {
    for bad in ["where at < now()", "default CURRENT_TIMESTAMP", "select clock_timestamp()", "coalesce(x,now())"] {
        assert!(reads_another_clock(bad), "{bad}");
    }
    for good in ["(select lh_now())", "Instant::now()", "known()", "as \"now!\""] {
        assert!(!reads_another_clock(good), "{good}");
    }
}

/// Pauses that are no waits: the helper that looks again and again, and work that takes its time. Each file with how many
/// it has, and why.
const PAUSES: [(&str, usize, &str); 11] = [
    ("tests/src/wait.rs", 1, "looks again and again"),
    ("tests/src/bin/test-tenant.rs", 1, "the rate of a writer"),
    ("tests/src/bin/test-worker/main.rs", 4, "looks for a test's signal, and takes its time, as its handler's work"),
    ("tests/src/bin/test-worker/puppet.rs", 1, "looks for an order"),
    ("tests/tests/fence/trials.rs", 1, "a moment of chance, at which a process is stopped"),
    ("tests/tests/mirror/restore.rs", 1, "the rate of a writer"),
    ("tests/tests/moves/live.rs", 1, "the rate of a writer"),
    ("tests/tests/runner/leases.rs", 4, "handlers that take their time, and a rescuer's rate"),
    ("tests/tests/runner/service.rs", 1, "a handler that takes its time"),
    ("sandbox/tests/exec.rs", 1, "looks again and again"),
    ("sandbox/tests/support/mod.rs", 1, "looks again and again"),
];

/// A test waits on a condition, never on time, and runs always.
#[test]
fn tests_wait_on_conditions_and_are_never_skipped() {
    let pause = ["thread::", "time::"].map(|module| format!("{module}sleep("));
    let skipped = format!("#[{}", "ignore");
    let mut findings = Vec::new();
    for file in under("tests", &[".rs"]).into_iter().chain(under("sandbox/tests", &[".rs"])) {
        let allowed = PAUSES.iter().find(|(path, _, _)| *path == file.path).map_or(0, |(_, n, _)| *n);
        let pauses: Vec<_> = file.code("//").filter(|(_, l)| pause.iter().any(|call| l.contains(call))).collect();
        if pauses.len() > allowed {
            findings.extend(pauses.iter().map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())));
        }
        let never_run = file.code("//").filter(|(_, line)| line.contains(&skipped));
        findings.extend(never_run.map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())));
    }
    none("tests that wait on time or are skipped", &findings);
}

#[test]
fn every_migration_says_what_why_and_which_lock_it_takes() {
    let migrations = under("migrations", &[".sql"]);
    assert!(!migrations.is_empty());
    let findings: Vec<String> = migrations
        .iter()
        .flat_map(|file| {
            ["-- What:", "-- Why:", "-- Lock:"]
                .into_iter()
                .filter(|word| !file.text.lines().take_while(|l| l.starts_with("--")).any(|l| l.starts_with(word)))
                .map(|word| format!("{}: no {word:?} in its heading", file.path))
        })
        .collect();
    none("migrations", &findings);
}

/// O02: what a node reports is a backup and never a source. Nobody but its own module, and the routes and verbs that take and
/// tell it, knows of it; and nobody but the record that people see tells when a machine was heard by a report.
#[test]
fn nothing_decides_from_what_a_node_reports() {
    const REPORTS: [&str; 9] = [
        "domain/src/nodes/reports/",
        "domain/src/nodes/mod.rs",
        "api/src/routes/reports.rs",
        "api/src/routes/mod.rs",
        "api/src/convert/report.rs",
        "api/wire/src/lib.rs",
        "cli/src/commands/node.rs",
        "cli/src/commands/node/reports.rs",
        "workers/src/node/rebuild.rs",
    ];
    const HEARD: [&str; 4] = [
        "domain/src/nodes/reports/store.rs",
        "domain/src/nodes/records/store.rs",
        // Of workers, which have a column of their own.
        "domain/src/queue/why",
        "domain/src/queue/store/why.rs",
    ];
    let rules: [(&[&str], &[&str]); 2] =
        [(&["reports::", "mod reports", "node_reports", "NodeReport::"], &REPORTS), (&["heard_at"], &HEARD)];
    let mut findings = Vec::new();
    for (names, may) in rules {
        let mut knowing = 0;
        for file in shipped() {
            let says = file.code("//").filter(|(_, line)| names.iter().any(|name| line.contains(name)));
            if may.iter().any(|place| file.path.starts_with(place)) {
                knowing += says.count();
            } else {
                findings.extend(says.map(|(n, line)| format!("{}:{n}: {}", file.path, line.trim())));
            }
        }
        assert!(knowing >= 4, "the search finds what it looks for: {names:?}");
    }
    none("readers of what nodes report", &findings);
}

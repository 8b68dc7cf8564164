//! What is wrong with the queue. Pure: facts in, findings out.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::NaiveDate;
use serde_json::json;

use super::{Finding, listed};
use crate::clock::Timestamp;
use crate::ids::{JobId, WorkerId};
use crate::queue::policy::SILENT_AFTER;

/// How long ago a lease must have ended before a job that no batch names counts as lost: far beyond what a sweep that is
/// under way could still be about to name.
pub(super) const STRAY_AFTER: Duration = Duration::from_secs(60);
/// Live jobs that are looked at in one walk, oldest first.
pub(super) const LOOK_AT: i64 = 200_000;
/// Live jobs that are looked up among the finished ones, oldest first; each costs a probe in every day.
pub(super) const LOOK_UP: i64 = 10_000;
/// How long a worker may have been stopped while a lease of its lives on: longer than any lease, so somebody renews it.
pub(super) const STOPPED_FOR: Duration = Duration::from_secs(300);
/// How long a worker that fell silent is told: after that it was replaced, or nobody misses it.
pub(super) const SILENT_FOR_LESS_THAN: Duration = Duration::from_secs(3600);
/// How long pruning tries for a day before that is a finding: a report over the history may take its time.
const LATE_FOR: Duration = Duration::from_secs(3600);
/// Silent workers that are named, the newest first.
const SILENT_NAMED: usize = 5;
/// How far a worker's wall clock may be from the database's.
const SKEW: Duration = Duration::from_secs(2);
/// How long work may be due before nobody's serving it is a finding: a restart takes a moment.
const UNSERVED_FOR: Duration = SILENT_AFTER;

/// A job, and who held it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Held {
    pub(super) job: JobId,
    pub(super) worker: WorkerId,
}

/// Fences that were found, and the newest that the sequence gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fences {
    pub(super) highest: Option<i64>,
    pub(super) given: i64,
}

/// A worker that has not stopped.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) host: String,
    pub(super) pid: i32,
    pub(super) unheard_s: f64,
    pub(super) skew_ms: Option<i64>,
}

/// Due jobs of one kind on one queue.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Due {
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) due_for_s: f64,
    pub(super) served: bool,
}

/// Where finished jobs go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Partitions {
    /// Rows of days that had no partition, counted up to a thousand.
    pub(super) without_day: i64,
    pub(super) today: bool,
    pub(super) tomorrow: bool,
}

/// A day of finished jobs that is to leave as a whole, and others hold its table at each try.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Late {
    pub(super) day: NaiveDate,
    pub(super) since: Timestamp,
    pub(super) late_for_s: f64,
}

/// What a walk that stopped at its bound did not see.
pub(super) fn beyond(saw_all: bool, bound: i64) -> Option<String> {
    (!saw_all).then(|| format!("live jobs behind the {bound} oldest"))
}

pub(super) fn strays(jobs: &[JobId]) -> Option<Finding> {
    (!jobs.is_empty()).then(|| Finding {
        what: format!(
            "Running jobs whose lease ended over a minute ago stand in no batch, so no sweep finds them: {}.",
            listed(jobs, JobId::to_string)
        ),
        advice:
            "Keep a worker running: the walk of its upkeep adopts such jobs, 20,000 live jobs every half a minute. \
                 If they come again, look for a worker of an older version, and report it."
                .to_owned(),
        facts: json!({ "jobs": jobs }),
    })
}

pub(super) fn twins(jobs: &[JobId]) -> Option<Finding> {
    (!jobs.is_empty()).then(|| Finding {
        what: format!("Jobs are live and finished at once: {}.", listed(jobs, JobId::to_string)),
        advice: "No statement of ours leaves this behind: a restore or a change by hand did. Look at each with \
                 `leasehold job show`, and remove the row that is not true."
            .to_owned(),
        facts: json!({ "jobs": jobs }),
    })
}

pub(super) fn leases_of_stopped(leases: &[Held]) -> Option<Finding> {
    (!leases.is_empty()).then(|| Finding {
        what: format!(
            "Leases of workers that stopped over five minutes ago are still renewed: {}.",
            listed(leases, |it| format!("job {} by worker {}", it.job, it.worker))
        ),
        advice:
            "The process lives on although it said that it ended. Find it by host and pid in `leasehold worker list \
                 --json`, and end it: its jobs are rescued within one lease."
                .to_owned(),
        facts: json!({
            "leases": leases.iter().map(|it| json!({ "job": it.job, "worker": it.worker })).collect::<Vec<_>>()
        }),
    })
}

pub(super) fn fences(fences: &Fences) -> Option<Finding> {
    let highest = fences.highest.filter(|highest| *highest > fences.given)?;
    // Far above anything that was given and not kept.
    let safe = highest.saturating_add(1 << 32);
    Some(Finding {
        what: format!(
            "A job carries fence {highest}, but the sequence stands at {}: fences would be given twice, and a stale \
             worker's writes be taken.",
            fences.given
        ),
        advice: format!(
            "This is what a failover or a restore leaves behind. Stop every worker, run `select setval('lease_fence', \
             {safe})`, and start them again."
        ),
        facts: json!({ "highest": highest, "sequence": fences.given }),
    })
}

/// All of them in one finding: a storm that kills workers leaves hundreds, and their number says more than their names.
pub(super) fn silent(workers: &[Worker]) -> Option<Finding> {
    let mut silent: Vec<&Worker> = workers.iter().filter(|it| it.unheard_s > SILENT_AFTER.as_secs_f64()).collect();
    silent.sort_by(|one, other| one.unheard_s.total_cmp(&other.unheard_s));
    let newest = &silent[..silent.len().min(SILENT_NAMED)];
    let named: Vec<String> = newest
        .iter()
        .map(|it| format!("{} (pid {} on {}, last heard {} ago)", it.id, it.pid, it.host, span(it.unheard_s)))
        .collect();
    let what = match silent.len() {
        0 => return None,
        1 => format!("A worker fell silent and never said that it stopped: {}.", named.join(", ")),
        n if n == named.len() => {
            format!("{n} workers fell silent and never said that they stopped: {}.", named.join(", "))
        }
        n => format!("{n} workers fell silent and never said that they stopped; the newest: {}.", named.join(", ")),
    };
    let fact = |it: &&Worker| json!({ "worker": it.id, "host": it.host, "pid": it.pid, "unheard_seconds": it.unheard_s.round() });
    Some(Finding {
        what,
        advice:
            "Look at their logs, and whether they can reach the database; start again what is missed. Their jobs are \
                 rescued without them."
                .to_owned(),
        facts: json!({ "workers": silent.len(), "newest": newest.iter().map(fact).collect::<Vec<_>>() }),
    })
}

pub(super) fn skewed(workers: &[Worker]) -> Vec<Finding> {
    let bound_ms = i64::try_from(SKEW.as_millis()).unwrap_or(i64::MAX);
    let live = workers.iter().filter(|it| it.unheard_s <= SILENT_AFTER.as_secs_f64());
    let skewed = live.filter_map(|it| Some((it, it.skew_ms.filter(|ms| ms.saturating_abs() > bound_ms)?)));
    // A machine has one clock, however many workers: the one that is furthest off tells of it.
    let mut hosts: BTreeMap<&str, (&Worker, i64)> = BTreeMap::new();
    for (it, ms) in skewed {
        let worst = hosts.entry(&it.host).or_insert((it, ms));
        if ms.saturating_abs() > worst.1.saturating_abs() {
            *worst = (it, ms);
        }
    }
    let finding = |(it, ms): (&Worker, i64)| Finding {
        what: format!(
            "The clock of {} (worker {}) is {} ms {} the database's.",
            it.host,
            it.id,
            ms.saturating_abs(),
            if ms > 0 { "ahead of" } else { "behind" }
        ),
        advice:
            "Start time synchronisation there, or on the database's machine. Leases do not depend on it; logs, TLS \
                 and signed requests to the object store do."
                .to_owned(),
        facts: json!({ "worker": it.id, "host": it.host, "skew_ms": ms }),
    };
    hosts.into_values().map(finding).collect()
}

pub(super) fn unserved(due: &[Due]) -> Vec<Finding> {
    let unserved = due.iter().filter(|it| !it.served && it.due_for_s > UNSERVED_FOR.as_secs_f64());
    let finding = |it: &Due| Finding {
        what: format!(
            "Jobs of kind {} on queue {} have been due for {}, and no live worker serves them.",
            it.kind,
            it.queue,
            span(it.due_for_s)
        ),
        advice: format!("Start a worker that runs the kind, with `leasehold worker --queues {}`.", it.queue),
        facts: json!({ "queue": it.queue, "kind": it.kind, "due_for_seconds": it.due_for_s.round() }),
    };
    unserved.map(finding).collect()
}

pub(super) fn partitions(partitions: &Partitions) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !(partitions.today && partitions.tomorrow) {
        findings.push(Finding {
            what: "Finished jobs of today or tomorrow have no partition of their own.".to_owned(),
            advice: "Workers make them a week ahead: see that one runs, and whether its log says that others hold the \
                     lock."
                .to_owned(),
            facts: json!({ "today": partitions.today, "tomorrow": partitions.tomorrow }),
        });
    }
    if partitions.without_day > 0 {
        let at_least = if partitions.without_day >= 1000 { "at least " } else { "" };
        findings.push(Finding {
            what: format!(
                "{at_least}{} finished jobs lie in jobs_finished_default: their days had no partition when they ended.",
                partitions.without_day
            ),
            advice:
                "Nothing is lost: they are found as all others. They leave by pruning, row by row; see that a worker \
                     runs, so that the coming days have their partitions."
                    .to_owned(),
            facts: json!({ "rows": partitions.without_day }),
        });
    }
    findings
}

pub(super) fn late(late: Option<&Late>) -> Option<Finding> {
    let late = late.filter(|late| late.late_for_s > LATE_FOR.as_secs_f64())?;
    Some(Finding {
        what: format!(
            "The finished jobs of {} are to leave since {} UTC ({}), and at each try somebody has their table open.",
            late.day,
            late.since.format("%Y-%m-%d %H:%M"),
            span(late.late_for_s)
        ),
        advice: "Workers ask for the table for a twentieth of a second and no longer, since settling waits meanwhile. See \
                 `long_transactions` for who holds it, or `select pid, application_name from pg_stat_activity join pg_locks \
                 using (pid) where relation = 'jobs_finished'::regclass`; let that pause for a minute."
            .to_owned(),
        facts: json!({ "day": late.day, "since": late.since, "late_for_seconds": late.late_for_s.round() }),
    })
}

/// A time in words, to the unit that matters.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(unheard_s: f64, skew_ms: Option<i64>) -> Worker {
        Worker { id: WorkerId(uuid::Uuid::nil()), host: "box".to_owned(), pid: 7, unheard_s, skew_ms }
    }

    #[test]
    fn a_fence_is_wrong_only_above_what_the_sequence_gave() {
        for (highest, given, wrong) in [(Some(8), 7, true), (Some(7), 7, false), (None, 0, false)] {
            assert_eq!(fences(&Fences { highest, given }).is_some(), wrong, "{highest:?} of {given}");
        }
    }

    #[test]
    fn a_clock_is_told_from_two_seconds_on_in_its_direction_and_of_live_workers_alone() {
        assert!(skewed(&[worker(1.0, Some(2000)), worker(1.0, None), worker(31.0, Some(9000))]).is_empty());
        assert!(skewed(&[worker(1.0, Some(2001))])[0].what.contains("2001 ms ahead of"));
        assert!(skewed(&[worker(1.0, Some(-2001))])[0].what.contains("2001 ms behind"));
    }

    #[test]
    fn silent_workers_are_one_finding_with_their_number_and_the_newest_few() {
        assert_eq!(silent(&[worker(30.0, None)]), None);
        assert!(silent(&[worker(30.1, None)]).is_some_and(|it| it.what.starts_with("A worker fell silent")));
        let many: Vec<Worker> = (31..531).rev().map(|s| worker(f64::from(s), None)).collect();
        let finding = silent(&many).expect("they are silent");
        assert!(finding.what.starts_with("500 workers fell silent"), "{}", finding.what);
        assert_eq!(finding.facts["workers"], 500);
        let newest = finding.facts["newest"].as_array().expect("a list");
        let unheard: Vec<_> = newest.iter().map(|it| it["unheard_seconds"].as_f64()).collect();
        assert_eq!(unheard, [31.0, 32.0, 33.0, 34.0, 35.0].map(Some));
        assert_eq!(finding.what.matches("last heard").count(), 5);
    }

    #[test]
    fn a_machines_clock_is_told_once_by_the_worker_that_is_furthest_off() {
        let told = skewed(&[worker(1.0, Some(2500)), worker(1.0, Some(-3000)), worker(1.0, Some(2600))]);
        assert_eq!(told.len(), 1);
        assert!(told[0].what.contains("3000 ms behind"), "{}", told[0].what);
    }

    #[test]
    fn work_is_unserved_only_when_it_waited_for_a_while() {
        let due = |due_for_s, served| Due { queue: "mail".into(), kind: "mail.send".into(), due_for_s, served };
        assert!(unserved(&[due(30.0, false), due(900.0, true)]).is_empty());
        assert!(unserved(&[due(31.0, false)])[0].advice.contains("--queues mail"));
    }

    #[test]
    fn times_are_told_in_the_unit_that_matters() {
        assert_eq!([90.0, 600.0, 7200.0, 864_000.0].map(span), ["90 s", "10 min", "2 h", "10 days"]);
    }
}

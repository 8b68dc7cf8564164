//! One timeline of a job: its leases, what was recorded under each, what was refused, how it ended. Newest first.

use domain::clock::Timestamp;
use domain::lease::Fence;
use domain::queue::{Job, JobState, Step};

use super::Story;
use super::error_line;
use super::words::{self, Age, Now};

/// Happenings that the page shows; what is older is told as a number.
const MOST: usize = 50;
/// Steps shown under one lease: the newest.
const STEPS: usize = 20;

/// One happening.
pub(super) struct Happening {
    pub(super) at: Age,
    pub(super) tone: &'static str,
    pub(super) glyph: &'static str,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) more: Option<More>,
    pub(super) fence: String,
    pub(super) sub: String,
    moment: Timestamp,
}

/// What is folded below a happening.
pub(super) struct More {
    pub(super) title: String,
    pub(super) text: String,
}

impl Happening {
    fn new(now: Now, moment: Timestamp, face: (&'static str, &'static str), title: impl Into<String>) -> Self {
        Self {
            at: now.clock(moment),
            tone: face.0,
            glyph: face.1,
            title: title.into(),
            text: String::new(),
            more: None,
            fence: String::new(),
            sub: String::new(),
            moment,
        }
    }

    fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    fn under(mut self, fence: Fence, worker: Option<impl ToString>) -> Self {
        self.fence = fence.to_string();
        self.sub = worker.map_or_else(String::new, |id| format!("worker …{}", words::tail(&id.to_string())));
        self
    }
}

/// What happened, newest first, and a word on what is left out.
pub(super) fn of(story: &Story, now: Now) -> (Vec<Happening>, String) {
    let job = &story.job;
    let mut all =
        vec![Happening::new(now, job.created_at, ("idle", "enq"), "Enqueued").text(format!("on queue {}", job.queue))];
    all.extend(story.attempts.iter().map(|attempt| ended(attempt, &story.steps, now)));
    all.extend(lease(story, now));
    all.extend(story.refused.iter().map(|write| {
        let current = write.fence_current.map_or_else(String::new, |fence| format!(", current is {fence}"));
        let late = write.late_ms.map_or_else(String::new, |ms| format!("; {} late", words::millis(ms)));
        let title = format!("Refused: {}", write.operation.replace('_', " "));
        Happening::new(now, write.at, ("bad", "refused"), title)
            .text(format!("Nothing was changed. It held {}{current}{late}.", write.fence_held))
            .under(write.fence_held, write.worker)
    }));
    all.extend(end(job, now));
    // What happens in one instant keeps the order of a life: enqueued, leased, ended.
    all.reverse();
    all.sort_by_key(|happening| std::cmp::Reverse(happening.moment));
    let folded = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    (all, if folded == 0 { String::new() } else { format!("{folded} older happenings are not shown.") })
}

fn ended(attempt: &domain::queue::Attempt, steps: &[Step], now: Now) -> Happening {
    let face = match attempt.outcome.as_str() {
        "failed" => ("bad", "disc"),
        "interrupted" => ("bad", "lost"),
        "snoozed" => ("run", "snooze"),
        _ => ("idle", "abort"),
    };
    let title = match attempt.outcome.as_str() {
        "failed" => format!("Attempt {} failed", attempt.attempt),
        "interrupted" => "Lease lost".to_owned(),
        "snoozed" => "Snoozed".to_owned(),
        "released" => "Handed back before it began".to_owned(),
        other => other.to_owned(),
    };
    let lasted = words::millis((attempt.ended_at - attempt.started_at).num_milliseconds());
    let text = match (&attempt.error, attempt.passes) {
        (Some(error), _) => error_line(error),
        (None, passes @ 2..) => format!("{passes} passes in {lasted}"),
        (None, _) => format!("after {lasted}"),
    };
    let mut happening =
        Happening::new(now, attempt.ended_at, face, title).text(text).under(attempt.last_fence, attempt.worker);
    happening.more = steps_of(steps, attempt.first_fence, attempt.last_fence);
    happening
}

/// The newest lease: the one that runs, or the one under which the job ended.
fn lease(story: &Story, now: Now) -> Option<Happening> {
    let job = &story.job;
    let (moment, title, text) = match (&job.lease, job.state.is_final()) {
        (Some(lease), _) => (lease.leased_at, format!("Attempt {} runs", job.attempt), String::new()),
        // Only a lease that the job ended under is not among the ended attempts.
        (None, true) if job.fence.0 != 0 && !story.attempts.iter().any(|a| a.last_fence == job.fence) => {
            (job.finished_at?, format!("Attempt {} ended", job.attempt), "under this lease".to_owned())
        }
        (None, _) => return None,
    };
    let mut happening = Happening::new(now, moment, ("run", "run"), title).text(text).under(job.fence, job.worker);
    happening.more = steps_of(&story.steps, job.fence, job.fence);
    Some(happening)
}

fn end(job: &Job, now: Now) -> Option<Happening> {
    let at = job.finished_at?;
    let (face, title) = match job.state {
        JobState::Completed => (("ok", "ok"), "Completed"),
        JobState::Cancelled => (("idle", "cancel"), "Cancelled"),
        JobState::Discarded => (("bad", "disc"), "Discarded"),
        JobState::Scheduled | JobState::Available | JobState::Running | JobState::Retryable => return None,
    };
    let text = match job.state {
        JobState::Completed => String::new(),
        JobState::Cancelled
        | JobState::Discarded
        | JobState::Scheduled
        | JobState::Available
        | JobState::Running
        | JobState::Retryable => job.last_error.as_ref().map_or_else(String::new, error_line),
    };
    Some(Happening::new(now, at, face, title).text(text))
}

/// The steps that were recorded under these fences, folded.
fn steps_of(steps: &[Step], first: Fence, last: Fence) -> Option<More> {
    let under: Vec<&Step> = steps.iter().filter(|step| (first..=last).contains(&step.fence)).collect();
    if under.is_empty() {
        return None;
    }
    let shown = under.iter().rev().take(STEPS).map(|step| {
        let evidence = if step.evidence.as_object().is_some_and(|fields| fields.is_empty()) {
            String::new()
        } else {
            format!(" {}", step.evidence)
        };
        format!("{} {}{evidence}", words::clock(step.at), step.name)
    });
    let text = shown.collect::<Vec<_>>().join("\n");
    let title = match under.len() {
        1 => "1 step".to_owned(),
        n @ ..=STEPS => format!("{n} steps, newest first"),
        // How many more there are is not known: the page looks at the newest of the job only.
        _ => format!("the newest {STEPS} steps"),
    };
    Some(More { title, text })
}

#[cfg(test)]
mod tests {
    use domain::ids::{JobId, Kind, QueueName};
    use domain::queue::Attempt;
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    fn story() -> Story {
        let job = Job {
            id: JobId::generate(),
            kind: Kind::new("a.b").expect("a valid kind"),
            queue: QueueName::new("q").expect("a valid queue"),
            state: JobState::Completed,
            priority: 0,
            run_at: at("2026-03-14T03:00:00Z"),
            created_at: at("2026-03-14T03:00:00Z"),
            finished_at: Some(at("2026-03-14T03:05:00Z")),
            args: json!({}),
            attempt: 2,
            max_attempts: 20,
            interruptions: 0,
            revision: 5,
            lease: None,
            fence: Fence(9),
            worker: None,
            cancel_requested: false,
            progress: None,
            tags: Vec::new(),
            unique_key: None,
            concurrency_key: None,
            last_error: None,
            result: None,
            unserved: false,
        };
        let failed = Attempt {
            attempt: 1,
            outcome: "failed".into(),
            first_fence: Fence(7),
            last_fence: Fence(7),
            worker: None,
            started_at: at("2026-03-14T03:01:00Z"),
            ended_at: at("2026-03-14T03:02:00Z"),
            passes: 1,
            error: Some(json!({"code": "x", "message": "no"})),
        };
        Story { job, attempts: vec![failed], steps: Vec::new(), refused: Vec::new() }
    }

    #[test]
    fn a_life_is_told_newest_first_and_each_lease_once() {
        let (told, folded) = of(&story(), Now(at("2026-03-14T03:07:42Z")));
        let titles: Vec<&str> = told.iter().map(|h| h.title.as_str()).collect();
        assert_eq!(titles, ["Completed", "Attempt 2 ended", "Attempt 1 failed", "Enqueued"]);
        assert_eq!(told[2].text, "no");
        assert_eq!(folded, "");
    }

    #[test]
    fn steps_stand_under_the_lease_that_wrote_them() {
        let mut story = story();
        let step = |fence, name: &str| Step {
            seq: 1,
            fence: Fence(fence),
            name: name.into(),
            cursor: json!(null),
            evidence: json!({}),
            at: at("2026-03-14T03:01:30Z"),
        };
        story.steps = vec![step(7, "list"), step(9, "copy")];
        let (told, _) = of(&story, Now(at("2026-03-14T03:07:42Z")));
        let under = |i: usize| told[i].more.as_ref().map(|m| m.text.clone()).unwrap_or_default();
        assert!(under(1).contains("copy") && !under(1).contains("list"), "{}", under(1));
        assert!(under(2).contains("list"), "{}", under(2));
    }
}

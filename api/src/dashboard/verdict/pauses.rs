//! Pauses: each is somebody's will, and easily forgotten, so it is told as long as it holds.

use domain::queue::{Pause, QueueView};

use super::{Row, Severity, due};

pub(super) fn queue(queue: &QueueView, pause: &Pause) -> Row {
    let name = &queue.name;
    let held = if queue.available > 0 { format!(": {}", due(queue)) } else { String::new() };
    Row {
        severity: Severity::Warning,
        title: format!("Queue {name} is paused by {}{held}.", by(pause)),
        text: format!("{} What runs goes on, and nothing else begins until someone resumes it.", said(pause)),
        since: Some(pause.paused_at),
        link: Some((format!("/queues/{name}"), "The queue".to_owned())),
    }
}

pub(super) fn kind(pause: &Pause) -> Row {
    Row {
        severity: Severity::Warning,
        title: format!("Kind {} is paused by {}.", pause.name, by(pause)),
        text: format!("{} What runs goes on, and no other begins until someone resumes it.", said(pause)),
        since: Some(pause.paused_at),
        link: Some(("/queues#kinds".to_owned(), "Paused kinds".to_owned())),
    }
}

fn by(pause: &Pause) -> &str {
    pause.paused_by_name.as_deref().unwrap_or("the program itself")
}

/// Why, as a sentence.
fn said(pause: &Pause) -> String {
    format!("{}.", pause.reason.trim_end_matches('.'))
}

//! `leasehold instance move --dry-run`

use std::time::{Duration, Instant};

use wire::{LookReport, MoveGate, MoveLook, MoveRehearsal, MoveRequest, PredictedFreeze};

use super::receipt::seconds;
use super::{Context, Named, moves};
use crate::client::Api;
use crate::exit::{self, Ending, Exit};
use crate::interrupt;
use crate::output::{details, size, table};

/// Pause between two looks at whether the box has told.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the box may take: it lists two prefixes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tells what a move would meet, and waits for what the box finds. The exit code is that of the move: whether the door would
/// take it.
pub(super) async fn rehearse(context: &Context, api: &Api, of: &Named, request: &MoveRequest) -> anyhow::Result<Exit> {
    let mut told = api.call_about(&of.what(), |client| client.rehearse_move(&of.app, &of.host, request)).await?;
    // The gates are known at once; the box may be away for as long as one waits.
    if !context.output.is_json() {
        context.output.show(&told, gates)?;
    }
    if let Some(asked) = told.look.clone() {
        told.look = Some(wait(api, of, asked).await?);
    }
    context.output.show(&told, findings)?;
    let refused = told.gates.iter().find_map(|gate| gate.code.as_deref());
    if let Some(code) = refused {
        return Ok(exit::code_of_refusal(code));
    }
    if let Some(look) = told.look.as_ref().filter(|look| look.state == "waiting") {
        let message = format!(
            "the box has not told within {} s what it finds: `leasehold job why {}`",
            PATIENCE.as_secs(),
            look.job_id
        );
        return Err(Ending { exit: Exit::Unavailable, message }.into());
    }
    Ok(Exit::Ok)
}

/// The look when the box has told, or when it has had its time.
async fn wait(api: &Api, of: &Named, asked: MoveLook) -> anyhow::Result<MoveLook> {
    let interrupted = interrupt::first()?;
    let began = Instant::now();
    let mut look = asked;
    while look.state == "waiting" && began.elapsed() < PATIENCE {
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = interrupted.cancelled() => {
                let message = "no longer waited for; nothing was begun".to_owned();
                return Err(Ending { exit: Exit::Interrupted, message }.into());
            }
        }
        let id = look.job_id;
        look = api.call_about(&format!("look {id}"), |client| client.move_look(&of.app, &of.host, id)).await?;
    }
    Ok(look)
}

/// What the door says.
fn gates(told: &MoveRehearsal) -> String {
    let would = if told.would_begin { "would begin" } else { "would be refused" };
    let gates = table(&["gate", "says", "code", "why"], told.gates.iter().map(gate));
    format!("{}: a move from {} to {} {would}; nothing was begun\n\n{gates}\n", told.host, told.from, told.to)
}

/// What the box found, the predicted freeze, and who could land it.
fn findings(told: &MoveRehearsal) -> String {
    let mut lines = match &told.look {
        None => vec![("look", "no box serves it that could list its replica, or the region is not known".to_owned())],
        Some(look) => match (&look.report, &look.error) {
            (Some(report), _) => found(report),
            (None, Some(why)) => vec![("look", format!("failed: {why}"))],
            (None, None) => vec![("look", "the box has not told yet".to_owned())],
        },
    };
    lines.push((
        "predicted freeze",
        told.predicted_freeze
            .as_ref()
            .map_or_else(|| format!("no cut between {} and {} predicts it yet", told.from, told.to), predicted),
    ));
    if let Some(budget) = told.freeze_budget {
        let fits = match told.within_budget {
            Some(true) => "it fits",
            Some(false) => "it does not fit: a cut would be refused, and `--cut auto` would wait",
            None => "nothing to hold it against",
        };
        lines.push(("freeze budget", format!("{budget} s: {fits}")));
    }
    let mut text = format!("{}\n\n", details(&lines));
    if told.boxes.is_empty() {
        text.push_str(&format!("no box of {} is known", told.to));
        return text;
    }
    text.push_str(&table(
        &["box", "could land it", "heard", "capabilities"],
        told.boxes.iter().map(|it| {
            let heard = if it.live { "lately" } else { "not lately" };
            let capabilities =
                it.capabilities.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
            let could = if it.could_land { "yes" } else { "no" };
            [it.identity.clone(), could.to_owned(), heard.to_owned(), capabilities.join(", ")]
        }),
    ));
    text
}

fn gate(it: &MoveGate) -> [String; 4] {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [it.gate.clone(), it.verdict.clone(), or_dash(&it.code), or_dash(&it.message)]
}

fn found(report: &LookReport) -> Vec<(&'static str, String)> {
    let amount = |it: wire::LookAmount| format!("{} objects, {}", it.keys, size(it.bytes));
    let or_unknown = |it: Option<wire::LookAmount>| it.map_or_else(|| "not known".to_owned(), amount);
    let txid = report.newest_txid.map_or_else(String::new, |txid| format!(", newest transaction {txid:016x}"));
    let mut lines = vec![
        ("replica", format!("{}{txid}", or_unknown(report.source))),
        ("staged already", or_unknown(report.staged)),
    ];
    if let Some(round) = report.first_round {
        lines.push((
            "first round",
            format!("copies {}, deletes {}, about {} requests", amount(round.copies), round.deletes, round.requests),
        ));
    }
    if let Some(obstacle) = &report.obstacle {
        lines.push(("held up by", moves::obstacle(obstacle)));
    }
    lines.push((
        "looked",
        format!("box {}, {} requests in {}", report.identity, report.requests, seconds(millis(report.elapsed_ms))),
    ));
    lines
}

fn predicted(it: &PredictedFreeze) -> String {
    let parts = it.parts.iter().map(|part| format!("{} {}", part.step.replace('_', " "), seconds(part.took_ms)));
    let cuts = if it.cuts == 1 { "the newest cut".to_owned() } else { format!("the median of {} cuts", it.cuts) };
    format!("{}, {cuts}: {}", seconds(it.freeze_ms), parts.collect::<Vec<_>>().join(", "))
}

fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dry_run_shows_every_gate_what_the_box_found_the_freeze_in_its_parts_and_the_boxes() {
        let told: MoveRehearsal = serde_json::from_value(json!({
            "app": "acme", "host": "a.b", "from": "eu", "to": "uk", "would_begin": false,
            "gates": [{"gate": "kind", "verdict": "passed", "code": null, "message": null},
                {"gate": "region_armed", "verdict": "refused", "code": "region_unarmed", "message": "region uk is not armed"}],
            "predicted_freeze": {"freeze_ms": 9500, "cuts": 3, "as_of": uuid::Uuid::nil(),
                "parts": [{"step": "stop_child", "took_ms": 500}, {"step": "between", "took_ms": 9000}]},
            "freeze_budget": 9, "within_budget": false,
            "boxes": [{"node_id": uuid::Uuid::nil(), "identity": "uk-1", "could_land": true, "live": true,
                "seen_at": "2026-03-14T03:00:00Z", "capabilities": {"exec": true}}],
            "look": {"job_id": uuid::Uuid::nil(), "to": "uk", "state": "told", "error": null, "report": {
                "node_id": uuid::Uuid::nil(), "identity": "eu-1", "source": {"keys": 5, "bytes": 2048}, "newest_txid": 14,
                "staged": {"keys": 0, "bytes": 0},
                "first_round": {"copies": {"keys": 5, "bytes": 2048}, "deletes": 0, "requests": 9},
                "obstacle": null, "requests": 2, "elapsed_ms": 70}},
        }))
        .expect("a dry run");
        let text = format!("{}{}", gates(&told), findings(&told));
        for words in [
            "a.b: a move from eu to uk would be refused; nothing was begun",
            "region uk is not armed",
            "5 objects, 2.0 KiB, newest transaction 000000000000000e",
            "copies 5 objects, 2.0 KiB, deletes 0, about 9 requests",
            "9.5 s, the median of 3 cuts: stop child 0.5 s, between 9.0 s",
            "9 s: it does not fit",
            "exec true",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

//! The journal of the move, as the API tells it: what each round did, on the database's clock.

use anyhow::Context as _;
use uuid::Uuid;
use wire::{MoveStep, MoveView, RoundNumbers};

use crate::output::size;

/// Most rows that are read at once; the demo's move has a handful.
const PAGE: u16 = 200;

/// A reader of one move's journal that tells each ended round once.
pub(super) struct Journal {
    client: wire::Client,
    id: Uuid,
    told: i64,
}

impl Journal {
    /// The journal of the host's open move.
    pub(super) async fn of_host(client: &wire::Client, app: &str, host: &str) -> anyhow::Result<Self> {
        let moves = client.moves_of(app, host).await.context("list the instance's moves")?;
        let open = moves.items.into_iter().find(|it| it.finished_at.is_none());
        let id = open.context("the move that was just accepted is not open")?.id;
        Ok(Self { client: client.clone(), id, told: 0 })
    }

    /// One line for each round that ended since the last call, oldest first.
    pub(super) async fn news(&mut self) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        // Rounds run one at a time: those behind one that has not ended are not there yet.
        for step in self.steps().await?.iter().filter(|step| step.step == "round" && step.ended_at.is_some()) {
            if step.id <= self.told {
                continue;
            }
            self.told = step.id;
            lines.push(line(step, &numbers(step)));
        }
        Ok(lines)
    }

    /// The move as it is.
    pub(super) async fn read(&self) -> anyhow::Result<MoveView> {
        self.client.get_move(self.id).await.context("read the move")
    }

    /// The newest step, for a line that is replaced.
    pub(super) async fn step(&self) -> anyhow::Result<String> {
        let newest =
            self.client.move_steps(self.id, Some(1), None).await.context("read the move's journal")?.items.pop();
        Ok(newest.map_or_else(String::new, |it| it.step))
    }

    /// What holds the move up, for a message.
    pub(super) async fn obstacle(&self) -> anyhow::Result<String> {
        let obstacle = self.client.get_move(self.id).await.context("read the move")?.obstacle;
        Ok(obstacle.map_or_else(|| "no round has ended".to_owned(), |it| format!("{} ({})", it.message, it.code)))
    }

    /// Every row, oldest first.
    pub(super) async fn steps(&self) -> anyhow::Result<Vec<MoveStep>> {
        let page = self.client.move_steps(self.id, Some(PAGE), None).await.context("read the move's journal")?;
        let mut steps = page.items;
        steps.reverse();
        Ok(steps)
    }
}

fn numbers(step: &MoveStep) -> RoundNumbers {
    serde_json::from_value(step.evidence["numbers"].clone()).unwrap_or_default()
}

fn line(step: &MoveStep, numbers: &RoundNumbers) -> String {
    let left = numbers.differ_copies + numbers.differ_deletes;
    format!(
        "round {}: copied {} objects ({}) in {}, deleted {}; {left} differences left, {} requests: {}",
        step.round.unwrap_or_default(),
        numbers.copied,
        size(numbers.copied_bytes),
        iterations(numbers.iterations),
        numbers.deleted,
        numbers.requests,
        step.outcome.as_deref().unwrap_or("?"),
    )
}

fn iterations(number: u32) -> String {
    if number == 1 { "1 iteration".to_owned() } else { format!("{number} iterations") }
}

//! Other programs that keep a prefix's copy by copies on the server, over the same objects in the same minutes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sandbox::exec::Spawn;
use sandbox::seaweed::Weed;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(600);

/// A program that is measured beside ours.
#[derive(Debug, Clone)]
pub enum Peer {
    /// `s5cmd sync --delete` (<https://github.com/peak/s5cmd>).
    S5cmd(PathBuf),
    /// `rclone sync` (<https://rclone.org>), with the settings that its S3 page gives for many small objects.
    Rclone(PathBuf),
}

impl Peer {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::S5cmd(_) => "s5cmd",
            Self::Rclone(_) => "rclone",
        }
    }

    /// Makes the target equal to the source once, and prints what that cost.
    ///
    /// # Errors
    /// The program's words.
    pub async fn run(&self, what: &str, weed: &Weed, source: &str, target: &str) -> anyhow::Result<()> {
        let admin = weed.admin();
        let spawn = match self {
            Self::S5cmd(program) => Spawn::new(program)
                .args(["--endpoint-url", &weed.endpoint(), "--log", "error", "sync", "--delete"])
                .args([format!("s3://{source}/*"), format!("s3://{target}/")])
                .env("AWS_ACCESS_KEY_ID", &admin.access_key)
                .env("AWS_SECRET_ACCESS_KEY", &admin.secret_key)
                .env("AWS_REGION", "us-east-1"),
            Self::Rclone(program) => Spawn::new(program)
                .args(["sync", &format!("weed:{source}"), &format!("weed:{target}")])
                .args(["--fast-list", "--transfers", "16", "--checkers", "16", "--size-only=false", "--config", ""])
                .env("RCLONE_CONFIG_WEED_TYPE", "s3")
                .env("RCLONE_CONFIG_WEED_PROVIDER", "Other")
                .env("RCLONE_CONFIG_WEED_ENDPOINT", weed.endpoint())
                .env("RCLONE_CONFIG_WEED_ACCESS_KEY_ID", &admin.access_key)
                .env("RCLONE_CONFIG_WEED_SECRET_ACCESS_KEY", &admin.secret_key)
                .env("RCLONE_CONFIG_WEED_REGION", "us-east-1"),
        };
        let (before, began) = (ended_children_cpu()?, Instant::now());
        spawn.run(LIMIT).await.and_then(sandbox::exec::Finished::success).with_context(|| self.name())?;
        let (elapsed, cpu) = (began.elapsed(), ended_children_cpu()?.saturating_sub(before));
        println!(
            "{what:<16} {:<7} {:>6.3} s, its CPU {:>5.3} s",
            self.name(),
            elapsed.as_secs_f64(),
            cpu.as_secs_f64()
        );
        Ok(())
    }
}

/// CPU time of the children that have ended, user and system, to a hundredth of a second.
fn ended_children_cpu() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("no name in stat")?.1.split_whitespace().collect();
    // Fields 16 and 17 of the whole line, which counts from 1 and has two before these.
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("no ticks in stat");
    Ok(Duration::from_millis((ticks(13)? + ticks(14)?) * 10))
}

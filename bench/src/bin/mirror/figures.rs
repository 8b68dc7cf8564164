//! What one pass cost.

use std::time::Duration;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use workers::mirror::PassReport;
use workers::objects::Op;

/// CPU time of this process, user and system, all threads.
pub fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The largest resident memory since [`forget_peak`], MiB.
pub fn peak_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("read VmHWM")?;
    Ok(kib / 1024.0)
}

/// Begins the peak anew.
pub fn forget_peak() -> anyhow::Result<()> {
    std::fs::write("/proc/self/clear_refs", "5").context("reset the memory peak")
}

/// One line: times, memory, requests.
pub fn line(what: &str, report: &PassReport, first_round: Duration, cpu: Duration) -> anyhow::Result<String> {
    let requests: Vec<String> = Op::ALL
        .into_iter()
        .filter(|op| report.requests.of(*op) > 0)
        .map(|op| format!("{op} {}", report.requests.of(op)))
        .collect();
    Ok(format!(
        "{what:<16} pass {:>6.3} s, first round {:>6.3} s, our CPU {:>5.3} s, peak {:>5.1} MiB, copied {}, deleted {}; {}",
        report.elapsed.as_secs_f64(),
        first_round.as_secs_f64(),
        cpu.as_secs_f64(),
        peak_mib()?,
        report.copied,
        report.deleted,
        requests.join(", "),
    ))
}

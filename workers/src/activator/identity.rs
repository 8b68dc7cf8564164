//! Which process a record means: its number alone says little, since numbers are given again.
//!
//! A process is known by its number, the moment of its start (field 22 of `/proc/<pid>/stat`, in ticks since boot) and
//! the boot. Its end is proven when it is gone (or only a zombie is left for its parent to reap) and nothing lives in
//! the process group and the session that it led.

use std::collections::BTreeSet;
use std::io;

use serde::{Deserialize, Serialize};

/// One process of one boot of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started_ticks: u64,
    /// The boot.
    pub boot_id: String,
}

/// What `/proc/<pid>/stat` says, as far as it matters here.
struct Stat {
    state: u8,
    group: u32,
    session: u32,
    started_ticks: u64,
}

impl Stat {
    /// `None` where there is no such process.
    fn of(pid: u32) -> io::Result<Option<Self>> {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(text) => {
                let unreadable = || io::Error::other(format!("/proc/{pid}/stat is not as expected"));
                Self::parse(&text).ok_or_else(unreadable).map(Some)
            }
            // The second: it went while it was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        // The name stands in parentheses and may hold any character, also these.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// A zombie writes nothing any more.
    fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

impl Identity {
    /// The identity of this very process.
    ///
    /// # Errors
    /// Where `/proc` cannot be read.
    pub(super) fn own() -> io::Result<Self> {
        let pid = std::process::id();
        let stat = Stat::of(pid)?.ok_or_else(|| io::Error::other("this process is not in /proc"))?;
        Ok(Self { pid, started_ticks: stat.started_ticks, boot_id: boot_id()? })
    }

    /// Whether this very process lives.
    ///
    /// # Errors
    /// Where `/proc` cannot be read: then it is not known to be gone.
    pub fn lives(&self) -> io::Result<bool> {
        if self.boot_id != boot_id()? {
            return Ok(false);
        }
        Ok(Stat::of(self.pid)?.is_some_and(|stat| stat.started_ticks == self.started_ticks && stat.lives()))
    }

    /// Every living process of the group and the session that this process leads or led, itself included.
    ///
    /// # Errors
    /// Where `/proc` cannot be read: then nothing is known to be gone.
    pub fn living(&self) -> io::Result<BTreeSet<u32>> {
        let mut living = BTreeSet::new();
        if self.boot_id != boot_id()? {
            return Ok(living);
        }
        // The number is another process's now: the kernel gives none again while a group or session bears it.
        if Stat::of(self.pid)?.is_some_and(|stat| stat.started_ticks != self.started_ticks) {
            return Ok(living);
        }
        for entry in std::fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Some(stat) = Stat::of(pid)? else { continue };
            if stat.lives() && (stat.group == self.pid || stat.session == self.pid) {
                living.insert(pid);
            }
        }
        Ok(living)
    }
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_and_no_other_of_its_number_or_boot() {
        let own = Identity::own().unwrap();
        assert!(own.lives().unwrap());
        let other = Identity { started_ticks: own.started_ticks + 1, ..own.clone() };
        assert!(!other.lives().unwrap() && other.living().unwrap().is_empty(), "another process has the number now");
        let earlier = Identity { boot_id: "earlier".to_owned(), ..own };
        assert!(!earlier.lives().unwrap() && earlier.living().unwrap().is_empty(), "nothing outlives its boot");
    }

    #[test]
    fn a_stat_line_is_read_behind_a_name_of_any_characters() {
        let tail: Vec<String> = (6..=50).map(|field| field.to_string()).collect();
        let line = |state: &str| format!("7 (a) R (b) {state} 1 70 71 {}", tail[1..].join(" "));
        let stat = Stat::parse(&line("S")).unwrap();
        assert_eq!((stat.group, stat.session, stat.started_ticks), (70, 71, 22));
        assert!(stat.lives());
        assert!(!Stat::parse(&line("Z")).unwrap().lives(), "a zombie is gone");
        assert!(Stat::parse("7 (a").is_none());
    }
}

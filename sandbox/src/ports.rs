//! Free loopback ports.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// Below the kernel's range for outgoing connections (32768 and up), so that no client socket can
/// take a port between our look and the server's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// How many draws are tried before giving up.
const MAX_DRAWS: u32 = 2_000;

/// Ports handed out by this process; none is handed out twice, since two servers that start
/// together would otherwise see the same free port.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A loopback port that nobody listens on and that this process has not handed out before.
///
/// Another process may still take it first: whoever binds it must be ready to draw again.
///
/// # Errors
/// `AddrInUse` when no free port was found in a bounded number of draws.
pub fn free_port() -> io::Result<u16> {
    let mut guard = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let given = guard.get_or_insert_with(HashSet::new);
    for _ in 0..MAX_DRAWS {
        let port = fastrand::u16(RANGE);
        if !given.contains(&port) && is_free(port) {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port found"))
}

/// `count` distinct free ports.
///
/// # Errors
/// As [`free_port`].
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    (0..count).map(|_| free_port()).collect()
}

/// Whether a server could bind `port` on loopback now.
#[must_use]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_bindable() {
        let ports = free_ports(50).expect("free ports");
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 50);
        let _held: Vec<_> =
            ports.iter().map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).expect("bind")).collect();
        assert!(!is_free(ports[0]));
    }
}

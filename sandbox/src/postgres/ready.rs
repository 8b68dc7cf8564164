//! Readiness, asked in PostgreSQL's own protocol.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long one try may take: a server that accepts and says nothing is not ready.
const TRY_LIMIT: Duration = Duration::from_secs(2);
/// Protocol version 3.0.
const PROTOCOL: u32 = 196_608;
/// What says that nothing is asked.
const AUTHENTICATED: u32 = 0;
/// The longest message taken for an answer to a startup; real ones have some hundred bytes.
const MAX_MESSAGE: usize = 64 * 1024;

/// Whether the server on `port` begins sessions: asks for a password, or is ready for a query.
///
/// More than a port that accepts: during recovery the port is open, and sessions are refused.
pub(super) async fn answers_a_session(port: u16) -> bool {
    matches!(tokio::time::timeout(TRY_LIMIT, start_session(port)).await, Ok(Ok(true)))
}

async fn start_session(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(&startup_message()).await?;
    loop {
        let kind = stream.read_u8().await?;
        let length = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
        if !(4..=MAX_MESSAGE).contains(&length) {
            return Ok(false);
        }
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body).await?;
        match kind {
            // It asks for a password: sessions begin. During recovery it refuses before it asks.
            b'R' if body.first_chunk().is_some_and(|code| u32::from_be_bytes(*code) != AUTHENTICATED) => {
                return Ok(true);
            }
            b'Z' => {
                // Terminate: leaves no "unexpected EOF" line in the log.
                stream.write_all(&[b'X', 0, 0, 0, 4]).await?;
                return Ok(true);
            }
            b'E' => return Ok(false),
            _ => {}
        }
    }
}

fn startup_message() -> Vec<u8> {
    let mut body = PROTOCOL.to_be_bytes().to_vec();
    body.extend_from_slice(b"user\0postgres\0database\0postgres\0application_name\0readiness\0\0");
    let length = u32::try_from(body.len() + 4).expect("a startup message has less than 4 GiB");
    [length.to_be_bytes().to_vec(), body].concat()
}

//! A question to a daemon's control socket: HTTP over a Unix socket.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

/// The longest answer.
const LONGEST: usize = 64 * 1024;

/// The socket `name` of a folder by a path that always fits into a socket's address; good while the file is open.
pub(super) fn address(folder: &std::fs::File, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into()
}

/// The body of the answer to `GET path`.
///
/// # Errors
/// Whatever kept it from being read; every answer but 200.
pub(super) async fn get(folder: &Path, socket: &str, path: &str) -> io::Result<Bytes> {
    let folder = std::fs::File::open(folder)?;
    let stream = UnixStream::connect(address(&folder, socket)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(path).header(header::HOST, "localhost").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.map_err(io::Error::other)?).await.map_err(io::Error::other)?;
    if answer.status() != StatusCode::OK {
        return Err(io::Error::other(format!("it answers {}", answer.status())));
    }
    Ok(Limited::new(answer.into_body(), LONGEST).collect().await.map_err(io::Error::other)?.to_bytes())
}

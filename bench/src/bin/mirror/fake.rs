//! A store that makes up its listings, and passes over it: memory must not grow with the keys.

use std::process::Stdio;

use anyhow::Context as _;
use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use workers::mirror::{JournalKey, KeyJournal, Mirror, MirrorError, Pair, Place, RecordError, Settings, Unobserved};
use workers::objects::{CopyLimits, Credentials, Endpoint, LimitSettings, ObjectStore, Tuning};

use crate::figures;

/// The bucket that lists nothing.
const EMPTY: &str = "empty";

/// Measures a round without a change and a survey in which every key is a difference, over `keys` made-up keys.
pub async fn measure(keys: u64) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    #[allow(clippy::disallowed_methods, reason = "it ends when its standard input does, so also when we are killed")]
    let mut server = tokio::process::Command::new(program)
        .arg("--serve-fake")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start the fake store")?;
    let out = server.stdout.take().context("the fake store's output")?;
    let url = BufReader::new(out).lines().next_line().await?.context("the fake store's address")?;
    let credentials =
        Credentials::Static { access_key: "k".to_owned(), secret_key: "s".to_owned().into(), session_token: None };
    let endpoint = Endpoint { url: Some(url), region: "us-east-1".to_owned(), force_path_style: true, credentials };
    let store = ObjectStore::open(&endpoint, Tuning::default(), CopyLimits::new(LimitSettings::default())).await;
    let place = |bucket: &str| Place { store: store.clone(), bucket: bucket.to_owned() };
    let pairs = vec![Pair::of_instance("bench.example")?];
    let mut mirror = Mirror { source: place("source"), target: place("target"), pairs, settings: Settings::default() };

    for keys in [1_000.min(keys), keys] {
        let journal = Formula { keys };
        mirror.source.bucket = format!("source-{keys}");
        mirror.target.bucket = format!("target-{keys}");
        figures::forget_peak()?;
        let before = figures::cpu();
        let report = mirror.pass(&journal, &Unobserved, &CancellationToken::new()).await?;
        let cpu = figures::cpu().saturating_sub(before);
        println!("{}", figures::line(&format!("{keys} equal keys"), &report, report.elapsed, cpu)?);
    }
    mirror.target.bucket = EMPTY.to_owned();
    figures::forget_peak()?;
    let (began, before) = (std::time::Instant::now(), figures::cpu());
    // The fake refuses to copy, so the pass ends when it has listed and spilled every key.
    let ended = mirror.pass(&Formula { keys: 0 }, &Unobserved, &CancellationToken::new()).await;
    anyhow::ensure!(matches!(ended, Err(MirrorError::Permanent { .. })), "the fake store refuses copies: {ended:?}");
    println!(
        "{keys} differences spilled: {:.3} s, our CPU {:.3} s, peak {:.1} MiB",
        began.elapsed().as_secs_f64(),
        figures::cpu().saturating_sub(before).as_secs_f64(),
        figures::peak_mib()?
    );
    Ok(())
}

/// The journal of a staging that holds every key.
struct Formula {
    keys: u64,
}

#[async_trait]
impl KeyJournal for Formula {
    async fn page(&self, _pair: usize, after: Option<&str>, limit: usize) -> Result<Vec<JournalKey>, RecordError> {
        let from = after.map_or(0, |key| index(key) + 1);
        let row = |n| JournalKey { key: name(n), src_etag: etag(n), size: n, copied_etag: etag(n) };
        Ok((from..self.keys).take(limit).map(row).collect())
    }

    async fn record(&self, _pair: usize, _copied: &[JournalKey]) -> Result<(), RecordError> {
        Ok(())
    }

    async fn forget(&self, _pair: usize, _keys: &[String]) -> Result<(), RecordError> {
        Ok(())
    }
}

fn name(n: u64) -> String {
    format!("0000/{:016x}-{:016x}.ltx", n + 1, n + 1)
}

fn index(name: &str) -> u64 {
    name.get(5..21).and_then(|digits| u64::from_str_radix(digits, 16).ok()).map_or(0, |txid| txid - 1)
}

fn etag(n: u64) -> String {
    format!("{n:032x}")
}

/// Serves listings of `source-<n>` and `target-<n>` (n keys each) and of `empty`; refuses everything else.
pub async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
    println!("http://{}", listener.local_addr()?);
    std::thread::spawn(|| {
        // Only its end is of interest: nobody writes.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        tokio::spawn(connection(stream));
    }
}

async fn connection(stream: TcpStream) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut request, mut line, mut body) = (String::new(), String::new(), 0_u64);
        if stream.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                body = length.trim().parse()?;
            }
        }
        tokio::io::copy(&mut (&mut stream).take(body), &mut tokio::io::sink()).await?;
        let (status, answer) = match listing(&request) {
            Some(listing) => ("200 OK", listing),
            None => ("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>".to_owned()),
        };
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.get_mut().write_all(head.as_bytes()).await?;
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}

fn listing(request: &str) -> Option<String> {
    use std::fmt::Write as _;
    let path = request.strip_prefix("GET /")?.split(' ').next()?;
    let (bucket, query) = path.split_once('?')?;
    let query = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let prefix = query("prefix")?.replace("%2F", "/");
    let keys: u64 = bucket.trim_end_matches('/').split_once('-').map_or(Some(0), |(_, keys)| keys.parse().ok())?;
    let from: u64 = query("continuation-token").map_or(Some(0), |token| token.parse().ok())?;
    let to = keys.min(from + 1_000);
    let mut xml = format!(
        "<ListBucketResult><KeyCount>{}</KeyCount><IsTruncated>{}</IsTruncated><NextContinuationToken>{to}</NextContinuationToken>",
        to - from,
        to < keys
    );
    for n in from..to {
        write!(
            xml,
            "<Contents><Key>{prefix}{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag>\
             <Size>{n}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            name(n),
            etag(n)
        )
        .ok()?;
    }
    xml.push_str("</ListBucketResult>");
    Some(xml)
}

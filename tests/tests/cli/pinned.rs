//! A machine that enrols through TLS speaks with the server of the named certificate, and with nobody else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use wire::Fingerprint;

use crate::support::{Cli, Ended, System};

/// Made for these tests alone, for the name fleet.example: `openssl req -x509 -newkey ec …`.
const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");

/// A proxy that ends TLS before an API, and counts the bytes that it was told.
struct Proxy {
    url: String,
    fingerprint: Fingerprint,
    told: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn proxy(behind: SocketAddr) -> Proxy {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
    let fingerprint = Fingerprint::of(&certificate);
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let told = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&told);
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (acceptor, counter) = (acceptor.clone(), Arc::clone(&counter));
            tokio::spawn(async move {
                let Ok(inside) = acceptor.accept(stream).await else { return };
                let Ok(mut outside) = TcpStream::connect(behind).await else { return };
                let (mut from, mut to) = tokio::io::split(inside);
                let (mut answers, mut requests) = outside.split();
                let asked = async {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut buffer).await {
                        counter.fetch_add(n, Ordering::SeqCst);
                        if requests.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = asked => {}
                    _ = tokio::io::copy(&mut answers, &mut to) => {}
                }
            });
        }
    });
    Proxy { url, fingerprint, told, task }
}

async fn enrol(machine: &Cli, proxy: &Proxy, file: &str, more: &[&str]) -> Ended {
    let folder = machine.folder().join("identity").display().to_string();
    let args = ["node", "enrol", "--token-file", file, "--identity-folder", &folder, "--api", &proxy.url];
    machine.run(&[&args[..], more].concat()).await
}

#[tokio::test]
async fn another_server_than_the_named_one_is_refused_before_the_secret_is_sent() {
    // E15.
    let system = System::start().await;
    let api = system.cli.variable("LEASEHOLD_URL").expect("set");
    let proxy = proxy(api.strip_prefix("http://").and_then(|it| it.parse().ok()).expect("an address")).await;
    let set = ["region", "set", "eu", "--name", "Europe", "--data-bucket", "data-eu", "--data-bucket-region", "eu-1"];
    assert_eq!(system.cli.run(&set).await.code, Some(0));
    let made = system.cli.json(&["node", "create", "box-1", "--region", "eu", "--hostname", "box-1.example"]).await;
    let issued = system.cli.run(&["node", "token", made["id"].as_str().expect("an id")]).await;
    let file = system.cli.folder().join("box.token");
    std::fs::write(&file, &issued.out).expect("write it");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
    let (file, machine) = (file.display().to_string(), Cli::new());

    let right = proxy.fingerprint.to_string();
    let wrong = format!("{}{}", if right.starts_with('0') { '1' } else { '0' }, &right[1..]);
    let ended = enrol(&machine, &proxy, &file, &["--fingerprint", &wrong]).await;
    assert_eq!(ended.code, Some(6), "{}", ended.said());
    let ended = enrol(&machine, &proxy, &file, &[]).await;
    assert_eq!(ended.code, Some(6), "nobody vouches for it: {}", ended.said());
    assert_eq!(proxy.told.load(Ordering::SeqCst), 0, "neither was told a byte");

    let ended = enrol(&machine, &proxy, &file, &["--fingerprint", &right]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.said());
    assert!(proxy.told.load(Ordering::SeqCst) > 0, "the proxy counts");
}

#[tokio::test]
async fn a_pinned_client_tells_nobody_but_the_named_server_a_byte() {
    // E15, within this process.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let proxy = proxy(silent.local_addr().expect("an address")).await;
    let second = std::time::Duration::from_secs(1);
    let client = wire::Client::pinned(&proxy.url, second, Fingerprint::of(b"another")).expect("a client");
    assert!(client.kinds().await.is_err());
    assert_eq!(proxy.told.load(Ordering::SeqCst), 0);
    let client = wire::Client::pinned(&proxy.url, second, proxy.fingerprint).expect("a client");
    assert!(client.kinds().await.is_err(), "who is behind the proxy says nothing");
    assert!(proxy.told.load(Ordering::SeqCst) > 0, "the proxy counts");
}

#[tokio::test]
async fn a_secret_is_not_sent_where_others_can_listen() {
    // E18, within this process: 192.0.2.1 is nobody's.
    let folder = tempfile::tempdir().expect("a folder");
    let second = std::time::Duration::from_secs(1);
    let client = wire::Client::with_timeout("http://192.0.2.1:7070", None, second).expect("a client");
    let secret = secrecy::SecretString::from("lhe_0");
    let refused = workers::node::enrolment::enrol(&client, folder.path(), &secret, None).await.expect_err("refused");
    assert!(matches!(refused, workers::node::enrolment::EnrolError::NotPrivate), "{refused:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "no key is made either");
}

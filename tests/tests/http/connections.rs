//! What a connection may do before anybody knows who it is.

use std::time::Duration;

use tests::api::{Server, Told};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.base.trim_start_matches("http://")).await.expect("the server takes the connection")
}

#[tokio::test]
async fn a_client_that_brings_no_request_is_sent_away_and_frees_its_place() {
    // One place: whoever holds it for ever keeps everybody else out.
    let config = api::Config { head_timeout: Duration::from_millis(300), max_connections: 1, ..Server::config() };
    let server = Server::start_with(config).await;
    // Nothing; the beginning of either protocol; HTTP/2's whole preface and no request.
    for said in ["", "PRI * HT", "GET /healthz HTTP/1.1\r\nhost: x", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut silent = connect(&server).await;
        silent.write_all(said.as_bytes()).await.expect("written");
        let mut told = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), silent.read_to_end(&mut told)).await;
        assert!(ended.is_ok(), "{said:?} holds its connection still");
    }
    assert_eq!(Told::by(server.bare("GET", "/healthz")).await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_streamed_is_refused_beyond_the_limit() {
    use secrecy::ExposeSecret as _;
    let server = Server::start().await;
    let mut stream = connect(&server).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        server.admin.expose_secret()
    );
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    let (mut from, mut to) = stream.split();
    let send = async {
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(64 * 1024));
        // The 17th chunk passes 1 MiB; no size was announced. A server that read on would be sent 64 MiB.
        for _ in 0..1024 {
            if to.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
    };
    let read = async {
        let mut told = vec![0; 12];
        from.read_exact(&mut told).await.expect("an answer");
        String::from_utf8(told).expect("text")
    };
    let answer = async {
        tokio::select! { told = read => told, () = async { send.await; std::future::pending().await } => String::new() }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), answer).await.expect("in time"), "HTTP/1.1 413");
}

#[tokio::test]
async fn an_address_that_is_no_text_is_answered_as_what_does_not_exist() {
    let server = Server::start().await;
    for (method, place) in [
        ("GET", "/v1/jobs/%FF"),
        ("POST", "/v1/jobs/%FF/cancel"),
        ("GET", "/v1/queues/%C3"),
        ("GET", "/v1/apps/%FF/instances/%FE"),
        ("PUT", "/v1/regions/%FF"),
        ("POST", "/v1/keys/%FF/revoke"),
        ("GET", "/docs/errors/%FF"),
        ("GET", "/jobs/%FF"),
    ] {
        let told = Told::by(server.request(method, place)).await;
        assert_eq!(told.problem(), (404, "not_found".to_owned()), "{method} {place}");
    }
    let told = Told::by(server.bare("GET", "/jobs/%FF").header("accept", "text/html")).await;
    assert_eq!((told.status, told.header("content-type")), (404, Some("text/html; charset=utf-8")));
}

#[tokio::test]
async fn requests_without_a_key_share_one_rate_and_keep_nobody_else_out() {
    let config = api::Config { rate_per_second: 1, rate_burst: 5, ..api::Config::default() };
    let server = Server::start_with(config).await;
    let mut refused = None;
    for _ in 0..20 {
        let told = Told::by(server.bare("GET", "/docs")).await;
        if told.status != 200 {
            refused = Some(told);
            break;
        }
    }
    let refused = refused.expect("twenty at once are more than the burst");
    assert_eq!(refused.problem(), (429, "rate_limited".to_owned()));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(Told::by(server.request("GET", "/v1/kinds")).await.status, 200, "a key has its own");
    for _ in 0..20 {
        assert_eq!(Told::by(server.bare("GET", "/healthz")).await.status, 200, "whoever watches is never refused");
    }
}

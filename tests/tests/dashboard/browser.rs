//! The pages in a real Chromium, driven through chromedriver: what only a browser can tell.

use std::path::PathBuf;
use std::time::Duration;

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::Signal;
use sandbox::exec::{Running, Spawn};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tests::api::Server;

use crate::support::{enqueue, job, lease, worker};

/// Longest wait for something to be seen.
const SEEN: Duration = Duration::from_secs(20);
const MISSING: &str =
    "these tests drive a real Chromium: apt-get update && apt-get install -y chromium chromium-driver";
/// Nothing of the browser's own goes to any network.
const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A browser with a fresh profile, and the driver that holds it.
struct Browser {
    page: Client,
    base: String,
    driver: Running,
    _folder: tempfile::TempDir,
}

/// A command that WebDriver itself does not know: Chromium's protocol, or its console.
#[derive(Debug)]
struct Beyond {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Beyond {
    fn endpoint(
        &self,
        base: &reqwest::Url,
        session: Option<&str>,
    ) -> Result<reqwest::Url, <reqwest::Url as std::str::FromStr>::Err> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &reqwest::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}

/// A program that Debian installs.
fn installed(name: &str) -> PathBuf {
    let path = PathBuf::from("/usr/bin").join(name);
    assert!(path.is_file(), "{name} is not there; {MISSING}");
    path
}

impl Browser {
    async fn start(server: &Server) -> Self {
        let chromium = installed("chromium");
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("driver.log");
        if let Some(launcher) = tests::server::launcher() {
            sandbox::exec::set_launcher(launcher);
        }
        let driver = Spawn::new(installed("chromedriver")).arg("--port=0").log_file(&log).start().expect(MISSING);
        let port = tests::wait::until("chromedriver listens", SEEN, || async {
            let told = std::fs::read_to_string(&log).ok()?;
            let rest = told.split_once("started successfully on port ")?.1;
            rest.split_once('.').map(|(port, _)| port.to_owned())
        })
        .await;
        let mut args: Vec<String> = FLAGS.map(str::to_owned).into();
        args.push(format!("--user-data-dir={}", folder.path().join("profile").display()));
        args.push("--window-size=1440,900".to_owned());
        let capabilities = json!({
            "goog:chromeOptions": { "args": args, "binary": chromium },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object was written above") };
        let page = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("chromedriver starts Chromium");
        Self { page, base: server.base.clone(), driver, _folder: folder }
    }

    async fn beyond(&self, path: &'static str, body: Value) -> Value {
        self.page.issue_cmd(Beyond { path, body }).await.expect("Chromium obeys")
    }

    async fn protocol(&self, command: &str, params: Value) {
        self.beyond("goog/cdp/execute", json!({ "cmd": command, "params": params })).await;
    }

    /// The size of the screen, and whether the system likes it dark.
    async fn screen(&self, width: u32, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.protocol("Emulation.setEmulatedMedia", json!({ "features": features })).await;
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.protocol("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Opens a page. A page left behind must hold no connection: after six of them the next one would never load.
    async fn go(&self, path: &str) {
        let opened = tokio::time::timeout(SEEN, self.page.goto(&format!("{}{path}", self.base))).await;
        opened.unwrap_or_else(|_| panic!("{path} does not load")).expect("the page loads");
    }

    async fn js(&self, script: &str) -> Value {
        self.page.execute(script, Vec::new()).await.expect("the script runs")
    }

    /// Waits until an expression of the page is true.
    async fn until(&self, what: &str, expression: &str) {
        tests::wait::until(what, SEEN, || async {
            (self.js(&format!("return Boolean({expression})")).await == json!(true)).then_some(())
        })
        .await;
    }

    async fn sign_in(&self, server: &Server) {
        self.go("/").await;
        let field = self.page.find(Locator::Css("#key")).await.expect("the form");
        field.send_keys(server.admin.expose_secret()).await.expect("typed");
        self.page.find(Locator::Css(".btn.main")).await.expect("a button").click().await.expect("pressed");
        self.until("the first page", "document.querySelector('.side .who')").await;
    }

    /// What the console complained of: scripts, the policy, missing files.
    async fn complaints(&self) -> Vec<String> {
        let log = self.beyond("se/log", json!({ "type": "browser" })).await;
        let lines = log.as_array().cloned().unwrap_or_default();
        let loud = lines.iter().filter(|line| line["level"] != "INFO" && line["level"] != "DEBUG");
        loud.map(|line| line["message"].to_string()).collect()
    }

    async fn end(self) {
        self.page.close().await.expect("Chromium ends");
        self.driver.stop(Signal::TERM, Duration::from_secs(5)).await;
    }
}

/// A deployment with something of everything: queues, workers, refused writes, a problem.
async fn busy() -> Server {
    let server = Server::start().await;
    let spec = worker(&server, &["busy", "node.019a97da-0af1-7d9e-a080-246067242476"]).await;
    let jobs: Vec<_> = (0..40).map(|i| job(if i % 3 == 0 { "lonely" } else { "busy" })).collect();
    enqueue(&server, &jobs).await;
    let leased = lease(&server, &spec, 4).await;
    let mut conn = server.db.pool().acquire().await.expect("the database answers");
    let operation = domain::queue::Operation::Step;
    domain::queue::note_refused(&mut conn, leased[0].lease, Some(spec.worker), operation).await.expect("noted");
    let counts = ["enqueued", "completed", "failed", "discarded", "rescued"]
        .map(|outcome| ("busy".to_owned(), "test.free".to_owned(), outcome.to_owned(), 40));
    domain::queue::add_throughput(&mut conn, &counts).await.expect("counted");
    let lonely = domain::ids::QueueName::new("lonely").expect("a name");
    let limits = domain::queue::Limits { running: Some(8), running_per_key: Some(2), starts_per_key: None };
    domain::queue::set_limits(&mut conn, &lonely, &limits, None, "a quota", None).await.expect("limited");
    let paused = domain::queue::Paused::Queue(lonely);
    let reason = "relay maintenance, announced for the night from Saturday to Sunday under the number CHG-2231";
    domain::queue::pause(&mut conn, &paused, None, reason).await.expect("paused");
    drop(conn);
    server.db.clock().advance(Duration::from_secs(45)).await;
    server
}

/// The pages, with one job of the deployment.
async fn paths(server: &Server) -> Vec<String> {
    let id: uuid::Uuid = sqlx::query_scalar("select id from jobs where state = 'running' order by id limit 1")
        .fetch_one(server.db.pool())
        .await
        .expect("a running job");
    let fixed = ["/", "/jobs", "/jobs?state=available&queue=busy", "/queues", "/queues/busy", "/queues/lonely"];
    fixed.map(str::to_owned).into_iter().chain([format!("/jobs/{id}")]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_enqueued_appears_without_a_reload() {
    let server = Server::start().await;
    let browser = Browser::start(&server).await;
    browser.sign_in(&server).await;
    browser.until("the first steps", "document.querySelector('[data-live=\"first-steps\"]')").await;
    // A reload would forget this.
    browser.js("window.here = true").await;
    enqueue(&server, &[job("default")]).await;
    let due = "[...document.querySelectorAll('.figs dt')].find((dt) => dt.textContent === 'Due now')\
               ?.nextElementSibling.firstChild.textContent";
    browser.until("the first job", &format!("{due} === '1'")).await;
    enqueue(&server, &[job("default"), job("other")]).await;
    browser.until("two more", &format!("{due} === '3'")).await;
    browser.until("the verdict", "document.querySelector('.gv').textContent.includes('warning')").await;
    browser.until("an age that ticks", "document.querySelector('.figs time small')").await;
    assert_eq!(browser.js("return window.here").await, json!(true), "the page was not loaded again");
    // Held still, it does not follow.
    browser.page.find(Locator::Css("button.live")).await.expect("the button").click().await.expect("pressed");
    browser.until("it is held", "document.querySelector('button.live').textContent === 'held'").await;
    enqueue(&server, &[job("default")]).await;
    browser.page.find(Locator::Css("button.live")).await.expect("the button").click().await.expect("pressed");
    browser.until("it follows again", &format!("{due} === '4'")).await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_scrolls_sideways_from_320_pixels_up_and_the_console_is_silent() {
    let server = busy().await;
    let browser = Browser::start(&server).await;
    browser.screen(390, false).await;
    browser.go("/login").await;
    let wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.js(wide).await, json!(0), "the door");
    browser.sign_in(&server).await;
    for path in paths(&server).await {
        for width in [320, 390, 900, 1100, 1440] {
            browser.screen(width, width % 4 == 0).await;
            browser.go(&path).await;
            assert_eq!(browser.js(wide).await, json!(0), "{path} at {width}");
        }
    }
    browser.screen(390, false).await;
    browser.go("/").await;
    assert_eq!(browser.js("return getComputedStyle(document.querySelector('.side')).display").await, json!("none"));
    browser.page.find(Locator::Css(".btn.menu")).await.expect("the menu").click().await.expect("pressed");
    browser.until("the menu opens", "getComputedStyle(document.querySelector('.side')).display === 'flex'").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.end().await;
}

/// The lowest contrast of any text on the page, and which text it is. Colours are read back from a canvas, so that any
/// notation counts; a text's ground is the nearest one behind it that is not clear.
const CONTRAST: &str = r"
    const ink = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const seen = new Map();
    const rgba = (colour) => { if (!seen.has(colour)) seen.set(colour, read(colour)); return seen.get(colour); };
    const read = (colour) => { ink.clearRect(0, 0, 1, 1); ink.fillStyle = colour; ink.fillRect(0, 0, 1, 1); return ink.getImageData(0, 0, 1, 1).data; };
    const light = (c) => { const [r, g, b] = [...c].slice(0, 3).map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
    const ground = (el) => { for (; el; el = el.parentElement) { const c = rgba(getComputedStyle(el).backgroundColor); if (c[3] === 255) return c; } return rgba('white'); };
    let worst = [99, ''];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const el = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
        if (!text || !el.checkVisibility() || el.closest('.vh, script, style')) continue;
        const style = getComputedStyle(el), [a, b] = [light(rgba(el.closest('svg') ? style.fill : style.color)), light(ground(el))];
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < worst[0]) worst = [ratio, text];
    }
    return worst;
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn light_and_dark_follow_the_system_until_somebody_chooses_and_every_text_has_contrast() {
    let server = busy().await;
    let browser = Browser::start(&server).await;
    browser.sign_in(&server).await;
    let ground = "return getComputedStyle(document.body).backgroundColor";
    for (dark, colour) in [(false, "rgb(253, 252, 250)"), (true, "rgb(18, 20, 23)")] {
        browser.screen(1440, dark).await;
        for path in paths(&server).await {
            browser.go(&path).await;
            assert_eq!(browser.js(ground).await, json!(colour), "{path}");
            let worst = browser.js(CONTRAST).await;
            assert!(worst[0].as_f64().is_some_and(|ratio| ratio >= 4.5), "{path}, dark {dark}: {worst}");
        }
    }
    // The choice beats the system, at once and after a reload.
    browser.screen(1440, true).await;
    browser.go("/").await;
    browser.page.find(Locator::Css("[name=theme]")).await.expect("the button").click().await.expect("pressed");
    browser.until("it is light", "document.documentElement.dataset.theme === 'light'").await;
    tests::wait::until("the choice is kept", SEEN, || async {
        let cookies = browser.page.get_all_cookies().await.expect("cookies");
        cookies.iter().any(|cookie| cookie.name() == "lh_theme" && cookie.value() == "light").then_some(())
    })
    .await;
    browser.go("/jobs").await;
    assert_eq!(browser.js(ground).await, json!("rgb(253, 252, 250)"));
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_pauses_limits_and_resumes_a_queue_in_the_browser() {
    let server = busy().await;
    let browser = Browser::start(&server).await;
    browser.sign_in(&server).await;
    browser.go("/queues/busy").await;
    let send = async |form: &str, fields: &[(&str, &str)]| {
        for (name, value) in fields {
            let field = browser.page.find(Locator::Css(&format!("{form} [name={name}]"))).await.expect("a field");
            field.send_keys(value).await.expect("typed");
        }
        let button = browser.page.find(Locator::Css(&format!("{form} .btn"))).await.expect("a button");
        button.click().await.expect("pressed");
    };
    send("#pause", &[("reason", "a release")]).await;
    browser.until("it is paused", "document.querySelector('.verdict').textContent.includes('a release')").await;
    send("#limits", &[("running", "3"), ("reason", "a quota")]).await;
    browser
        .until("it is limited", "document.querySelector('[data-live=facts]').textContent.includes('3 at once')")
        .await;
    send("#resume", &[("reason", "done")]).await;
    browser.until("it goes on", "document.querySelector('#pause') && !document.querySelector('#resume')").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_goes_everywhere_and_a_session_that_ended_leads_to_the_door() {
    let server = busy().await;
    let browser = Browser::start(&server).await;
    browser.sign_in(&server).await;
    let keys = async |keys: &str| {
        let body = browser.page.find(Locator::Css("main")).await.expect("the page");
        body.send_keys(keys).await.expect("typed");
    };
    keys("gq").await;
    browser.until("the list of queues", "location.pathname === '/queues'").await;
    keys("gj").await;
    browser.until("the list of jobs", "location.pathname === '/jobs'").await;
    keys("j").await;
    browser.until("the first row", "document.activeElement.closest('tbody tr')").await;
    keys("t").await;
    browser.until("times", "/^\\d{4}-/.test(document.querySelector('tbody time').textContent)").await;
    keys("?").await;
    browser.until("the list of keys", "document.querySelector('#keys').matches(':popover-open')").await;
    browser.js("document.querySelector('#keys').hidePopover()").await;
    keys("/").await;
    browser.until("the field", "document.activeElement.id === 'q'").await;
    // The first stop of the tabulator key on a fresh page jumps over the bar.
    browser.go("/").await;
    browser.js("document.querySelector('.skip').focus()").await;
    browser.until("the link is seen", "document.querySelector('.skip').getBoundingClientRect().top >= 0").await;
    sqlx::query("delete from sessions").execute(server.db.pool()).await.expect("ended");
    enqueue(&server, &[job("busy")]).await;
    browser.until("the door", "location.pathname === '/login'").await;
    browser.end().await;
}

//! Children: who starts them, who they are, how they end.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tests::activator::kill;
use workers::activator::{ChildEnd, Error, Role, identity_in};
use workers::failpoint;

use crate::rig::{Rig, environment, host, told};

/// The worker is gone without a word; the next one knows its child by number, start and boot, and ends it.
#[tokio::test]
async fn a_child_survives_its_worker_that_is_killed_and_is_adopted_by_the_next() {
    let mut rig = Rig::start().await;
    let host = host("survives.example");
    let tenant = env!("CARGO_BIN_EXE_test-tenant");
    let mut command = Command::new(tenant);
    command.arg("worker").arg(rig.folder.path().join("instances")).arg(rig.server.endpoint());
    command.args([rig.server.access_key(), rig.server.secret_key()]).arg(&rig.settings.litestream).arg(host.as_str());
    #[allow(clippy::disallowed_methods, reason = "a worker that is killed")]
    let mut worker = command.stdout(Stdio::piped()).spawn().expect("start a worker");
    let mut line = String::new();
    BufReader::new(worker.stdout.take().expect("piped")).read_line(&mut line).expect("read");
    assert_eq!(line, "started\n");
    worker.kill().expect("kill");
    worker.wait().expect("reap");

    rig.reopen().await;
    let started = identity_in(&rig.path(&host, "child.json")).expect("a record");
    assert!(started.lives().expect("look"), "the child lives on");
    let address = rig.activator.running(&host).expect("adopted");
    assert_eq!(told(address)["LEASEHOLD_HOST"], host.as_str());
    let again = rig.run(&host, &[]).await;
    assert!(again.ran && again.identity == started && again.address == address, "not a second one: {again:?}");
    let ended = rig.activator.stop(&host).await.expect("stop");
    let ChildEnd::Ended(ended) = ended else { panic!("{ended:?}") };
    assert_eq!((ended.identity, ended.group_empty), (started.clone(), true));
    assert_eq!((ended.exit_code, ended.exit_signal), (None, None), "nobody was there to see its status");
    assert!(!started.lives().expect("look"));
    assert_eq!(rig.activator.running(&host), None);
}

/// A number is given again: whoever has it now is not ours, is not served and not ended.
#[tokio::test]
async fn a_process_that_got_a_childs_number_is_not_adopted_and_not_ended() {
    let mut rig = Rig::start().await;
    let host = host("number.example");
    rig.run(&host, &[]).await;
    let stranger = identity_in(&rig.path(&host, "child.json")).expect("a record");
    // The record of a child of the same number that started a moment earlier.
    let record = rig.path(&host, "child.json");
    let text = std::fs::read_to_string(&record).expect("read");
    let earlier = (stranger.started_ticks - 1).to_string();
    std::fs::write(&record, text.replace(&stranger.started_ticks.to_string(), &earlier)).expect("write");

    rig.reopen().await;
    assert_eq!(rig.activator.running(&host), None);
    assert!(matches!(rig.activator.stop_child(&host).await, Ok(ChildEnd::Ended(_))), "its own child is gone");
    assert!(stranger.lives().expect("look"), "the stranger lives");
    kill(stranger.pid);
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_reported_and_never_killed() {
    let rig = Rig::with(|settings| settings.stop_limit = Duration::from_millis(300)).await;
    let host = host("hangs.example");
    let started = rig.run(&host, &[("TENANT_HANG", "1")]).await;
    for _ in 0..2 {
        match rig.activator.stop_child(&host).await {
            Err(Error::Hangs { host: who, role: Role::Child, pid, lingering, waited }) => {
                assert_eq!((who, pid), (host.clone(), started.identity.pid));
                assert_eq!(lingering, [pid]);
                assert!(waited >= Duration::from_millis(300));
            }
            other => panic!("{other:?}"),
        }
        assert!(started.identity.lives().expect("look"));
    }
    assert!(matches!(rig.activator.prove_tail(&host).await, Err(Error::Runs { role: Role::Child, .. })));
    assert!(matches!(rig.activator.purge(&host).await, Err(Error::Runs { .. })));
    kill(started.identity.pid);
    let ended = rig.activator.stop_child(&host).await.expect("it is gone");
    let ChildEnd::Ended(ended) = ended else { panic!("{ended:?}") };
    assert_eq!((ended.exit_code, ended.exit_signal), (None, Some(9)), "seen by its worker");
}

/// The leader is gone, and what it left behind could still write.
#[tokio::test]
async fn an_end_is_proven_only_when_the_process_group_is_empty() {
    let rig = Rig::with(|settings| settings.stop_limit = Duration::from_millis(500)).await;
    let host = host("leaves.example");
    let file = rig.folder.path().join("left");
    let started = rig.run(&host, &[("TENANT_LEAVES", file.to_str().expect("UTF-8"))]).await;
    let left: u32 = std::fs::read_to_string(&file).expect("read").parse().expect("a number");
    for _ in 0..2 {
        match rig.activator.stop_child(&host).await {
            Err(Error::Hangs { lingering, .. }) => assert_eq!(lingering, [left]),
            other => panic!("{other:?}"),
        }
    }
    assert!(!started.identity.lives().expect("look"), "the leader is gone");
    let refused = rig.activator.start(&host, tests::activator::plain(&environment(&[])), async { Ok(true) }).await;
    assert!(matches!(refused, Err(Error::Runs { pid, .. }) if pid == left), "{refused:?}");
    assert!(matches!(rig.activator.purge(&host).await, Err(Error::Runs { .. })));
    kill(left);
    let ended =
        tests::wait::until("the end", Duration::from_secs(10), || async { rig.activator.stop_child(&host).await.ok() });
    let ChildEnd::Ended(ended) = ended.await else { panic!("it ran") };
    assert_eq!((ended.exit_code, ended.group_empty), (Some(0), true));
    assert_eq!(rig.activator.stop_child(&host).await.expect("again"), ChildEnd::Ended(ended), "the same again");
}

#[tokio::test]
async fn without_a_permit_nothing_starts_whoever_asks() {
    let rig = Rig::start().await;
    let host = host("permit.example");
    let refused = rig.activator.start(&host, tests::activator::plain(&environment(&[])), async { Ok(false) }).await;
    assert!(matches!(refused, Err(Error::NotPermitted { .. })), "{refused:?}");
    let unknown = rig
        .activator
        .start(&host, tests::activator::plain(&environment(&[])), async { anyhow::bail!("the database is away") })
        .await;
    assert!(matches!(unknown, Err(Error::Permit { .. })), "{unknown:?}");
    assert!(!rig.path(&host, "child.json").exists() && !rig.path(&host, "litestream.json").exists());
    assert_eq!(rig.activator.running(&host), None);
}

/// A start waits behind a stop; meanwhile the permit is withdrawn. Asked before the mutex, it would have been given.
#[tokio::test]
async fn a_permit_that_is_withdrawn_while_a_start_waits_is_seen() {
    let rig = Rig::start().await;
    let host = host("withdrawn.example");
    rig.run(&host, &[]).await;
    let gate = failpoint::gate("activator.before_stop", host.as_str(), 0);
    let stopping = tokio::spawn({
        let (activator, host) = (rig.activator.clone(), host.clone());
        async move { activator.stop(&host).await }
    });
    gate.arrived(1).await;
    let allowed = Arc::new(AtomicBool::new(true));
    let starting = tokio::spawn({
        let (activator, host, allowed) = (rig.activator.clone(), host.clone(), Arc::clone(&allowed));
        let permit = async move { Ok(allowed.load(Ordering::SeqCst)) };
        async move { activator.start(&host, tests::activator::plain(&environment(&[])), permit).await }
    });
    // The start has its turn, and waits for the mutex.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    allowed.store(false, Ordering::SeqCst);
    drop(gate);
    stopping.await.expect("no panic").expect("stop");
    let started = starting.await.expect("no panic");
    assert!(matches!(started, Err(Error::NotPermitted { .. })), "{started:?}");
    assert_eq!(rig.activator.running(&host), None);
}

#[tokio::test]
async fn a_tenant_can_neither_set_nor_unset_its_region() {
    let rig = Rig::start().await;
    let (a, b) = (host("sets.example"), host("leaves-out.example"));
    let env = [("CARLOS_REGION", "us"), ("LEASEHOLD_HOST", "other.example"), ("OWN", "a=b c"), ("PATH", "/nowhere")];
    let started = rig.run(&a, &env).await;
    let told_of_a = told(started.address);
    assert_eq!((told_of_a["CARLOS_REGION"].as_str(), told_of_a["LEASEHOLD_HOST"].as_str()), ("eu", a.as_str()));
    assert_eq!((told_of_a["OWN"].as_str(), told_of_a["PATH"].as_str()), ("a=b c", "/nowhere"));
    assert_eq!(told_of_a["LEASEHOLD_LISTEN"], started.address.to_string());
    assert_eq!(told_of_a["LEASEHOLD_DATABASE"], rig.path(&a, "app.db").to_str().expect("UTF-8"));
    assert_eq!(told(rig.run(&b, &[("CARLOS_REGION", "")]).await.address)["CARLOS_REGION"], "eu");
    let refused = rig
        .activator
        .start(&host("bad.example"), tests::activator::plain(&environment(&[("A=B", "")])), async { Ok(true) })
        .await;
    assert!(matches!(refused, Err(Error::Environment { .. })), "{refused:?}");
}

/// The worker's environment holds its secrets, and what makes litestream refuse every URL.
#[tokio::test]
async fn nothing_of_the_workers_environment_reaches_its_children() {
    let rig = Rig::start().await;
    let host = host("clean.example");
    let started = rig.run(&host, &[]).await;
    let names: Vec<String> = told(started.address).into_keys().collect();
    assert_eq!(names, ["CARLOS_REGION", "LEASEHOLD_DATABASE", "LEASEHOLD_HOST", "LEASEHOLD_LISTEN", "PATH"]);
    let litestream = identity_in(&rig.path(&host, "litestream.json")).expect("a record");
    let environ = std::fs::read(format!("/proc/{}/environ", litestream.pid)).expect("read");
    let text = String::from_utf8(environ).expect("UTF-8");
    let names: Vec<&str> = text.split('\0').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
    assert_eq!(names, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PATH"]);
    let own = std::fs::read(format!("/proc/{}/environ", std::process::id())).expect("read");
    assert!(String::from_utf8_lossy(&own).contains("CARGO"), "the test's own environment has more");
}

/// Own session and group: neither a terminal's hang-up nor its Ctrl-C reaches a tenant.
#[tokio::test]
async fn a_child_leads_a_session_of_its_own() {
    let rig = Rig::start().await;
    let host = host("session.example");
    let started = rig.run(&host, &[]).await;
    let pid = started.identity.pid;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("read");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    assert_eq!((fields[2], fields[3]), (pid.to_string().as_str(), pid.to_string().as_str()), "group and session");
}

#[tokio::test]
async fn a_child_that_ends_at_once_is_told_with_the_end_of_its_log() {
    let rig = Rig::start().await;
    let refuses = environment(&[("TENANT_REFUSES", "1")]);
    match rig.activator.start(&host("refuses.example"), tests::activator::plain(&refuses), async { Ok(true) }).await {
        Err(Error::Exited { role: Role::Child, tail, .. }) => assert!(tail.contains("does not want to"), "{tail}"),
        other => panic!("{other:?}"),
    }
    let rig = Rig::with(|settings| settings.exec = None).await;
    let parked =
        rig.activator.start(&host("parked.example"), tests::activator::plain(&refuses), async { Ok(true) }).await;
    assert!(matches!(parked, Err(Error::NoProgram { .. })), "{parked:?}");
}

/// Nothing was started here: stopping it twice is as good as once.
#[tokio::test]
async fn stopping_what_never_ran_is_a_no_op() {
    let rig = Rig::start().await;
    let host = host("never.example");
    for _ in 0..2 {
        assert_eq!(rig.activator.stop(&host).await.expect("stop"), ChildEnd::Absent);
        assert_eq!(rig.activator.stop_child(&host).await.expect("stop"), ChildEnd::Absent);
    }
    assert!(rig.activator.hosts().expect("list").is_empty(), "not even a folder");
}

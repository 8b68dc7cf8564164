//! The pages of instances and moves: what they say of what holds one up, and the forms that steer it.

use domain::authority::{IdentityKind, Role, Scopes};
use tests::fleet::{APP, Fleet, HOST, answer_look, five_objects, put_worker, to};

use crate::support::{Visitor, hidden, number, plain};

const PAGE: &str = "/instances/acme/ledger.acme.example";

mod listed;
mod standing;

/// The token of the forms on the instance's page.
async fn token(visitor: &mut Visitor<'_>) -> String {
    hidden(&visitor.get(PAGE).await.text, "csrf").to_owned()
}

/// What the instance's page says.
async fn says(visitor: &mut Visitor<'_>) -> String {
    let told = visitor.get(PAGE).await;
    assert_eq!(told.status, 200, "{told:?}");
    plain(&told.text)
}

#[tokio::test]
async fn a_move_is_begun_cut_and_given_up_by_forms_without_script() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    put_worker(server.db.pool(), &fleet.eu).await;
    let mut visitor = Visitor::signed_in(server).await;
    let text = says(&mut visitor).await;
    assert!(text.contains("serving in eu, by box box-eu.") && text.contains("Begin the move"), "{text}");
    let csrf = token(&mut visitor).await;
    let form = [("csrf", csrf.as_str()), ("region", "uk"), ("cut", "manual")];
    let told = visitor.post(&format!("{PAGE}/move"), &form).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    let text = says(&mut visitor).await;
    assert!(text.contains("preparing to uk. It is served in eu by box box-eu as ever"), "{text}");
    assert!(text.contains("Why is it not ready?") && !text.contains("Cut it") && text.contains("Give the move up"));
    let told = visitor.post(&format!("{PAGE}/move"), &form).await;
    assert_eq!(told.status, 409, "{told:?}");
    assert!(told.text.contains("move_in_flight") && told.text.contains("Nothing was changed here"), "{}", told.text);

    // A cut before it is ready, and one that is not confirmed, change nothing.
    let confirmed = [("csrf", csrf.as_str()), ("confirm", HOST)];
    let told = visitor.post(&format!("{PAGE}/cut"), &confirmed).await;
    assert_eq!(told.status, 409);
    assert!(told.text.contains("move_not_ready"), "{}", told.text);
    fleet.sql("update moves set state = 'ready', ready_at = lh_now()").await;
    let page = visitor.get(PAGE).await;
    assert!(plain(&page.text).contains("Freeze the application’s writes first: nobody checks that."), "{}", page.text);
    assert!(page.text.contains("What the cut will do") && page.text.contains("to come"), "{}", page.text);
    for word in ["", "ledger", "yes"] {
        let told = visitor.post(&format!("{PAGE}/cut"), &[("csrf", csrf.as_str()), ("confirm", word)]).await;
        assert_eq!(told.status, 400, "{word:?}");
        let told = visitor.post(&format!("{PAGE}/abort"), &[("csrf", csrf.as_str()), ("confirm", word)]).await;
        assert_eq!(told.status, 400, "{word:?}");
    }
    assert_eq!(number(server, "select count(*) from moves where state = 'ready'").await, 1);
    let told = visitor.post(&format!("{PAGE}/abort"), &confirmed).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    assert!(says(&mut visitor).await.contains("is being given up"));
    let told = visitor.post(&format!("{PAGE}/cut"), &confirmed).await;
    assert_eq!(told.status, 409, "it is aborting");
    fleet.sql("update moves set finished_at = lh_now(), outcome = 'aborted'").await;

    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    fleet.sql("update moves set state = 'ready', ready_at = lh_now() where finished_at is null").await;
    let told = visitor.post(&format!("{PAGE}/cut"), &confirmed).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    let text = says(&mut visitor).await;
    assert!(text.contains("cutting to uk. Nobody is served until it has landed"), "{text}");
    assert!(!text.contains("Give the move up"), "from here it goes forward only: {text}");
    let sql = "select count(*) from audit_events where subject = 'ledger.acme.example' and key_id is not null
                and action in ('instance.move', 'instance.move.cut', 'instance.move.abort')";
    assert_eq!(number(server, sql).await, 4, "each by whom");
}

#[tokio::test]
async fn a_form_that_loses_a_race_is_done_by_another_try() {
    let fleet = Fleet::with_instance().await;
    put_worker(fleet.server.db.pool(), &fleet.eu).await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let csrf = token(&mut visitor).await;
    // Each act's first change of the record, and the first look, meets a race that the second does not.
    fleet
        .sql(
            "create sequence lost_races;
             create function lose_once() returns trigger language plpgsql as $$
                 begin
                     if nextval('lost_races') % 2 = 1 then
                         raise exception using errcode = '40P01';
                     end if;
                     return new;
                 end $$;
             create trigger lose_once before update on instances for each row execute function lose_once();
             create trigger lose_once before insert on jobs for each row when (new.kind = 'instance.rehearse')
                    execute function lose_once()",
        )
        .await;
    let (csrf, confirmed) = (("csrf", csrf.as_str()), ("confirm", HOST));
    let told = visitor.post(&format!("{PAGE}/rehearse"), &[csrf, ("region", "uk"), ("cut", "manual")]).await;
    assert_eq!(told.status, 303, "{told:?}");
    let forms: [(&str, &[(&str, &str)]); 5] = [
        ("move", &[csrf, ("region", "uk"), ("cut", "manual")]),
        ("abort", &[csrf, confirmed]),
        ("park", &[csrf]),
        ("wake", &[csrf]),
        ("restart", &[csrf]),
    ];
    for (verb, form) in forms {
        let told = visitor.post(&format!("{PAGE}/{verb}"), form).await;
        assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{verb}: {told:?}");
    }
    assert_eq!(number(&fleet.server, "select last_value from lost_races").await, 12, "two tries each");
    assert_eq!(number(&fleet.server, "select count(*) from moves where state = 'aborting'").await, 1);
}

#[tokio::test]
async fn the_page_shows_the_steps_of_a_cut_and_what_holds_it_up_with_what_to_do() {
    let fleet = Fleet::with_instance().await;
    put_worker(fleet.server.db.pool(), &fleet.eu).await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), cut_at = lh_now() - interval '40 seconds',
                    status = jsonb_build_object('obstacle', jsonb_build_object('code', 'child_hangs',
                        'message', 'process 4711 does not end', 'permanent', true),
                        'obstacle_since', lh_now() - interval '20 seconds', 'failures', 0);
             insert into move_steps (move_id, job_id, fence, step, started_at, ended_at, outcome, evidence)
             select m.id, gen_random_uuid(), 7, s, lh_now() - interval '30 seconds', lh_now() - interval '20 seconds', o,
                    jsonb_build_object('message', 'process 4711 does not end')
               from moves m, (values ('close_route', 'closed'), ('stop_child', 'failed')) as t (s, o)",
        )
        .await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let page = visitor.get(PAGE).await;
    let text = plain(&page.text);
    assert!(text.contains("What holds the cut up?") && text.contains("Process 4711 does not end."), "{text}");
    assert!(text.contains("see what the named process waits for and end it"), "{text}");
    assert!(text.contains("Nobody is served for") && text.contains("since it was let be cut"), "{text}");
    assert!(text.contains("edges stop serving ittook 10 s"), "{text}");
    assert!(text.contains("its process is stopped, and its end provenfailed: process 4711 does not end"), "{text}");
    for region in ["head", "phases", "why", "figures", "cut", "journal", "receipt"] {
        assert!(page.text.contains(&format!("data-live=\"{region}\"")), "{region} follows the events");
    }
    let overview = plain(&visitor.get("/").await.text);
    assert!(overview.contains("The move of ledger.acme.example to uk waits for a person"), "{overview}");
    assert!(visitor.get("/").await.text.contains(&format!("href=\"{PAGE}\"")), "it leads to what to do");
    let moves = plain(&visitor.get("/moves").await.text);
    assert!(moves.contains("1 move in flight, 1 of them waiting for a person"), "{moves}");
}

#[tokio::test]
async fn a_landing_that_is_held_up_is_a_problem_of_every_page_and_a_finished_move_has_a_receipt() {
    let fleet = Fleet::with_instance().await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), cut_at = lh_now(), tail_txid = '000000000000a3f1',
                    tail_sha256 = repeat('ab', 32), tail_size = 4096, purge_began_at = lh_now(), finished_at = lh_now(),
                    outcome = 'moved';
             update instances set region = 'uk';
             update routes set status = 'landing', node_id = (select id from nodes where identity = 'box-uk'),
                    held = '{\"code\": \"staging_missing\", \"message\": \"nothing is staged\", \"permanent\": true}',
                    held_since = lh_now();
             insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix)
             select id, instance_id, host, 'eu', 'data-eu', 'us-east-1', 'instances/ledger/' from moves",
        )
        .await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let text = says(&mut visitor).await;
    assert!(text.contains("landing in uk. Nobody is served until that is done"), "{text}");
    assert!(text.contains("What holds the landing up?") && text.contains("Nothing is staged."), "{text}");
    assert!(text.contains("The replica of eu is kept") && text.contains("kept until the target serves"), "{text}");
    let overview = plain(&visitor.get("/").await.text);
    assert!(overview.contains("The landing of ledger.acme.example in uk is held up: nothing is staged"), "{overview}");
    assert!(plain(&visitor.get("/jobs").await.text).contains("problem"), "the bar of every page says so");
    fleet
        .sql(
            "update routes set status = 'serving', held = null, held_since = null;
             update moves set landed_at = cut_at + interval '9.5 seconds', staging_deleted_at = lh_now();
             update remains set keep_until = '2026-03-15T03:00:09Z'",
        )
        .await;
    let id: String =
        sqlx::query_scalar("select id::text from moves").fetch_one(fleet.server.db.pool()).await.expect("it");
    for path in [PAGE.to_owned(), format!("/moves/{id}")] {
        let text = plain(&visitor.get(&path).await.text);
        for word in ["Receipteu → uk", "000000000000a3f1", "4.0 KiB", "9.5 s", "kept until 2026-03-15 03:00:09 UTC"] {
            assert!(text.contains(word), "{path}: {word}: {text}");
        }
    }
    fleet.sql("update remains set purge_began_at = '2026-03-15T03:00:10Z', deleted_keys = 7").await;
    let text = plain(&visitor.get(PAGE).await.text);
    assert!(text.contains("being purged since 2026-03-15 03:00:10 UTC: 7 keys so far"), "{text}");
    let moves = visitor.get("/moves").await.text;
    assert!(moves.contains(&format!("href=\"/moves/{id}\"")) && plain(&moves).contains("landed"), "{moves}");
    assert_eq!(visitor.get("/moves/nothing").await.status, 404);
    assert_eq!(visitor.get("/instances/acme/nobody.example").await.status, 404);
}

#[tokio::test]
async fn a_landing_that_was_given_up_is_told_as_such_and_nothing_of_it_is_to_come() {
    let fleet = Fleet::with_instance().await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), cut_at = lh_now(), purge_began_at = lh_now(),
                    tail_txid = '000000000000a3f1', tail_sha256 = repeat('ab', 32), tail_size = 4096,
                    target_bucket = 'data-uk', target_bucket_region = 'us-east-1', finished_at = lh_now(), outcome = 'moved';
             insert into remains (move_id, instance_id, host, region, bucket, bucket_region, prefix, keep_until)
             select id, instance_id, host, 'uk', 'data-uk', 'us-east-1', 'moves/ledger/', lh_now() from moves",
        )
        .await;
    let id: String =
        sqlx::query_scalar("select id::text from moves").fetch_one(fleet.server.db.pool()).await.expect("it");
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let text = plain(&visitor.get(&format!("/moves/{id}")).await.text);
    assert!(text.contains("the target serves itgiven up") && !text.contains("to come"), "{text}");
    fleet.sql("update remains set purge_began_at = lh_now(), purged_at = '2026-03-15T03:00:10Z', receipt = '{}'").await;
    let text = plain(&visitor.get(&format!("/moves/{id}")).await.text);
    assert!(text.contains("what was staged is deleteddone"), "{text}");
    assert!(text.contains("Staging deleted2026-03-15 03:00:10 UTC"), "{text}");
}

#[tokio::test]
async fn a_start_that_waits_for_a_key_is_a_problem_of_every_page() {
    let fleet = Fleet::with_instance().await;
    fleet
        .sql(
            "update routes set held_since = lh_now(),
                    held = '{\"code\": \"config_key\", \"message\": \"its child does not start\", \"permanent\": true}'",
        )
        .await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let text = says(&mut visitor).await;
    assert!(text.contains("What is wrong?") && text.contains("Its child does not start."), "{text}");
    assert!(text.contains("Give a box of eu that runs instances the key"), "what to do: {text}");
    let overview = plain(&visitor.get("/").await.text);
    assert!(overview.contains("The start of ledger.acme.example in eu is held up: its child does not"), "{overview}");
    assert!(plain(&visitor.get("/moves").await.text).contains("0 held up of 0 landing"), "it has landed");
}

#[tokio::test]
async fn a_budget_is_given_by_the_form_and_a_cut_over_it_wants_its_box_ticked() {
    let fleet = Fleet::with_instance().await;
    put_worker(fleet.server.db.pool(), &fleet.eu).await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let csrf = token(&mut visitor).await;
    let form = |budget| [("csrf", csrf.as_str()), ("region", "uk"), ("cut", "manual"), ("freeze_budget", budget)];
    for (wrong, status) in [("soon", 400), ("1.5", 400), ("0", 422), ("86401", 422)] {
        let told = visitor.post(&format!("{PAGE}/move"), &form(wrong)).await;
        assert_eq!(told.status, status, "{wrong}");
        assert!(plain(&told.text).contains("1 to 86400 whole seconds"), "{}", told.text);
    }
    assert_eq!(number(&fleet.server, "select count(*) from moves").await, 0);
    let told = visitor.post(&format!("{PAGE}/move"), &form("")).await;
    assert_eq!(told.status, 303, "{told:?}");
    // It is over, and froze for 9.5 seconds.
    fleet
        .sql(
            "update moves set state = 'cutting', ready_at = lh_now(), cut_at = lh_now(), tail_txid = '000000000000a3f1',
                    tail_sha256 = repeat('ab', 32), tail_size = 4096, purge_began_at = lh_now(), finished_at = lh_now(),
                    outcome = 'moved', landed_at = lh_now() + interval '9.5 seconds', staging_deleted_at = lh_now()",
        )
        .await;
    let told = visitor.post(&format!("{PAGE}/move"), &form("9")).await;
    assert_eq!(told.status, 303, "{told:?}");
    fleet.sql("update moves set state = 'ready', ready_at = lh_now() where finished_at is null").await;
    let page = visitor.get(PAGE).await;
    let text = plain(&page.text);
    assert!(text.contains("Freeze at most9.0 s") && text.contains("budget of 9 s: force it"), "{text}");
    assert!(text.contains("Cut it although that is over its budget of 9.0 s"), "{text}");
    let plain_cut = [("csrf", csrf.as_str()), ("confirm", HOST)];
    let told = visitor.post(&format!("{PAGE}/cut"), &plain_cut).await;
    assert_eq!(told.status, 409, "{told:?}");
    assert!(told.text.contains("freeze_over_budget"), "{}", told.text);
    let told = visitor.post(&format!("{PAGE}/cut"), &[&plain_cut[..], &[("force", "yes")]].concat()).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    assert_eq!(number(&fleet.server, "select count(*) from moves where state = 'cutting' and cut_forced").await, 1);
}

#[tokio::test]
async fn a_move_is_rehearsed_by_its_form_and_the_page_shows_the_answer_and_what_the_box_found() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    put_worker(server.db.pool(), &fleet.eu).await;
    let mut visitor = Visitor::signed_in(server).await;
    let csrf = token(&mut visitor).await;
    let form = [("csrf", csrf.as_str()), ("region", "uk"), ("cut", "manual"), ("freeze_budget", "9")];
    let told = visitor.post(&format!("{PAGE}/rehearse"), &form).await;
    let place = told.header("location").expect("a page").to_owned();
    assert_eq!(told.status, 303, "{told:?}");
    assert!(place.starts_with(&format!("{PAGE}?to=uk&look=")) && place.ends_with("&budget=9#rehearsal"), "{place}");
    let place = place.trim_end_matches("#rehearsal");
    let text = plain(&visitor.get(place).await.text);
    assert!(text.contains("Rehearsal: eu → uk") && text.contains("its box has not told yet"), "{text}");
    answer_look(server.db.pool(), &fleet.eu, five_objects(&fleet.eu)).await;
    let page = visitor.get(place).await;
    let on_one_line = |html: &str| plain(html).split_whitespace().collect::<Vec<_>>().join(" ");
    let text = on_one_line(&page.text);
    for words in [
        "The door would take it now. Nothing was begun.",
        "5 objects, 2.0 KiB, newest transaction 000000000000000e",
        "about 9 requests",
        "no cut between eu and uk predicts it yet",
        "9.0 s: nothing to hold it against",
        "box-uk could land it (exec true)",
        "region armed passed",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(page.text.contains("data-live=\"rehearsal\""), "it follows the events");
    fleet.sql("update regions set armed = false where code = 'uk'").await;
    let text = on_one_line(&visitor.get(place).await.text);
    assert!(text.contains("It would be refused: region uk is not armed"), "{text}");
    assert!(text.contains("region armed refused region uk is not armed"), "{text}");
    // What the address has no look for is told as it is.
    let look = place.split_once("look=").and_then(|(_, rest)| rest.split('&').next()).expect("a look").to_owned();
    let other = on_one_line(&visitor.get(&place.replace("to=uk", "to=eu")).await.text);
    assert!(!other.contains("5 objects"), "a look for another region says nothing of this one");
    assert!(other.contains("the one of this address was for uk: rehearse it again"), "{other}");
    for nobodys in ["nonsense", "00000000-0000-7000-8000-000000000000"] {
        let text = on_one_line(&visitor.get(&place.replace(&look, nobodys)).await.text);
        assert!(text.contains("the one of this address is not known, or kept no longer"), "{nobodys}: {text}");
    }
    let bare = format!("{PAGE}?to=uk");
    let text = on_one_line(&visitor.get(&bare).await.text);
    assert!(text.contains("none was asked for"), "{text}");
    fleet.sql("update instances set env = '{\"KEY\": \"age:x\"}'; update routes set status = 'moving'").await;
    let text = on_one_line(&visitor.get(&bare).await.text);
    assert!(text.contains("none: no box serves it that could list its replica"), "{text}");
    assert!(text.contains("box-uk could not land it (exec true)"), "it opens no sealed values: {text}");
    assert_eq!(visitor.get(&format!("{PAGE}?to=uk&budget=soon")).await.status, 400);
    let csrf = token(&mut visitor).await;
    for verb in ["rehearse", "move"] {
        let nowhere = [("csrf", csrf.as_str()), ("region", ""), ("cut", "manual")];
        let told = visitor.post(&format!("{PAGE}/{verb}"), &nowhere).await;
        assert!(told.status == 400 && told.text.contains("Choose the region"), "{verb}: {told:?}");
    }
    assert_eq!(number(server, "select count(*) from moves").await, 0);
    assert_eq!(number(server, "select count(*) from audit_events where action = 'instance.move'").await, 0);
}

#[tokio::test]
async fn a_form_about_an_instance_without_its_sessions_token_or_the_permission_changes_nothing() {
    let fleet = Fleet::with_instance().await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let mut other = Visitor::signed_in(&fleet.server).await;
    let theirs = token(&mut other).await;
    let (_, key) = fleet.server.key(IdentityKind::Person, &[Role::Viewer], None, Scopes::default()).await;
    let mut viewer = Visitor::signed_in_as(&fleet.server, &key).await;
    let page = viewer.get(PAGE).await;
    assert_eq!(page.status, 200);
    assert!(!page.text.contains(&format!("action=\"{PAGE}")), "no form to who may not send it");
    let viewers = hidden(&viewer.get("/").await.text, "csrf").to_owned();
    for (verb, more) in [
        ("move", vec![("region", "uk"), ("cut", "auto")]),
        ("rehearse", vec![("region", "uk"), ("cut", "auto")]),
        ("cut", vec![("confirm", HOST)]),
        ("abort", vec![("confirm", HOST)]),
        ("park", vec![]),
        ("wake", vec![]),
        ("restart", vec![]),
    ] {
        let path = format!("{PAGE}/{verb}");
        let form = |csrf| [vec![("csrf", csrf)], more.clone()].concat();
        for forged in ["", "x", theirs.as_str()] {
            let told = visitor.post(&path, &form(forged)).await;
            assert_eq!(told.status, 403, "{verb}: {told:?}");
            assert!(told.text.contains("form_token_mismatch"), "{}", told.text);
        }
        let told = viewer.post(&path, &form(&viewers)).await;
        assert_eq!(told.status, 403, "{verb}");
        assert!(told.text.contains("moves.write"), "{}", told.text);
        let told = Visitor::of(&fleet.server).post(&path, &form("x")).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/login?next=/")), "{verb} by a stranger");
        let told = visitor.get(&path).await;
        assert_eq!((told.status, told.header("location")), (303, Some("/instances")), "{verb} is no page");
    }
    assert_eq!(number(&fleet.server, "select count(*) from moves").await, 0);
    assert_eq!(number(&fleet.server, "select count(*) from instances where parked").await, 0);
    assert_eq!(number(&fleet.server, "select count(*) from jobs where kind = 'instance.rehearse'").await, 0);
}

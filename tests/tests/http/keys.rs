//! Keys: the first one, further ones, and what none of them can do.

use std::collections::BTreeSet;

use domain::authority::{self, IdentityKind, Permission, Role, Scopes};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tests::api::{Server, Told, of_app};
use tests::db::Database;
use wire::{Code, KeyScopes, NewIdentity, NewKey, Reason};

fn new_key(name: &str, kind: wire::IdentityKind, roles: &[&str]) -> NewKey {
    let roles = roles.iter().map(|&role| role.to_owned()).collect();
    NewKey {
        name: name.to_owned(),
        identity_id: None,
        identity: Some(NewIdentity { name: name.to_owned(), kind, roles }),
        permissions: None,
        scopes: KeyScopes::default(),
        expires_at: None,
    }
}

#[tokio::test]
async fn the_first_administrator_is_made_once_also_by_callers_at_the_same_time() {
    let db = Database::start().await;
    let tries = (0..8).map(|_| async {
        let mut tx = db.pool().begin().await.expect("a transaction");
        let made = authority::bootstrap(&mut tx).await;
        tx.commit().await.expect("committed");
        made.is_ok()
    });
    let made = futures::future::join_all(tries).await;
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    // When nobody can act as an administrator any more, the holder of the database can make one again.
    sqlx::query("update api_keys set revoked_at = lh_now()").execute(db.pool()).await.expect("revoked");
    let mut tx = db.pool().begin().await.expect("a transaction");
    assert!(authority::bootstrap(&mut tx).await.is_ok());
}

#[tokio::test]
async fn a_second_bootstrap_revives_no_disabled_administrator_and_raises_no_stranger_of_that_name() {
    let server = Server::start().await;
    let stranger =
        NewIdentity { name: "administrator-2".into(), kind: wire::IdentityKind::Node, roles: BTreeSet::new() };
    let scopes = KeyScopes { node: Some(BTreeSet::from(["box-eu".to_owned()])), app: None };
    let asked = NewKey { identity: Some(stranger), scopes, ..new_key("a stranger", wire::IdentityKind::Node, &[]) };
    let stranger = server.client().create_key(&asked, None).await.expect("created").value.secret.expect("told once");
    sqlx::query("update identities set disabled_at = lh_now() where name = 'administrator'")
        .execute(server.db.pool())
        .await
        .expect("the administrator is disabled, since its key was stolen");
    let mut tx = server.db.pool().begin().await.expect("a transaction");
    let made = authority::bootstrap(&mut tx).await.expect("nobody can act as an administrator");
    tx.commit().await.expect("committed");
    let fresh = server.client_of(made.secret.whole());
    assert!(fresh.keys(None, None).await.is_ok(), "the new one acts");
    let error = server.client().kinds().await.expect_err("the stolen key stays dead");
    assert!(error.problem().is_some_and(|p| p.status == 401 && p.detail.contains("disabled")), "{error}");
    let error = server.client_of(&stranger).keys(None, None).await.expect_err("a node is no administrator");
    assert!(error.problem().is_some_and(|p| p.is(Code::PermissionDenied)), "{error}");
    let names: Vec<(String, String, Vec<String>)> =
        sqlx::query_as("select name, kind, roles from identities order by name")
            .fetch_all(server.db.pool())
            .await
            .expect("the identities");
    let told: Vec<_> = names.iter().map(|(name, kind, roles)| (name.as_str(), kind.as_str(), roles.len())).collect();
    assert_eq!(
        told,
        [("administrator", "person", 1), ("administrator-2", "node", 0), ("administrator-3", "person", 1)]
    );
}

#[tokio::test]
async fn a_secret_is_told_once_and_kept_nowhere() {
    let server = Server::start().await;
    let asked = new_key("ci", wire::IdentityKind::Person, &["operator"]);
    let first = server.client().create_key(&asked, Some("k1")).await.expect("created");
    let secret = first.value.secret.expect("told once");
    assert!(server.client_of(&secret).kinds().await.is_ok());
    let again = server.client().create_key(&asked, Some("k1")).await.expect("answered again");
    assert!(again.replayed && again.value.secret.is_none() && again.value.key == first.value.key);
    let tail = secret.expose_secret().rsplit('_').next().expect("a secret part").to_owned();
    let tables: Vec<String> =
        sqlx::query_scalar("select table_name::text from information_schema.tables where table_schema = 'public'")
            .fetch_all(server.db.pool())
            .await
            .expect("the tables");
    assert!(tables.len() > 10);
    for table in tables {
        let query = format!("select count(*) from {table} t where t::text like '%' || $1 || '%'");
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
            .bind(&tail)
            .fetch_one(server.db.pool())
            .await
            .expect("a count");
        assert_eq!(found, 0, "{table}");
    }
    let told = Told::by(server.request("GET", "/v1/keys")).await;
    assert!(told.status == 200 && !told.text.contains(&tail));
}

#[tokio::test]
async fn a_revoked_key_ends_at_once_and_its_end_is_audited() {
    let server = Server::start().await;
    let made = server
        .client()
        .create_key(&new_key("ci", wire::IdentityKind::Person, &["viewer"]), None)
        .await
        .expect("created")
        .value;
    let secret = made.secret.expect("told once");
    assert!(server.client_of(&secret).kinds().await.is_ok());
    let why = Reason { reason: Some("leaked".to_owned()) };
    assert!(server.client().revoke_key(made.key.id, &why).await.expect("revoked").revoked_at.is_some());
    let error = server.client_of(&secret).kinds().await.expect_err("revoked");
    assert!(error.problem().is_some_and(|p| p.status == 401 && p.detail.contains("revoked")), "{error}");
    server.client().revoke_key(made.key.id, &why).await.expect("again changes nothing");
    let acts = server.client().audit(Some("key"), Some(&made.key.id.to_string()), None, None).await.expect("the trail");
    let told: Vec<_> = acts.items.iter().map(|act| (act.action.as_str(), act.reason.as_deref())).collect();
    assert_eq!(told, [("key.revoke", Some("leaked")), ("key.create", None)]);
    let error = server.client().revoke_key(uuid::Uuid::nil(), &why).await.expect_err("no such key");
    assert!(error.problem().is_some_and(|p| p.is(Code::NotFound)), "{error}");
}

#[tokio::test]
async fn nobody_gives_what_they_do_not_have() {
    let server = Server::start().await;
    let narrow = [Permission::KeysManage, Permission::JobsRead];
    let (_, key) = server.key(IdentityKind::Person, &[Role::Admin], Some(&narrow), Scopes::default()).await;
    let client = server.client_of(&key);
    let denied = async |asked: &NewKey| {
        let error = client.create_key(asked, None).await.expect_err("more than the creator may do");
        assert!(error.problem().is_some_and(|p| p.is(Code::PermissionDenied)), "{error}");
    };
    denied(&new_key("an admin", wire::IdentityKind::Person, &["admin"])).await;
    denied(&new_key("a viewer", wire::IdentityKind::Person, &["viewer"])).await;
    // Also not by a new key of an identity that has more.
    let admin = server.client().keys(None, None).await.expect("the keys").items;
    let admin = admin.iter().find(|key| key.identity == "administrator").expect("the first one").identity_id;
    let asked = NewKey { identity_id: Some(admin), identity: None, ..new_key("mine", wire::IdentityKind::Person, &[]) };
    denied(&asked).await;
    let enough = NewKey { permissions: Some(BTreeSet::from(["jobs.read".to_owned()])), ..asked };
    assert!(client.create_key(&enough, None).await.is_ok());
    let scopes = Scopes { app: Some(BTreeSet::from(["acme".to_owned()])), node: None };
    let (_, scoped) = server.key(IdentityKind::Person, &[Role::Admin], None, scopes).await;
    let error = server.client_of(&scoped).create_key(&new_key("wider", wire::IdentityKind::Person, &[]), None).await;
    assert!(error.expect_err("wider scopes").problem().is_some_and(|p| p.is(Code::PermissionDenied)));
}

#[tokio::test]
async fn a_key_that_expires_makes_no_key_that_outlives_it() {
    let server = Server::start().await;
    let (id, expiring) = server.key(IdentityKind::Person, &[Role::Admin], None, Scopes::default()).await;
    let end: domain::clock::Timestamp = sqlx::query_scalar(
        "update api_keys set expires_at = lh_now() + interval '1 hour' where id = $1 returning expires_at",
    )
    .bind(id.0)
    .fetch_one(server.db.pool())
    .await
    .expect("the key gets an end");
    let client = server.client_of(&expiring);
    let asked = |name, expires_at| NewKey { expires_at, ..new_key(name, wire::IdentityKind::Person, &["viewer"]) };
    for expires_at in [None, Some(end + std::time::Duration::from_secs(1))] {
        let error = client.create_key(&asked("for ever", expires_at), None).await.expect_err("it would outlive it");
        let problem = error.problem().expect("a problem");
        assert!(problem.is(Code::ValidationFailed), "{problem}");
        assert_eq!(problem.errors[0].pointer.as_deref(), Some("/expires_at"));
    }
    let made = client.create_key(&asked("as long", Some(end)), None).await.expect("no longer than itself").value;
    assert_eq!(made.key.expires_at, Some(end));
    assert!(server.client().create_key(&asked("by one for ever", None), None).await.is_ok());
}

#[tokio::test]
async fn a_key_expires_in_the_future_up_to_the_year_9999_or_never() {
    let server = Server::start().await;
    for (name, expires_at, status) in [
        ("a", "1999-12-31T23:59:59.999999Z", 422),
        ("b", "2000-01-01T00:00:00Z", 422),
        ("c", "9999-12-31T23:59:59Z", 201),
        ("d", "+10000-01-01T00:00:00Z", 422),
        ("e", "soon", 400),
    ] {
        let identity = json!({"name": name, "kind": "person", "roles": ["viewer"]});
        let body = json!({"name": name, "identity": identity, "expires_at": expires_at});
        let told = Told::by(server.request("POST", "/v1/keys").json(&body)).await;
        assert_eq!(told.status, status, "{expires_at}: {told:?}");
        if status == 422 {
            assert_eq!(told.pointers(), ["/expires_at"]);
        }
    }
}

#[tokio::test]
async fn nobody_revokes_more_than_they_have_and_nobody_lists_keys_beyond_their_scopes() {
    let server = Server::start().await;
    let all = server.client().keys(None, None).await.expect("the keys").items;
    let admin = all.iter().find(|key| key.identity == "administrator").expect("the first one").id;
    let narrow = [Permission::KeysManage, Permission::JobsRead];
    let (own, narrowed) = server.key(IdentityKind::Person, &[Role::Admin], Some(&narrow), Scopes::default()).await;
    let revoke = async |key: &secrecy::SecretString, id| {
        let told = server.client_of(key).revoke_key(id, &Reason::default()).await;
        told.map(|key| key.revoked_at.is_some()).map_err(|error| error.problem().map(|p| (p.status, p.code.clone())))
    };
    let denied = Err(Some((403, "permission_denied".to_owned())));
    let hidden = Err(Some((404, "not_found".to_owned())));
    assert_eq!(revoke(&narrowed, admin).await, denied);
    let (acme, scoped) = server.key(IdentityKind::Person, &[Role::Admin], None, of_app("acme")).await;
    let (inside, _) = server.key(IdentityKind::App, &[], None, of_app("acme")).await;
    let (beside, _) = server.key(IdentityKind::App, &[], None, of_app("beta")).await;
    let both = Scopes { app: Some(BTreeSet::from(["acme".to_owned(), "beta".to_owned()])), node: None };
    let (wider, _) = server.key(IdentityKind::App, &[], None, both).await;
    for out_of_sight in [admin, own.0, beside.0, wider.0] {
        assert_eq!(revoke(&scoped, out_of_sight).await, hidden);
    }
    let page = server.client_of(&scoped).keys(None, None).await.expect("the keys that it sees");
    assert_eq!(page.items.iter().map(|key| key.id).collect::<Vec<_>>(), [inside.0, acme.0]);
    let first = server.client_of(&scoped).keys(Some(1), None).await.expect("a page");
    let second = server.client_of(&scoped).keys(Some(1), first.next_cursor.as_deref()).await.expect("a page");
    assert_eq!((first.items.len(), second.items.len(), second.next_cursor), (1, 1, None), "hidden keys make no gaps");
    assert_eq!(revoke(&scoped, inside.0).await, Ok(true));
    assert_eq!(revoke(&narrowed, own.0).await, Ok(true), "its own key");
    assert!(server.client().keys(None, None).await.is_ok(), "the administrator's key was never revoked");
}

#[tokio::test]
async fn keys_that_lose_a_race_are_made_and_revoked_by_another_try() {
    let server = Server::start().await;
    // Each first write of this kind meets a race that the second does not.
    for statement in [
        "create sequence lost_races",
        "create function lose_once() returns trigger language plpgsql as $$
             begin
                 if nextval('lost_races') % 2 = 1 then
                     raise exception using errcode = '40P01';
                 end if;
                 return new;
             end $$",
        "create trigger lose_once before insert or update on api_keys for each row execute function lose_once()",
    ] {
        sqlx::query(statement).execute(server.db.pool()).await.expect("the trap is laid");
    }
    let made = server.client().create_key(&new_key("ci", wire::IdentityKind::Person, &["viewer"]), Some("k1")).await;
    let made = made.expect("the second try makes it").value;
    let revoked = server.client().revoke_key(made.key.id, &Reason::default()).await.expect("the second try revokes it");
    assert!(revoked.revoked_at.is_some());
    let tries: i64 =
        sqlx::query_scalar("select last_value from lost_races").fetch_one(server.db.pool()).await.expect("a count");
    assert_eq!(tries, 4);
}

#[tokio::test]
async fn keys_of_machines_need_their_scope_and_take_no_roles() {
    let server = Server::start().await;
    let client = server.client();
    let error = client.create_key(&new_key("app", wire::IdentityKind::App, &[]), None).await.expect_err("no scope");
    assert!(error.problem().is_some_and(|p| p.is(Code::ValidationFailed) && p.detail.contains("scopes")), "{error}");
    let error =
        client.create_key(&new_key("app", wire::IdentityKind::App, &["admin"]), None).await.expect_err("a role");
    assert!(error.problem().is_some_and(|p| p.is(Code::ValidationFailed)), "{error}");
    let scopes = KeyScopes { app: Some(BTreeSet::from(["acme".to_owned()])), node: None };
    let made = client.create_key(&NewKey { scopes, ..new_key("app", wire::IdentityKind::App, &[]) }, None).await;
    let secret = made.expect("created").value.secret.expect("told once");
    let error =
        server.client_of(&secret).jobs(&wire::JobFilter::default()).await.expect_err("jobs are not its business");
    assert!(error.problem().is_some_and(|p| p.is(Code::PermissionDenied)), "{error}");
    let error =
        client.create_key(&new_key("app", wire::IdentityKind::Person, &[]), None).await.expect_err("a taken name");
    assert!(error.problem().is_some_and(|p| p.is(Code::NameTaken) && p.status == 409), "{error}");
}

#[tokio::test]
async fn a_key_that_asks_for_what_is_unknown_is_refused_by_its_pointer() {
    let server = Server::start().await;
    for (body, pointer) in [
        (json!({"name": "x", "identity": {"name": "x", "kind": "person", "roles": ["king"]}}), "/identity/roles"),
        (json!({"name": "x", "identity": {"name": "", "kind": "person"}}), "/identity/name"),
        (json!({"name": "", "identity": {"name": "x", "kind": "person"}}), "/name"),
        (json!({"name": "x", "identity": {"name": "x", "kind": "person"}, "permissions": ["jobs"]}), "/permissions/0"),
        (json!({"name": "x"}), "/identity"),
        (json!({"name": "x", "identity_id": uuid::Uuid::nil()}), "/identity_id"),
    ] {
        let told = Told::by(server.request("POST", "/v1/keys").json(&body)).await;
        assert_eq!((told.problem().0, told.pointers()), (422, vec![pointer.to_owned()]), "{body}");
    }
    let body = json!({"name": "x", "identity": {"name": "x", "kind": "person"}, "scopes": {"planet": ["mars"]}});
    let told = Told::by(server.request("POST", "/v1/keys").json(&body)).await;
    assert_eq!(told.problem(), (400, "malformed_request".to_owned()), "an unknown scope is never no scope");
}

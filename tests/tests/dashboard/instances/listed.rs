//! The list of all instances.

use super::*;
use crate::support::between;

/// Each row's host and what its state says.
fn listed(page: &str) -> Vec<(String, String)> {
    let rows = page.split("<th role=\"rowheader\"").skip(1);
    rows.map(|row| {
        let state = plain(between(row, "data-l=\"State\">", "</td>"));
        (plain(between(row, "\">", "</th>")).trim().to_owned(), state.trim().to_owned())
    })
    .collect()
}

#[tokio::test]
async fn every_instance_stands_in_the_list_with_its_state_and_what_is_wrong() {
    let fleet = Fleet::with_instance().await;
    let server = &fleet.server;
    // One for each state, beside the fleet's own.
    fleet
        .sql(
            "insert into instances (id, app, host, kind, backing, role, region, parked, created_at, revision)
             select gen_random_uuid(), app, h, kind, backing, role, region, h like 'b-parked%', created_at, 1
               from instances, (values ('a-new.example'), ('b-parked.example'), ('c-lands.example'), ('d-held.example'),
                                       ('e-silent.example')) as t (h);
             insert into nodes (id, identity, region, seen_at, created_at)
             select gen_random_uuid(), 'gone', 'eu', lh_now() - interval '1 hour', lh_now();
             insert into routes (host, instance_id, node_id, status, created_at, held, held_since)
             select i.host, i.id,
                    case when i.host like 'e-%' then (select id from nodes where identity = 'gone') else r.node_id end,
                    case when i.host like 'c-%' then 'landing' else 'serving' end, lh_now(),
                    case when i.host like 'd-%' then
                        jsonb_build_object('code', 'not_replicated', 'message', 'nothing was uploaded', 'permanent', false)
                    end, case when i.host like 'd-%' then lh_now() end
               from instances i, routes r
              where i.host not in (r.host, 'a-new.example')",
        )
        .await;
    fleet.client().move_instance(APP, HOST, &to("uk")).await.expect("begun");
    let mut visitor = Visitor::signed_in(server).await;
    let page = visitor.get("/instances").await;
    assert_eq!(page.status, 200);
    let told = listed(&page.text);
    let told: Vec<(&str, &str)> = told.iter().map(|(host, state)| (host.as_str(), state.as_str())).collect();
    assert_eq!(
        told,
        [
            ("a-new.example", "unplaced"),
            ("b-parked.example", "parked"),
            ("c-lands.example", "landing"),
            ("d-held.example", "serving"),
            ("e-silent.example", "serving"),
            (HOST, "preparing"),
        ]
    );
    let text = plain(&page.text);
    for words in ["nothing was uploaded", "box gone is not heard", "moves to uk"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(page.text.contains(&format!("href=\"{PAGE}\"")), "each leads to its page");
    let entry = |page: &str| page.contains("href=\"/instances\" data-key=\"i\" aria-current=\"page\"");
    assert!(entry(&page.text) && visitor.get(PAGE).await.text.contains("href=\"/instances?app=acme\""));
}

#[tokio::test]
async fn the_list_of_instances_goes_on_behind_the_last_host_and_within_one_application() {
    let fleet = Fleet::with_instance().await;
    fleet
        .sql(
            "insert into instances (id, app, host, kind, backing, role, region, created_at, revision)
             select gen_random_uuid(), case n % 2 when 0 then app else 'other' end, 'n' || to_char(n, 'FM000') || '.example',
                    kind, backing, role, region, created_at, 1
               from instances, generate_series(1, 299) as n",
        )
        .await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    for (first, wanted) in [("/instances", 300), ("/instances?app=other", 150), ("/instances?app=nobody", 0)] {
        let (mut hosts, mut next) = (Vec::new(), Some(first.to_owned()));
        while let Some(address) = next {
            let page = visitor.get(&address).await.text;
            hosts.extend(listed(&page).into_iter().map(|(host, _)| host));
            next = page.contains("rel=\"next\"").then(|| {
                let pager = page.split("class=\"pager\"").nth(1).expect("a pager");
                let link = pager.split("href=\"").map(|rest| rest.split('"').next().unwrap_or_default());
                link.filter(|it| it.contains("after=")).last().expect("a link").replace("&#38;", "&")
            });
        }
        assert_eq!(hosts.len(), wanted, "{first}");
        assert!(hosts.is_sorted_by(|one, other| one < other), "{first}");
    }
}

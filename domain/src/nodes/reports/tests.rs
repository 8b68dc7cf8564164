use super::*;

fn item(id: &str) -> Item {
    Item { kind: INSTANCE.to_owned(), id: id.to_owned() }
}

fn report(items: Vec<Item>) -> Report {
    let reported_at = "2026-01-01T00:00:00Z".parse().expect("a moment");
    Report { mark: Mark { incarnation: 1, seq: 1 }, outcome: Outcome::Applied, items, reported_at }
}

#[test]
fn a_report_is_held_to_its_bounds_and_the_first_that_it_breaks_is_named() {
    let many = |count: usize| report((0..count).map(|n| item(&n.to_string())).collect());
    assert_eq!(many(MAX_ITEMS).check(), Ok(()));
    let at = |report: &Report| report.check().err().map(|invalid| invalid.pointer);
    assert_eq!(at(&many(MAX_ITEMS + 1)).as_deref(), Some("/items"));
    assert_eq!(at(&report(vec![item("a"), item("b"), item("a")])).as_deref(), Some("/items/2"));
    let other_kind = Item { kind: "volume".to_owned(), ..item("a") };
    assert_eq!(at(&report(vec![item("a"), other_kind])), None, "ids are unique within their kind");
    for kind in ["", "Instance", "1a", "a-b", &"k".repeat(MAX_KIND_CHARS + 1)] {
        let bad = Item { kind: kind.to_owned(), ..item("a") };
        assert_eq!(at(&report(vec![bad])).as_deref(), Some("/items/0/kind"), "{kind:?}");
    }
    let longest = "é".repeat(MAX_ID_CHARS);
    assert_eq!(at(&report(vec![item(&longest)])), None);
    for id in ["", "a\nb", &format!("{longest}é")] {
        assert_eq!(at(&report(vec![item(id)])).as_deref(), Some("/items/0/id"), "{id:?}");
    }
    let early = "1999-12-31T23:59:59Z".parse().expect("a moment");
    assert_eq!(at(&Report { reported_at: early, ..report(vec![]) }).as_deref(), Some("/reported_at"));
    let marked = |incarnation, seq| Report { mark: Mark { incarnation, seq }, ..report(vec![]) };
    assert_eq!(at(&marked(0, 1)).as_deref(), Some("/incarnation"));
    assert_eq!(at(&marked(1, 0)).as_deref(), Some("/seq"));
}

#[test]
fn only_a_later_report_of_the_present_machine_that_applied_all_replaces_the_record() {
    let standing = Standing { incarnation: 2, live: true, kept: Some(Mark { incarnation: 2, seq: 5 }) };
    let of = |incarnation, seq, outcome| decide(standing, Mark { incarnation, seq }, outcome);
    assert_eq!(of(2, 6, Outcome::Applied), Verdict::Replace);
    assert_eq!(of(2, 6, Outcome::Refused), Verdict::Keep);
    assert_eq!(of(2, 6, Outcome::Partial), Verdict::Keep);
    assert_eq!(of(3, 1, Outcome::Applied), Verdict::Ahead);
    for outcome in [Outcome::Applied, Outcome::Refused, Outcome::Partial] {
        assert_eq!([of(2, 5, outcome), of(2, 4, outcome)], [Verdict::Late; 2]);
        assert_eq!(of(1, 9, outcome), Verdict::Replaced);
    }
    // The record of the machine before stays until the first report of the new one, whatever its number.
    let rebuilt = Standing { kept: Some(Mark { incarnation: 1, seq: 99 }), ..standing };
    assert_eq!(decide(rebuilt, Mark { incarnation: 2, seq: 1 }, Outcome::Applied), Verdict::Replace);
    let never = Standing { kept: None, ..standing };
    assert_eq!(decide(never, Mark { incarnation: 2, seq: 1 }, Outcome::Applied), Verdict::Replace);
    let ended = Standing { live: false, ..standing };
    assert_eq!(decide(ended, Mark { incarnation: 2, seq: 6 }, Outcome::Applied), Verdict::Ended);
}

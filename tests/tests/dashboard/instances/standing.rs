//! Whether an instance runs: the forms that park it, wake it and start it anew.

use super::*;

#[tokio::test]
async fn an_instance_is_parked_and_woken_by_forms() {
    let fleet = Fleet::with_instance().await;
    let mut visitor = Visitor::signed_in(&fleet.server).await;
    let csrf = token(&mut visitor).await;
    let told = visitor.post(&format!("{PAGE}/park"), &[("csrf", csrf.as_str())]).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    let text = says(&mut visitor).await;
    assert!(text.contains("parked in eu, on box box-eu. No process runs for it."), "{text}");
    assert!(text.contains("Wake ledger.acme.example") && !text.contains("Park ledger.acme.example"), "{text}");
    let told = visitor.post(&format!("{PAGE}/wake"), &[("csrf", csrf.as_str())]).await;
    assert_eq!(told.status, 303, "{told:?}");
    assert!(says(&mut visitor).await.contains("Restart ledger.acme.example"));
    let told = visitor.post(&format!("{PAGE}/restart"), &[("csrf", csrf.as_str())]).await;
    assert_eq!((told.status, told.header("location")), (303, Some(PAGE)), "{told:?}");
    assert_eq!(number(&fleet.server, "select restarts from instances").await, 2, "the wake, and then by itself");
    assert_eq!(number(&fleet.server, "select count(*) from instances where parked").await, 0);
}

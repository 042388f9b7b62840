//! What goes over the wire: how many requests, and that they refresh nothing.

use std::time::Duration;

use leasehold::{Attempt, Key, LeaseId, Leases, RenewRequest};
use tokio::time::sleep;

use super::{BOTH, Fixture, LONG, SHORT, common::proxy::Proxy};

#[tokio::test]
async fn each_operation_is_one_request() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let leases = Leases::new(fixture.store_at(&format!("http://{}", proxy.address)));
        let path = format!("POST /{}/_update/", fixture.alias.replace('-', "%2D"));
        let one_update = |what: &str| {
            let requests = proxy.http_requests();
            assert_eq!(requests.len(), 1, "{what}: {requests:?}");
            assert!(requests[0].starts_with(&path), "{what}: {requests:?}");
            assert!(!requests[0].contains("refresh"), "{what}: {requests:?}");
        };

        let lease = leases.acquire("key", LONG).await.unwrap();
        one_update("a free acquire");
        let held = leases.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)));
        one_update("a held attempt");
        lease.renew().await.unwrap();
        one_update("a renewal");
        leases.inspect("key").await.unwrap();
        one_update("a look");
        lease.release().await.unwrap();
        one_update("a release");
        leases.evict("key").await.unwrap();
        one_update("an eviction");

        leases.acquire("dies", SHORT).await.unwrap().detach();
        sleep(SHORT + Duration::from_millis(10)).await;
        proxy.http_requests();
        let next = leases.acquire("dies", LONG).await.unwrap();
        one_update("a takeover");
        next.release().await.unwrap();
        sleep(Duration::from_millis(10)).await;
        proxy.http_requests();
        leases.remove_expired("dies").await.unwrap();
        one_update("a removal");
    }
}

#[tokio::test]
async fn a_thousand_renewals_are_one_request() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let request = |number| {
            let key = Key::new(format!("key {number}")).unwrap();
            RenewRequest::new(key, LeaseId::random(), LONG)
        };
        let requests: Vec<_> = (0..1_000).map(request).collect();
        let answers = store.renew(&requests).await.unwrap();
        assert_eq!(answers.len(), 1_000);
        let sent = proxy.http_requests();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(sent[0].contains("/_bulk"), "{sent:?}");
    }
}

/// The index counts what is written to it, and has a number for every change.
#[tokio::test]
async fn fifty_losing_attempts_write_nothing() {
    use elasticsearch::http::Method::Get;

    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = Leases::new(fixture.store());
        let lease = leases.acquire("key", LONG).await.unwrap();
        let document = format!("{}/_doc/key", fixture.alias);
        let stats = format!("{}/_stats/indexing", fixture.alias);
        let indexed = async || {
            let stats = fixture.ask(Get, &stats, serde_json::Value::Null).await;
            let indexing = stats["_all"]["primaries"]["indexing"].clone();
            (
                indexing["index_total"].as_i64().unwrap(),
                indexing["noop_update_total"].as_i64().unwrap(),
            )
        };
        let before = fixture.ask(Get, &document, serde_json::Value::Null).await;
        let (written, noops) = indexed().await;
        assert_eq!(written, 1, "the control: a grant is counted");
        for _ in 0..50 {
            let attempt = leases.try_acquire("key", LONG).await.unwrap();
            assert!(matches!(attempt, Attempt::Held(_)));
        }
        let after = fixture.ask(Get, &document, serde_json::Value::Null).await;
        assert_eq!(before, after);
        assert_eq!(indexed().await, (written, noops + 50));
        lease.release().await.unwrap();
        assert_eq!(indexed().await.0, written + 1);
    }
}

//! What goes over the wire: how many requests, and that they refresh nothing.

use std::time::Duration;

use elasticsearch::http::Method::{Get, Post};
use leasehold::{AcquireAnswer, AcquireRequest, Attempt, Key, LeaseId, Leases, RenewRequest};
use serde_json::{Value, json};
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

/// An answer that writes nothing comes from the primary alone, and one that is cut off would go on
/// giving it. A grant that is asked for again is therefore written again: only then the replicas
/// have it, too.
#[tokio::test]
async fn a_repeated_grant_is_written_again_and_a_refusal_is_not() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let key = Key::new("key").unwrap();
        let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
        let path = format!("{}/_doc/key", fixture.alias);
        let written = async || {
            let document = fixture.ask(Get, &path, Value::Null).await;
            document["_seq_no"].as_i64().unwrap()
        };
        let AcquireAnswer::Granted(first) = store.acquire(&request).await.unwrap() else {
            panic!("held");
        };
        let before = written().await;
        sleep(Duration::from_millis(50)).await;
        let AcquireAnswer::Granted(again) = store.acquire(&request).await.unwrap() else {
            panic!("held by itself");
        };
        assert_eq!(written().await, before + 1);
        assert_eq!(
            (first.fence, first.expires_at),
            (again.fence, again.expires_at)
        );
        // The time is that of the second answer, so less is left.
        assert!(again.expires_in() <= first.expires_in() - Duration::from_millis(50));

        let mut other = request.clone();
        other.lease = LeaseId::random();
        store.acquire(&other).await.unwrap();
        assert_eq!(written().await, before + 1);
    }
}

/// What the stores rely on, and the documentation of neither engine promises: the answer to an
/// update that changes nothing shows the document as the script left it, if it is asked for by a
/// filter.
#[tokio::test]
async fn an_answer_that_changes_nothing_shows_what_the_script_added() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        Leases::new(fixture.store())
            .acquire("key", LONG)
            .await
            .unwrap()
            .detach();
        let path = format!("{}/_update/key", fixture.alias);
        let script = "ctx._source.now = 7; ctx.op = 'none'";
        let shown = json!({ "script": script, "_source": { "includes": ["*"] } });
        let answer = fixture.ask(Post, &path, shown).await;
        assert_eq!(answer["result"], "noop", "{answer}");
        assert_eq!(answer["get"]["_source"]["now"], 7, "{answer}");
        let stored = json!({ "script": script, "_source": true });
        let answer = fixture.ask(Post, &path, stored).await;
        assert!(answer["get"]["_source"]["now"].is_null(), "{answer}");
    }
}

/// The index counts what is written to it, and has a number for every change.
#[tokio::test]
async fn fifty_losing_attempts_write_nothing() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = Leases::new(fixture.store());
        let lease = leases.acquire("key", LONG).await.unwrap();
        let document = format!("{}/_doc/key", fixture.alias);
        let stats = format!("{}/_stats/indexing", fixture.alias);
        let indexed = async || {
            let stats = fixture.ask(Get, &stats, Value::Null).await;
            let indexing = stats["_all"]["primaries"]["indexing"].clone();
            (
                indexing["index_total"].as_i64().unwrap(),
                indexing["noop_update_total"].as_i64().unwrap(),
            )
        };
        let before = fixture.ask(Get, &document, Value::Null).await;
        let (written, noops) = indexed().await;
        assert_eq!(written, 1, "the control: a grant is counted");
        for _ in 0..50 {
            let attempt = leases.try_acquire("key", LONG).await.unwrap();
            assert!(matches!(attempt, Attempt::Held(_)));
        }
        let after = fixture.ask(Get, &document, Value::Null).await;
        assert_eq!(before, after);
        assert_eq!(indexed().await, (written, noops + 50));
        lease.release().await.unwrap();
        assert_eq!(indexed().await.0, written + 1);
    }
}

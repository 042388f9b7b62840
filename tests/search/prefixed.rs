//! Behind a proxy that decodes and resolves paths, each operation is on the document that was meant.

use std::time::Duration;

use elasticsearch::http::Method::Get;
use leasehold::{
    Attempt, Error, Key, PermitAttempt, Store,
    store::{LeaseId, LookRequest},
};
use leasehold_tests::{every, prefix::PrefixProxy};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, ask, fencing::Documents, leases};

/// A proxy would read each of them as a part of a path, or as a path to another document.
const IDS: [&str; 12] = [
    "report/42",
    "orders/../victim",
    "../victim",
    "x/../../_bulk",
    "a//b",
    "/",
    ".",
    "..",
    "%2e%2e%2fvictim",
    "a%2Fb",
    "a?refresh=true#b",
    "é;\\ +",
];

/// The ids of all documents of an index.
async fn stored(fixture: &Fixture) -> Vec<String> {
    let refresh = format!("{}/_refresh", fixture.alias);
    fixture.ask(Get, &refresh, Value::Null).await;
    let search = format!("{}/_search?size=100", fixture.alias);
    let found = fixture.ask(Get, &search, Value::Null).await;
    let hits = found["hits"]["hits"].as_array().unwrap();
    let mut ids: Vec<_> = hits
        .iter()
        .map(|hit| hit["_id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

fn sorted(ids: &[&str]) -> Vec<String> {
    let mut ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn a_key_is_locked_under_its_own_id() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = PrefixProxy::to(fixture.host()).await;
        let store = fixture.store_at(&proxy.url());
        let [here, there] = [leases(store.clone()), leases(fixture.store())];
        let victim = there.acquire("victim", LONG).await.unwrap();
        for id in IDS {
            let lease = here.acquire(id, LONG).await.unwrap();
            // A client without the proxy sees the same lock.
            let state = there.inspect(id).await.unwrap().unwrap();
            assert_eq!(state.holders[0].lease, lease.id(), "{id}");
            for client in [&here, &there] {
                let held = client.try_acquire(id, LONG).await.unwrap();
                let again = client.try_acquire(id, LONG).await.unwrap();
                assert!(
                    matches!((held, again), (Attempt::Held(_), Attempt::Held(_))),
                    "{id}"
                );
            }
            let key = Key::new(id).unwrap();
            let looked_at = LookRequest::new(key.clone(), lease.id());
            let told = store.look(&[looked_at]).await.unwrap();
            assert_eq!(
                (told[0].is_held, told[0].is_waited_for),
                (true, false),
                "{id}"
            );
            store.leave(&key, LeaseId::random()).await.unwrap();
            lease.renew().await.unwrap();
            lease.downgrade().await.unwrap();
            lease.release().await.unwrap();
            here.evict(id).await.unwrap();
        }
        let all = [&IDS[..], &["victim"]].concat();
        assert_eq!(stored(&fixture).await, sorted(&all));
        victim.renew().await.unwrap();
        for path in proxy.paths() {
            let is_ours = path.starts_with(&format!("/{}", fixture.alias));
            assert!(is_ours && path.matches('/').count() <= 2, "{path}");
        }
    }
}

#[tokio::test]
async fn a_limiter_and_every_operation_work_behind_it() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = PrefixProxy::to(fixture.host()).await;
        let store = fixture.store_at(&proxy.url());
        let leases = leases(store.clone());
        for (name, outcome) in every::of_a_handle(&leases, Duration::from_secs(60)).await {
            match outcome {
                // Some of these acquires compete with each other, and permits and readers do not go together.
                Ok(()) | Err(Error::WaitTimedOut { .. } | Error::LimitReached { .. }) => {}
                Err(error) => panic!("{name}: {error:?}"),
            }
        }
        for id in IDS {
            let limiter = leases.limiter(id, 1, Duration::from_secs(3_600));
            let first = limiter.try_permit().await.unwrap();
            assert!(
                matches!(first, PermitAttempt::Granted(_)),
                "{id}: {first:?}"
            );
        }
        let limiters = stored(&fixture).await;
        let limiters = limiters
            .iter()
            .filter(|id| id.starts_with("limiter:"))
            .count();
        assert!(limiters >= IDS.len(), "{limiters}");
    }
}

#[tokio::test]
async fn a_guarded_document_is_written_under_its_own_id() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        documents.put("victim", json!({ "by": "nobody" })).await;
        let proxy = PrefixProxy::to(documents.fixture().host()).await;
        for id in IDS {
            let guard = documents.guard_at(&proxy.url(), 7);
            assert_eq!(guard.claim(id).await.unwrap(), None, "{id}");
            guard.index(id, &json!({ "by": id })).await.unwrap();
            assert!(guard.update(id, &json!({ "more": 1 })).await.unwrap());
            let claimed = documents.guard(8).claim(id).await.unwrap().unwrap();
            assert_eq!((&claimed["by"], &claimed["more"]), (&json!(id), &json!(1)));
            let late = guard.index(id, &json!({ "by": "late" })).await.unwrap_err();
            assert!(matches!(late, Error::Fenced { .. }), "{id}: {late:?}");
        }
        assert_eq!(documents.source("victim").await, json!({ "by": "nobody" }));
        let fixture = documents.fixture();
        let all = [&IDS[..], &["victim"]].concat();
        assert_eq!(stored(fixture).await, sorted(&all));
        for id in IDS {
            assert!(
                documents
                    .guard_at(&proxy.url(), 9)
                    .delete(id)
                    .await
                    .unwrap()
            );
        }
        assert_eq!(stored(fixture).await, ["victim"]);
    }
}

/// Such a name would lead to several indices, to another path, or by a proxy to another index.
#[tokio::test]
async fn what_cannot_be_the_name_of_an_index_is_refused() {
    for engine in BOTH {
        let mut fixture = Fixture::new(engine);
        for name in ["", "..", "a/../b", "a,b", "locks*", "a b", "%61", "_all,x"] {
            fixture.alias = name.to_owned();
            let store = fixture.store();
            for error in [
                fixture.prepare().await.unwrap_err(),
                fixture.check().await.unwrap_err(),
                store.acquire(&ask()).await.unwrap_err(),
                store.inspect(&ask().key).await.unwrap_err(),
            ] {
                assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                assert!(error.to_string().contains("use letters"), "{error}");
            }
            for outcome in Documents::named(fixture.clone())
                .guard(7)
                .everything("a")
                .await
            {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::Store { .. }), "{error:?}");
                let source = std::error::Error::source(&error).unwrap().to_string();
                assert!(source.contains("use letters"), "{source}");
            }
        }
    }
}

//! Indices that are missing, indices that cannot be guarded, and clusters that fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use elasticsearch::http::Method::{Get, Put};
use leasehold::{Error, Fence, fencing::GuardedIndex};
use leasehold_tests::{liar::Liar, proxy::Proxy};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    super::{BOTH, Engine, Fixture, elasticsearch, errors::of_no_index},
    Documents, Guard, cause, seen,
};

#[tokio::test]
async fn an_index_that_is_not_there_is_not_created() {
    for engine in BOTH {
        let documents = Documents(Fixture::new(engine));
        let guard = documents.guard(7);
        for id in ["a", ".."] {
            for outcome in guard.everything(id).await {
                let error = outcome.unwrap_err();
                assert!(cause(&error).contains("create the index"), "{error:?}");
                assert!(!error.is_retryable());
            }
        }
        let found = documents.0.ask(Get, &documents.0.alias, Value::Null).await;
        assert_eq!(found["status"], 404, "{found}");

        // The guard does not remember that the index was missing.
        documents.0.ask(Put, &documents.0.alias, json!({})).await;
        guard.index("a", &json!({})).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_is_one_request_and_the_first_one_more() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let proxy = Proxy::to(documents.0.host()).await;
        let url = format!("http://{}", proxy.address);
        for name in [documents.0.alias.clone(), documents.0.index()] {
            let guard = documents.guard_of(&url, &name, 7);
            let mut expected = 2;
            for id in ["a", ".."] {
                // A clone knows what the first guard has found.
                let guard = guard.clone();
                guard.index(id, &json!({})).await.unwrap();
                let sent = proxy.http_requests();
                assert_eq!(sent.len(), expected, "{sent:?}");
                assert!(sent.iter().all(|it| !it.contains("refresh")), "{sent:?}");
                expected = 1;
                assert!(guard.claim(id).await.unwrap().is_some());
                assert!(guard.update(id, &json!({})).await.unwrap());
                assert!(guard.delete(id).await.unwrap());
                assert_eq!(proxy.http_requests().len(), 3);
            }
        }
    }
}

#[tokio::test]
async fn a_strict_mapping_without_the_field_is_named() {
    for engine in BOTH {
        let mut strict =
            json!({ "dynamic": "strict", "properties": { "total": { "type": "long" } } });
        let documents = Documents::mapped(engine, strict.clone()).await;
        documents.put("a", json!({ "total": 1 })).await;
        let guard = documents.guard(7);
        let errors = [
            guard.claim("a").await.map(drop).unwrap_err(),
            guard.index("a", &json!({ "total": 2 })).await.unwrap_err(),
            guard.index("b", &json!({ "total": 2 })).await.unwrap_err(),
            guard
                .update("a", &json!({ "total": 2 }))
                .await
                .map(drop)
                .unwrap_err(),
        ];
        for error in errors {
            let text = cause(&error);
            assert!(text.contains("map leasehold_fence as a long"), "{text}");
        }
        assert_eq!(documents.source("a").await, json!({ "total": 1 }));

        strict["properties"][Fence::FIELD] = json!({ "type": "long" });
        let documents = Documents::mapped(engine, strict).await;
        let guard = documents.guard(7);
        guard.index("a", &json!({ "total": 1 })).await.unwrap();
        let error = guard.update("a", &json!({ "other": 1 })).await.unwrap_err();
        assert!(cause(&error).contains("[other]"), "{error:?}");
        assert!(!cause(&error).contains(Fence::FIELD), "{error:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_guarded_is_refused() {
    for engine in BOTH {
        let bare = json!({ "_source": { "enabled": false } });
        let documents = Documents::mapped(engine, bare).await;
        documents.put("a", json!({ "total": 1 })).await;
        for outcome in documents.guard(7).everything("a").await {
            let error = outcome.unwrap_err();
            assert!(cause(&error).contains("no whole _source"), "{error:?}");
        }
        let routed = json!({ "_routing": { "required": true } });
        let documents = Documents::mapped(engine, routed).await;
        for outcome in documents.guard(7).everything("a").await {
            let error = outcome.unwrap_err();
            assert!(cause(&error).contains("requires a routing"), "{error:?}");
        }

        let guard = documents.guard(7);
        for nonsense in [json!([1]), json!("text"), json!(null)] {
            for error in [
                guard.index("a", &nonsense).await.unwrap_err(),
                guard.update("a", &nonsense).await.map(drop).unwrap_err(),
            ] {
                assert!(cause(&error).contains("is an object"), "{error:?}");
            }
        }
        for id in [String::new(), "x".repeat(513)] {
            for outcome in guard.everything(&id).await {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::InvalidKey { .. }), "{error:?}");
            }
        }
    }
}

#[tokio::test]
async fn scripts_that_must_be_stored_are_stored_with_those_of_the_locks() {
    let fixture = Fixture::secured(Engine::ElasticsearchSecured).await;
    let index = format!("{}-orders", fixture.alias);
    fixture.ask(Put, &index, json!({})).await;
    let guard = GuardedIndex::new(elasticsearch(&fixture.url), &index, Fence::new(7));
    let error = guard.index("a", &json!({})).await.unwrap_err();
    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
    assert!(error.to_string().contains("stored_scripts()"), "{error}");

    let store = fixture.on_elasticsearch().stored_scripts();
    store.prepare().await.unwrap();
    let guard = Guard::Elasticsearch(guard.stored_scripts());
    for outcome in guard.everything("a").await {
        outcome.unwrap();
    }
    guard.index("a", &json!({})).await.unwrap();
    let older = GuardedIndex::new(elasticsearch(&fixture.url), &index, Fence::new(6));
    let older = Guard::Elasticsearch(older.stored_scripts());
    for outcome in older.everything("a").await {
        assert_eq!(seen(&outcome.unwrap_err()), Some(7));
    }
    assert!(!format!("{guard:?}").contains("elastic:"), "{guard:?}");
}

/// A retry with the same fence is harmless, whether the request or its answer was lost.
#[tokio::test]
async fn a_lost_request_or_answer_is_ambiguous_and_can_be_repeated() {
    for engine in BOTH {
        for lost in [Proxy::lose_the_answer_to, Proxy::lose_the_request] {
            let documents = Documents::new(engine).await;
            let proxy = Proxy::to(documents.0.host()).await;
            let url = format!("http://{}", proxy.address);
            let guard = documents.guard_of(&url, &documents.0.alias, 7);
            for _ in 0..2 {
                lost(&proxy, "_bulk");
                let error = guard.index("a", &json!({ "total": 1 })).await.unwrap_err();
                assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
                assert!(error.is_retryable() && error.is_ambiguous());
                guard.index("a", &json!({ "total": 1 })).await.unwrap();
            }
            assert_eq!(proxy.cuts(), 2);
            let expected = json!({ "total": 1, Fence::FIELD: 7 });
            assert_eq!(documents.source("a").await, expected);
        }
    }
}

/// The future is dropped at any point. Whether the write was carried out is not known, and does not matter to the next
/// write.
#[tokio::test]
async fn a_dropped_future_leaves_a_guard_that_works() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let guard = documents.guard(7);
        for total in 0..20 {
            let document = json!({ "total": total });
            let patience = Duration::from_micros(500 * total);
            let _ = timeout(patience, guard.index("dropped", &document)).await;
            guard.index("kept", &document).await.unwrap();
            assert_eq!(documents.source("kept").await["total"], total);
        }
        let left = documents.source("dropped").await;
        assert!(left.is_null() || left[Fence::FIELD] == 7, "{left}");
        guard.index("dropped", &json!({})).await.unwrap();
    }
}

/// A node that starts knows of no index, and answers an update with that. The store has a test of the same.
#[tokio::test]
async fn an_index_that_a_starting_node_does_not_know_yet_is_no_missing_one() {
    for starts in [true, false] {
        let created = Arc::new(AtomicBool::new(false));
        let creates = created.clone();
        let liar = Liar::saying(Arc::new(move |request| {
            let text = String::from_utf8_lossy(request);
            if text.contains("_bulk") {
                creates.store(true, Ordering::Relaxed);
            }
            of_no_index(request, starts)
        }));
        let url = format!("http://{}", liar.await.address);
        let guard = GuardedIndex::new(elasticsearch(&url), "orders", Fence::new(7));
        let error = guard.index("a", &json!({})).await.unwrap_err();
        assert_eq!(error.is_retryable(), starts, "{error:?}");
        assert_eq!(matches!(error, Error::Store { .. }), !starts, "{error:?}");
        assert!(!created.load(Ordering::Relaxed), "without the alias");
    }
}

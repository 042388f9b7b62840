//! What is stored, and what else may be in the index.

use elasticsearch::http::Method::{Get, Post, Put};
use std::{sync::Arc, time::Duration};

use futures::{
    TryStreamExt,
    future::{join, join_all},
};

use leasehold::{
    Attempt, Error, Filter, Key, Store,
    limits::MAX_KEY_BYTES,
    store::{ListRequest, SCHEMA},
};
use leasehold_tests::carried::is_carried_along;
use leasehold_tests::clock_ahead;
use leasehold_tests::engine::Engine;
use leasehold_tests::hostile::{
    KEY, Verdict, are_judged_alike, are_not_purged, shapes, tick_shapes, twin_places,
    untyped_shapes, with_times,
};
use leasehold_tests::long;
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, builder, leases};

#[tokio::test]
async fn the_document_has_its_final_shape() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = builder(fixture.store()).owner("pod-3").build();
        let lease = leases.acquire("report:42", LONG).await.unwrap();
        let path = format!("{}/_doc/report:42", fixture.alias);
        let stored = async || fixture.ask(Get, &path, Value::Null).await["_source"].take();
        let acquired_at = lease.acquired_at().timestamp_millis();
        // The last of the fences that the lease has taken.
        let fence = lease.fence().get() + 1_023;
        let document = json!({
            "key": "report:42",
            "schema": SCHEMA,
            "fence": fence,
            "lease": lease.id().to_string(),
            "owner": "pod-3",
            "acquired_at": acquired_at,
            "expires_at": acquired_at + LONG.as_millis() as i64,
            "written_at": acquired_at,
        });
        assert_eq!(stored().await, document);
        lease.release().await.unwrap();
        let tombstone = stored().await;
        let released_at = &tombstone["released_at"];
        let document = json!({
            "key": "report:42",
            "schema": SCHEMA,
            "fence": fence,
            "released_at": released_at,
            "written_at": released_at,
        });
        assert_eq!(tombstone, document);

        let lease = leases.acquire("report:42", LONG).shared().await.unwrap();
        let acquired_at = lease.acquired_at().timestamp_millis();
        let expires_at = acquired_at + LONG.as_millis() as i64;
        let document = json!({
            "key": "report:42",
            "schema": SCHEMA,
            "fence": lease.fence().get(),
            "expires_at": expires_at,
            "written_at": acquired_at,
            "holders": [{
                "lease": lease.id().to_string(),
                "owner": "pod-3",
                "mode": "shared",
                "permits": 1,
                "fence": lease.fence().get(),
                "acquired_at": acquired_at,
                "expires_at": expires_at,
            }],
        });
        assert_eq!(stored().await, document);
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_holder_of_a_clock_that_was_ahead_is_named() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let now = chrono::Utc::now().timestamp_millis();
        let shape = clock_ahead::shape();
        let document = with_times(&shape, &|seconds| json!(now + seconds * 1_000));
        // Lists and searches see it at once.
        let path = format!("{}/_doc/{KEY}?refresh=true", fixture.alias);
        let stored = fixture.ask(Put, &path, document).await;
        assert!(stored["error"].is_null(), "{stored}");
        clock_ahead::is_named(fixture.store()).await;
    }
}

#[tokio::test]
async fn hostile_documents_are_judged_alike_by_every_operation() {
    join_all(BOTH.map(async |engine| {
        // A short run tries a part of the documents. The scripts are the same on both engines.
        let every = match engine {
            _ if long() => 1,
            Engine::OpenSearch => 7,
            _ => 3,
        };
        let typed = shapes().into_iter().chain(tick_shapes());
        let typed: Vec<_> = typed.step_by(every).collect();
        let untyped: Vec<_> = untyped_shapes().into_iter().step_by(every).collect();
        let taken = join(
            are_judged_alike_on(engine, &typed),
            are_judged_alike_on(engine, &untyped),
        );
        let (of_typed, of_untyped) = taken.await;
        assert_eq!(of_typed, typed.len());
        assert!(
            of_untyped >= 50 / every,
            "the mapping took {of_untyped} of {}",
            untyped.len()
        );
    }))
    .await;
}

/// Tries the documents in several indices at the same time, because one after the other takes minutes. Returns how many
/// of them the mapping takes.
async fn are_judged_alike_on(engine: Engine, documents: &[(Verdict, Value)]) -> usize {
    const PARTS: usize = 4;
    let parts = documents.chunks(documents.len().div_ceil(PARTS));
    let taken = parts.map(|part| a_part_is_judged_alike_on(engine, part));
    join_all(taken).await.into_iter().sum()
}

async fn a_part_is_judged_alike_on(engine: Engine, documents: &[(Verdict, Value)]) -> usize {
    let fixture = Fixture::prepared(engine).await;
    let path = format!("{}/_doc/{KEY}", fixture.alias);
    let put = async |document: &Value| {
        let now = chrono::Utc::now().timestamp_millis();
        let document = with_times(document, &|seconds| json!(now + seconds * 1_000));
        let stored = fixture.ask(Put, &path, document).await;
        // The mapping refuses some of the documents.
        stored["error"].is_null()
    };
    // With its version, which every write raises.
    let get = async || {
        let mut found = fixture.ask(Get, &path, Value::Null).await;
        found["found"].as_bool()?.then(|| found.take())
    };
    let store: Arc<dyn Store> = Arc::new(fixture.store());
    let taken = are_judged_alike(&store, documents, put, get).await;
    are_not_purged(&store, documents, put, get).await;
    taken
}

#[tokio::test]
async fn a_place_that_stands_twice_is_judged_as_the_rules_say() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let path = format!("{}/_doc/{KEY}", fixture.alias);
        let put = async |document: &Value| {
            let now = chrono::Utc::now().timestamp_millis();
            let document = with_times(document, &|seconds| json!(now + seconds * 1_000));
            let stored = fixture.ask(Put, &path, document).await;
            assert!(stored["error"].is_null(), "{stored}");
        };
        twin_places::are_judged_as_the_rules_say(&*fixture.store(), put).await;
    }
}

/// Another application has written the documents into the index.
#[tokio::test]
async fn a_document_with_a_key_that_is_none_hides_no_lock() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        for (id, key) in [("empty", String::new()), ("long", "a".repeat(600))] {
            let document = json!({ "key": key, "schema": SCHEMA, "fence": 7 });
            let path = format!("{}/_doc/{id}", fixture.alias);
            let stored = fixture.ask(Put, &path, document).await;
            assert_eq!(stored["error"], Value::Null);
        }
        let leases = leases(fixture.store());
        let _held = leases.acquire("key", LONG).await.unwrap();
        let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(leases.release_owner("nobody").await.unwrap(), 0);
    }
}

/// Its fence counts as 0.
#[tokio::test]
async fn a_purge_removes_a_free_lock_without_a_fence() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let path = format!("{}/_doc/key", fixture.alias);
        let long_ago = chrono::Utc::now().timestamp_millis() - 60_000;
        let document = json!({ "key": "key", "schema": SCHEMA, "released_at": long_ago });
        let stored = fixture.ask(Put, &path, document).await;
        assert_eq!(stored["error"], Value::Null);
        let refreshed = format!("{}/_refresh", fixture.alias);
        fixture.ask(Post, &refreshed, Value::Null).await;
        let purged = leases(fixture.store()).purge(Duration::ZERO).await;
        assert_eq!(purged.unwrap(), 1);
    }
}

#[tokio::test]
async fn what_waits_and_what_is_done_is_carried_along() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let path = |what: &str, key: &Key| format!("{}/{what}/{key}", fixture.alias);
        let set = async |key: &Key, fields: &Value| {
            let now = chrono::Utc::now().timestamp_millis();
            let fields = with_times(fields, &|seconds| json!(now + seconds * 1_000));
            let body = json!({ "doc": fields });
            let set = fixture.ask(Post, &path("_update", key), body).await;
            assert_eq!(set["result"], "updated", "{set}");
        };
        let get = async |key: &Key| {
            let mut found = fixture.ask(Get, &path("_doc", key), Value::Null).await;
            found["_source"].take()
        };
        is_carried_along(&*fixture.store(), set, get).await;
    }
}

/// The index takes nothing but locks, so no document of another application can be in the way of a lock.
#[tokio::test]
async fn the_index_refuses_what_is_not_a_lock() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let path = format!("{}/_doc/order", fixture.alias);
        let refused = fixture.ask(Put, &path, json!({ "total": 12 })).await;
        assert_eq!(refused["status"], 400, "{refused}");
    }
}

/// The pages of a list go by the key, but a lock is found by its id.
#[tokio::test]
async fn a_document_under_another_id_is_left_out_of_a_list() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let lock =
            |key: &str| json!({ "key": key, "schema": SCHEMA, "fence": 7, "released_at": 0 });
        for (id, key) in [("a", "z"), ("b", "b"), ("c", "y"), ("d", "d")] {
            fixture
                .ask(Put, &format!("{}/_doc/{id}", fixture.alias), lock(key))
                .await;
        }
        let store = fixture.store();
        // The list comes in pages of one lock, and has to come to an end.
        let (mut after, mut shown) = (None, Vec::new());
        for _ in 0..10 {
            let page = ListRequest::new(Filter::new(), after, 1);
            let page = store.list(&page).await.unwrap();
            shown.extend(page.locks.iter().map(|lock| lock.key.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((shown, after), (vec!["b".to_owned(), "d".to_owned()], None));
    }
}

/// The documents of these keys have other ids than the keys, because the ids of limiters begin in the same way, and
/// because the length of an id is limited.
#[tokio::test]
async fn the_longest_keys_that_begin_as_limiters_are_locked_as_any_others() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        let longest = |last: &str| format!("limiter:{}{last}", "a".repeat(MAX_KEY_BYTES - 9));
        let keys = [
            longest("b"),
            longest("c"),
            "limiter:".to_owned(),
            "d".repeat(MAX_KEY_BYTES),
        ];
        let mut held = Vec::new();
        for key in &keys {
            let lease = leases.acquire(key, LONG).await.unwrap();
            let Attempt::Held(by) = leases.try_acquire(key, LONG).await.unwrap() else {
                panic!("{key} was granted twice");
            };
            assert_eq!(by.holders()[0].lease, lease.id());
            assert_eq!(by.key().as_str(), key);
            lease.renew().await.unwrap();
            held.push(lease);
        }
        let listed = leases.list(Filter::new().prefix("limiter:"));
        let listed: Vec<_> = listed.try_collect().await.unwrap();
        let listed: Vec<_> = listed.iter().map(|lock| lock.key.as_str()).collect();
        assert_eq!(listed, [&keys[2], &keys[0], &keys[1]]);
        for (key, lease) in keys.iter().zip(held) {
            lease.release().await.unwrap();
            assert!(leases.inspect(key).await.unwrap().unwrap().is_free());
            assert!(leases.evict(key).await.unwrap().is_some());
        }
    }
}

/// Paths drop these two segments, percent-encoded or not.
#[tokio::test]
async fn dots_are_keys_as_well() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        for key in [".", ".."] {
            assert_eq!(leases.inspect(key).await.unwrap(), None);
            let lease = leases.acquire(key, LONG).await.unwrap();
            lease.renew().await.unwrap();
            let state = leases.inspect(key).await.unwrap().unwrap();
            assert_eq!(state.holders[0].lease, lease.id());
            let refused = leases
                .acquire(key, LONG)
                .wait_for(std::time::Duration::ZERO)
                .await;
            assert!(
                matches!(refused, Err(Error::WaitTimedOut { .. })),
                "{refused:?}"
            );
            lease.release().await.unwrap();
            assert!(leases.evict(key).await.unwrap().is_some());
        }
        let locks: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
        let keys: Vec<_> = locks.iter().map(|lock| lock.key.as_str()).collect();
        assert_eq!(keys, [".", ".."]);
    }
}

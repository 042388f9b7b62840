//! The queue of the waiting processes: their places in the document, and which of them count.

mod counting;

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use elasticsearch::http::Method::{Get, Put};
use futures::future::join_all;
use leasehold::{
    Error, Held, Key, Store,
    limits::MAX_PLACES,
    rules::turn::MAX_BIND_TIME,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, SCHEMA, Turn,
    },
};
use leasehold_tests::proxy::Proxy;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{BOTH, Engine, Fixture, PATIENCE, ask, granted};

/// For how long a place counts if it has to outlast the test's steps.
const STAYS: Duration = Duration::from_secs(50);
/// For how long a place counts if the test waits for its end.
const MOMENT: Duration = Duration::from_millis(1);
/// The process of this place does not wait any more.
const GONE: &str = "44444444-4444-4444-8444-444444444444";

fn in_turn(waiter: LeaseId, counts_for: Duration) -> AcquireRequest {
    ask().turn(Turn::in_turn(waiter, counts_for))
}

async fn refused(store: &dyn Store, request: &AcquireRequest) -> Held {
    match store.acquire(request).await.unwrap() {
        AcquireAnswer::Held(held) => held,
        answer => panic!("{answer:?}"),
    }
}

async fn released(store: &dyn Store, request: &AcquireRequest) {
    let release = ReleaseRequest::new(request.key.clone(), request.lease);
    let answer = store.release(&release).await.unwrap();
    assert_eq!(answer, ReleaseAnswer::Released);
}

async fn waiters(store: &dyn Store) -> Vec<LeaseId> {
    let state = store.inspect(&ask().key).await.unwrap().unwrap();
    state.waiters.iter().map(|place| place.waiter).collect()
}

/// The document of the key, and its version, which every write raises.
async fn stored(fixture: &Fixture) -> (Value, Value) {
    let path = format!("{}/_doc/key", fixture.alias);
    let mut found = fixture.ask(Get, &path, Value::Null).await;
    (found["_source"].take(), found["_version"].take())
}

async fn put(fixture: &Fixture, document: &Value) {
    let path = format!("{}/_doc/key", fixture.alias);
    let put = fixture.ask(Put, &path, document.clone()).await;
    assert!(put["error"].is_null(), "{document}: {put}");
}

fn now() -> i64 {
    Utc::now().timestamp_millis()
}

fn place(changes: Value) -> Value {
    let mut place = json!({
        "waiter": GONE, "owner": "they", "mode": "exclusive", "permits": 1, "since": now(), "until": now() + 50_000,
    });
    for (name, value) in changes.as_object().unwrap() {
        place[name] = value.clone();
    }
    place
}

/// The document of a key that has shared holders, or that was released just now, with these waiters.
fn lock(waiters: &Value, is_free: bool) -> Value {
    let mut lock = json!({ "key": "key", "schema": SCHEMA, "fence": 7, "waiters": waiters });
    if is_free {
        lock["released_at"] = json!(now());
        return lock;
    }
    let expires_at = now() + 600_000;
    lock["expires_at"] = json!(expires_at);
    lock["holders"] = json!([{
        "lease": LeaseId::random().to_string(), "owner": "me", "mode": "shared", "permits": 1, "fence": 7,
        "acquired_at": now(), "expires_at": expires_at,
    }]);
    lock
}

#[tokio::test]
async fn a_place_is_taken_kept_and_given_back() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let holder = ask().shared();
        granted(&store, &holder).await;
        let (before, _) = stored(&fixture).await;

        let waiter = LeaseId::random();
        let turn = |counts_for| Turn::in_turn(waiter, counts_for);
        let writer = ask().turn(turn(Duration::from_secs(40)));
        assert_eq!(refused(&store, &writer).await.ahead(), 0);
        let (document, version) = stored(&fixture).await;
        let at = document["written_at"].as_i64().unwrap();
        let place = json!({
            "waiter": waiter.to_string(), "owner": "me", "mode": "exclusive", "permits": 1,
            "since": at, "until": at + 40_000,
        });
        let mut expected = before;
        (expected["waiters"], expected["written_at"]) = (json!([place]), json!(at));
        assert_eq!(document, expected);

        // The place counts for long enough, and the other requests write nothing.
        let shorter = ask().turn(turn(Duration::from_secs(10)));
        assert_eq!(refused(&store, &shorter).await.ahead(), 0);
        assert_eq!(refused(&store, &ask()).await.ahead(), 1);
        assert_eq!(refused(&store, &ask().shared()).await.ahead(), 1);
        store.leave(&ask().key, LeaseId::random()).await.unwrap();
        assert_eq!(stored(&fixture).await, (document, version));

        // The place does not count for long enough.
        let longer = ask()
            .permits(2, 4)
            .unwrap()
            .turn(turn(Duration::from_secs(600)));
        assert_eq!(refused(&store, &longer).await.ahead(), 0);
        let (document, _) = stored(&fixture).await;
        let again = document["written_at"].as_i64().unwrap();
        let place = json!([{
            "waiter": waiter.to_string(), "owner": "me", "mode": "permits", "permits": 2,
            "since": at, "until": again + 60_000,
        }]);
        assert_eq!(document["waiters"], place);

        // A lease that is live needs no place, and an owner that enters again waits for nobody.
        let mut repeated = holder.clone();
        repeated.turn = Turn::in_turn(LeaseId::random(), STAYS);
        granted(&store, &repeated).await;
        let beside = ask().shared().reentrant();
        granted(&store, &beside).await;
        released(&store, &beside).await;
        assert_eq!(stored(&fixture).await.0["waiters"], place);

        // The release of the holder keeps the place in the document, and the grant drops it.
        released(&store, &holder).await;
        assert_eq!(stored(&fixture).await.0["waiters"], place);
        granted(&store, &writer).await;
        let (document, _) = stored(&fixture).await;
        assert_eq!(document["waiters"], Value::Null);
        assert_eq!(document["lease"], writer.lease.to_string());
    }
}

/// A request that does not conflict with those ahead goes past them. A request that does not fit beside them waits.
#[tokio::test]
async fn only_those_ahead_that_conflict_are_waited_for() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let takes_a_place = async |request: AcquireRequest, ahead| {
            let (waiter, counts_for) = (LeaseId::random(), STAYS);
            let request = request.turn(Turn::in_turn(waiter, counts_for));
            assert_eq!(refused(&store, &request).await.ahead(), ahead);
            waiter
        };
        // Two permits of four are taken. One process waits for three permits, and another for one.
        let holder = ask().permits(2, 4).unwrap();
        granted(&store, &holder).await;
        let three = takes_a_place(ask().permits(3, 4).unwrap(), 0).await;
        let one = takes_a_place(ask().permits(1, 4).unwrap(), 1).await;
        assert_eq!(
            refused(&store, &ask().permits(1, 4).unwrap()).await.ahead(),
            2
        );
        let beside = ask().permits(1, 8).unwrap();
        granted(&store, &beside).await;
        released(&store, &beside).await;
        assert_eq!(
            refused(&store, &ask().permits(3, 8).unwrap()).await.ahead(),
            2
        );
        assert_eq!(
            refused(&store, &ask().permits(i64::MAX, i64::MAX).unwrap())
                .await
                .ahead(),
            2
        );
        assert_eq!(waiters(&store).await, [three, one]);
        for waiter in [three, one] {
            store.leave(&holder.key, waiter).await.unwrap();
        }
        released(&store, &holder).await;

        // Readers wait for a writer, and not for each other.
        let writer = ask();
        granted(&store, &writer).await;
        let reader = takes_a_place(ask().shared(), 0).await;
        released(&store, &writer).await;
        let other = ask().shared();
        granted(&store, &other).await;
        assert_eq!(waiters(&store).await, [reader]);
        let writer = takes_a_place(ask(), 1).await;
        assert_eq!(refused(&store, &ask().shared()).await.ahead(), 2);
        let mut stranger = ask().reentrant();
        stranger.owner = "they".into();
        assert_eq!(refused(&store, &stranger.clone().shared()).await.ahead(), 2);
        // The first request is of an owner that has the key, and the second of a process that is ahead of the writer.
        granted(&store, &ask().shared().reentrant()).await;
        let turn = Turn::in_turn(reader, STAYS);
        granted(&store, &ask().shared().turn(turn)).await;
        assert_eq!(waiters(&store).await, [writer]);
    }
}

#[tokio::test]
async fn a_process_that_is_gone_is_dropped_by_the_next_one() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let is_gone = async || {
            refused(&store, &in_turn(LeaseId::random(), MOMENT)).await;
            while !waiters(&store).await.is_empty() {
                sleep(MOMENT).await;
            }
            sleep(MOMENT * 5).await;
            proxy.http_requests();
        };
        let holder = ask();
        granted(&store, &holder).await;
        is_gone().await;
        let (document, _) = stored(&fixture).await;
        assert_eq!(document["waiters"].as_array().unwrap().len(), 1);
        let waiter = LeaseId::random();
        assert_eq!(refused(&store, &in_turn(waiter, STAYS)).await.ahead(), 0);
        // The lean script cannot take a place, so a second request follows.
        assert_eq!(proxy.http_requests().len(), 2);
        let (document, _) = stored(&fixture).await;
        assert_eq!(document["waiters"].as_array().unwrap().len(), 1);
        store.leave(&holder.key, waiter).await.unwrap();
        assert_eq!(proxy.http_requests().len(), 1);
        assert_eq!(stored(&fixture).await.0["waiters"], Value::Null);

        // The lean script grants the key, because the place does not count any more.
        is_gone().await;
        released(&store, &holder).await;
        proxy.http_requests();
        let next = ask().fresh();
        granted(&store, &next).await;
        assert_eq!(proxy.http_requests().len(), 1);
        assert_eq!(stored(&fixture).await.0["waiters"], Value::Null);

        is_gone().await;
        released(&store, &next).await;
        proxy.http_requests();
        let next = ask();
        let mut other = ask();
        other.key = Key::new("other").unwrap();
        let batch = [next.clone(), other].map(|it| BatchRequest::Acquire(it.into()));
        let answers = store.batch(&batch).await.unwrap();
        for answer in &answers {
            let granted = matches!(answer, Ok(BatchAnswer::Acquire(AcquireAnswer::Granted(_))));
            assert!(granted, "{answers:?}");
        }
        assert_eq!(proxy.http_requests().len(), 1);
        assert_eq!(stored(&fixture).await.0["waiters"], Value::Null);
        released(&store, &next).await;
        proxy.http_requests();
        granted(&store, &ask()).await;
        assert_eq!(proxy.http_requests().len(), 1);
    }
}

/// The processes with places may be gone. So the key is kept for them only for a moment after its release, by the clock
/// of the node.
#[tokio::test]
async fn a_free_key_is_kept_for_those_that_wait_for_a_moment() {
    join_all(BOTH.map(a_free_key_is_kept_on)).await;
}

async fn a_free_key_is_kept_on(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let store = fixture.store();
    for number in [1, 2, 9_u32] {
        let holder = ask().turn(Turn::Barging);
        granted(&store, &holder).await;
        for ahead in 0..number {
            let held = refused(&store, &in_turn(LeaseId::random(), STAYS)).await;
            assert_eq!(held.ahead(), ahead as usize);
        }
        released(&store, &holder).await;
        let (document, _) = stored(&fixture).await;
        let released_at = document["released_at"].as_i64().unwrap();
        let next = ask().shared();
        let grant = loop {
            match store.acquire(&next).await.unwrap() {
                AcquireAnswer::Granted(grant) => break grant,
                AcquireAnswer::Held(held) => {
                    assert_eq!(held.ahead(), number as usize);
                    sleep(held.binds_for()).await;
                }
                AcquireAnswer::Done(done) => panic!("{done}"),
            }
        };
        let kept = grant.acquired_at.timestamp_millis() - released_at;
        let kept = Duration::from_millis(kept.try_into().unwrap());
        assert!(kept >= MAX_BIND_TIME, "{number}: {kept:?}");
        // The waiters came too late.
        assert_eq!(waiters(&store).await, []);
        released(&store, &next).await;
    }
}

/// A process that waits reads the document first. It writes only if its place has to be taken again.
#[tokio::test]
async fn who_has_a_place_only_looks() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        granted(&store, &ask()).await;
        let waiter = LeaseId::random();
        proxy.http_requests();
        // Sends a request that is refused, and returns the last HTTP request for it.
        let sent = async |counts_for| {
            refused(&store, &in_turn(waiter, counts_for).likely_held()).await;
            let requests = proxy.http_requests();
            requests.last().unwrap().clone()
        };
        let first = sent(STAYS / 2).await;
        assert!(first.contains("/_bulk"), "{first}");
        // If the machine is slow, the place has to be taken again, so this is tried several times.
        let start = Instant::now();
        while !sent(STAYS / 2).await.contains("/_mget") {
            assert!(start.elapsed() < PATIENCE, "it never only looks");
            sleep(Duration::from_millis(10)).await;
        }
        let longer = sent(Duration::from_secs(60)).await;
        assert!(longer.contains("/_bulk"), "{longer}");
        assert_eq!(waiters(&store).await, [waiter]);
    }
}

/// Each of them writes, and so overtakes the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_come_to_wait_at_once_come_through_up_to_the_bound() {
    for engine in BOTH {
        // On a slow machine the first places may not count any more when the last ones are taken.
        let mut tries = 0;
        let (fixture, store, holder, all, held, places) = loop {
            let fixture = Fixture::prepared(engine).await;
            let store = fixture.store();
            let holder = ask();
            granted(&store, &holder).await;
            let all: Vec<_> = (0..MAX_PLACES + 28).map(|_| LeaseId::random()).collect();
            let requests: Vec<_> = all
                .iter()
                .map(|waiter| in_turn(*waiter, STAYS).fresh())
                .collect();
            let held = join_all(requests.iter().map(|it| refused(&store, it))).await;
            let places = waiters(&store).await;
            if places.len() >= MAX_PLACES {
                break (fixture, store, holder, all, held, places);
            }
            tries += 1;
            assert!(tries < 10, "the places never count at the same time");
        };
        assert_eq!(places.len(), MAX_PLACES);
        for (waiter, held) in all.iter().zip(held) {
            let place = places.iter().position(|place| place == waiter);
            assert_eq!(held.ahead(), place.unwrap_or(MAX_PLACES));
        }
        let key = &holder.key;
        join_all(
            all.iter()
                .map(async |waiter| store.leave(key, *waiter).await.unwrap()),
        )
        .await;
        assert_eq!(waiters(&store).await, []);
        assert_eq!(stored(&fixture).await.0["waiters"], Value::Null);
    }
}

#[tokio::test]
async fn nobody_waits_in_a_document_that_is_no_lock() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store: Arc<dyn Store> = fixture.store();
        let places = json!([place(json!({}))]);
        let with = |changes: Value| {
            let mut lock = lock(&places, false);
            for (name, value) in changes.as_object().unwrap() {
                lock[name] = value.clone();
            }
            lock
        };
        let last = (1_i64 << 53) - 1;
        for (document, has_places) in [
            (with(json!({ "schema": "leasehold.lock.2" })), false),
            (with(json!({ "schema": null })), false),
            (with(json!({ "fence": last + 1 })), false),
            // Somebody has the key, but the document does not say who.
            (with(json!({ "holders": null })), false),
            (with(json!({ "holders": [], "lease": "they" })), false),
            (with(json!({ "fence": last })), true),
        ] {
            put(&fixture, &document).await;
            let before = stored(&fixture).await;
            for request in [
                in_turn(LeaseId::random(), STAYS),
                in_turn(LeaseId::random(), STAYS).shared(),
                in_turn(LeaseId::parse(GONE).unwrap(), STAYS),
            ] {
                let error = store.acquire(&request).await.unwrap_err();
                let is_so = matches!(
                    error,
                    Error::NotALock { .. } | Error::UnsupportedSchema { .. }
                );
                assert!(is_so, "{document}: {error:?}");
            }
            assert_eq!(stored(&fixture).await, before, "{document}");
            let left = store.leave(&ask().key, LeaseId::parse(GONE).unwrap()).await;
            assert_eq!(left.is_ok(), has_places, "{document}: {left:?}");
            let is_kept = stored(&fixture).await == before;
            assert_ne!(is_kept, has_places, "{document}");
        }
        let nothing = Key::new("nothing").unwrap();
        store.leave(&nothing, LeaseId::random()).await.unwrap();
        assert_eq!(store.inspect(&nothing).await.unwrap(), None);
    }
}

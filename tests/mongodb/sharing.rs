//! Several holders at once, and races for a place among them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold::{
    Attempt, Error, Fence, Key, Leases, MemoryStore, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Grant, LeaseId,
        ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};
use leasehold_tests::crowd::Crowd;
use mongodb::bson::{Bson, DateTime, doc};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{Engine, Fixture, LONG, PATIENCE, SHORT};

const ENGINES: [Engine; 2] = [Engine::MongoDb, Engine::MongoDbReplicaSet];

fn key() -> Key {
    Key::new("key").unwrap()
}

fn ask(lease: LeaseId) -> AcquireRequest {
    AcquireRequest::exclusive(key(), lease, "me".into(), LONG)
}

async fn acquire(store: &dyn Store, request: AcquireRequest) -> Option<Grant> {
    match store.acquire(&request).await.unwrap() {
        AcquireAnswer::Granted(grant) => Some(grant),
        AcquireAnswer::Held(_) | AcquireAnswer::Done(_) => None,
    }
}

async fn release(store: &dyn Store, lease: LeaseId) {
    let answer = store.release(&ReleaseRequest::new(key(), lease)).await;
    assert_eq!(answer.unwrap(), ReleaseAnswer::Released);
}

/// 16 tasks with four clients between them acquire a permit three times each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_four_permits_never_more_than_four_are_out() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine);
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(fixture.store().await);
        }
        // On a slow engine a race may never have all four permits taken, so they are first taken one after the other.
        let four = [(); 4].map(|()| LeaseId::random());
        for (lease, store) in four.into_iter().zip(&stores) {
            let granted = acquire(store, ask(lease).permits(1, 4).unwrap()).await;
            assert!(granted.is_some(), "{engine:?}");
        }
        let fifth = ask(LeaseId::random()).permits(1, 4).unwrap();
        assert!(acquire(&stores[0], fifth).await.is_none(), "{engine:?}");
        for lease in four {
            release(&stores[0], lease).await;
        }
        let (inside, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let mut tasks = JoinSet::new();
        for number in 0..16 {
            let store = stores[number % stores.len()].clone();
            let (inside, most) = (inside.clone(), most.clone());
            tasks.spawn(async move {
                let mut fences = Vec::new();
                while fences.len() < 3 {
                    let lease = LeaseId::random();
                    let Some(grant) = acquire(&store, ask(lease).permits(1, 4).unwrap()).await
                    else {
                        sleep(Duration::from_millis(fastrand::u64(1..20))).await;
                        continue;
                    };
                    let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now_inside, Ordering::SeqCst);
                    sleep(Duration::from_millis(fastrand::u64(0..10))).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    release(&store, lease).await;
                    fences.push(grant.fence);
                }
                fences
            });
        }
        let mut fences: Vec<Fence> = tasks.join_all().await.into_iter().flatten().collect();
        assert!(most.load(Ordering::SeqCst) <= 4, "{engine:?}");
        fences.sort();
        fences.dedup();
        assert_eq!(fences.len(), 16 * 3, "each grant has a fence of its own");
        let left = stores[0].inspect(&key()).await.unwrap().unwrap();
        assert!(left.is_free());
    }
}

#[tokio::test]
async fn of_two_readers_that_want_to_write_neither_does_until_one_leaves() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine);
        let stores = [fixture.store().await, fixture.store().await];
        for _ in 0..8 {
            let leases = [LeaseId::random(), LeaseId::random()];
            for lease in leases {
                acquire(&stores[0], ask(lease).shared()).await.unwrap();
            }
            let upgrade = |number: usize| {
                let (store, lease): (&MongoStore, _) = (&stores[number], leases[number]);
                let request = ConvertRequest::upgrade(key(), lease);
                async move { store.convert(&request).await.unwrap() }
            };
            for (number, answer) in join_all([upgrade(0), upgrade(1)]).await.iter().enumerate() {
                let ConvertAnswer::Held(held) = answer else {
                    panic!("{answer:?}");
                };
                let others: Vec<_> = held.holders().iter().map(|holder| holder.lease).collect();
                assert_eq!(others, [leases[1 - number]]);
            }
            let before = stores[0].inspect(&key()).await.unwrap().unwrap();
            release(&stores[0], leases[0]).await;
            let answer = upgrade(1).await;
            let ConvertAnswer::Converted(grant) = answer else {
                panic!("{answer:?}");
            };
            assert!(grant.fence > before.fence);
            assert_eq!(upgrade(0).await, ConvertAnswer::TakenOver);
            release(&stores[1], leases[1]).await;
        }
    }
}

/// Renewals come in any order, with longer and shorter ttls. The key is held until the last holder has ended.
#[tokio::test]
async fn the_latest_of_several_expiries_counts() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let [one, two] = [(); 2].map(|()| LeaseId::random());
        for lease in [one, two] {
            acquire(&store, ask(lease).shared()).await.unwrap();
        }
        let other = RenewRequest::new(Key::new("other").unwrap(), one, LONG);
        for (lease, ttl) in [(one, LONG * 2), (two, SHORT), (one, SHORT / 2)] {
            let one_of_many = RenewRequest::new(key(), lease, ttl);
            let requests = [one_of_many, other.clone()];
            // The renewal is sent alone, and then with another one.
            for requests in [&requests[..1], &requests[..]] {
                let answers = store.renew(requests).await.unwrap();
                assert!(matches!(answers[0], Ok(RenewAnswer::Renewed(_))));
                let stored = collection.find_one(doc! { "_id": "key" }).await;
                let stored = stored.unwrap().unwrap();
                let holders = stored.get_array("holders").unwrap().iter();
                let expiry = |holder: &Bson| {
                    let holder = holder.as_document().unwrap();
                    *holder.get_datetime("expires_at").unwrap()
                };
                let latest = holders.map(expiry).max().unwrap();
                assert_eq!(stored.get_datetime("expires_at"), Ok(&latest));
            }
        }
        sleep(SHORT).await;
        assert_eq!(acquire(&store, ask(LeaseId::random())).await, None);
    }
}

/// A lease that a failed set gives back has done no work. If it left a minimum hold, the set would wait for its own
/// lease.
#[tokio::test]
async fn a_set_that_was_not_to_be_had_leaves_no_minimum_hold() {
    let fixture = Fixture::new(Engine::MongoDb);
    let leases = Leases::new(fixture.store().await);
    let ask = || leases.acquire_all(["a", "b"], LONG).min_hold(LONG);
    let last = leases.acquire("b", LONG).await.unwrap();
    let error = ask().wait_for(SHORT).await.unwrap_err();
    assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    let free = async || leases.inspect("a").await.unwrap().unwrap().is_free();
    // A grant that comes after the time limit is given back then. A minimum hold would last longer than this waits.
    let start = Instant::now();
    while !free().await {
        assert!(start.elapsed() < PATIENCE, "it is held on");
        sleep(Duration::from_millis(10)).await;
    }
    last.release().await.unwrap();
    ask().await.unwrap().release().await.unwrap();
    assert!(!free().await, "a whole set has its minimum hold");
}

/// Sums beyond 64 bits are refusals, in the memory store and in MongoDB.
#[tokio::test]
async fn permits_are_counted_up_to_the_greatest_number() {
    const ALL: i64 = i64::MAX;
    let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::new())];
    for engine in ENGINES {
        stores.push(Arc::new(Fixture::new(engine).store().await));
    }
    for store in stores {
        let ask = |owner: &str, permits, capacity| {
            AcquireRequest::exclusive(key(), LeaseId::random(), owner.into(), LONG)
                .permits(permits, capacity)
                .unwrap()
        };
        for (request, granted) in [
            (ask("a", ALL - 1, ALL - 1), true),
            (ask("b", 1, ALL - 1), false),
            (ask("b", 2, ALL), false),
            (ask("b", ALL, ALL), false),
            (ask("b", 1, ALL), true),
            (ask("b", 1, ALL), false),
            // A re-entrant request does not conflict with its owner's leases, so more permits may be taken than there
            // are.
            (ask("a", 1, ALL).reentrant(), true),
            (ask("a", ALL - 1, ALL).reentrant(), true),
            (ask("c", 1, ALL), false),
            (ask("c", 1, ALL).reentrant(), false),
            (ask("b", 1, ALL).reentrant(), false),
            (ask("a", ALL, ALL).reentrant(), false),
        ] {
            let answer = acquire(&*store, request.clone()).await;
            assert_eq!(answer.is_some(), granted, "{store:?}: {request:?}");
        }
    }
}

/// The largest document that there can be is far below the 16 MB that the server takes.
#[tokio::test]
async fn a_key_takes_a_thousand_holders_and_not_one_more() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let store: Arc<dyn Store> = Arc::new(store);
        let crowd = Crowd::around_the_first(&*store).await;
        let mut lock = collection.find_one(doc! {}).await.unwrap().unwrap();
        let holders = lock.get_array_mut("holders").unwrap();
        for lease in &crowd.leases {
            let mut holder = holders[0].as_document().unwrap().clone();
            holder.insert("lease", lease.to_string());
            holders.push(holder.into());
        }
        collection.replace_one(doc! {}, &lock).await.unwrap();
        let bytes = mongodb::bson::to_vec(&lock).unwrap().len();
        assert!(bytes < 2 * 1024 * 1024, "{bytes} bytes");
        crowd.takes_no_other(&store).await;
        let after = collection.find_one(doc! {}).await.unwrap().unwrap();
        assert!(after == lock, "a refusal has changed the document");
        crowd.lives_on(&store).await;
    }
}

/// The server's clock has stepped back since the release.
#[tokio::test]
async fn a_key_that_was_released_in_the_future_is_free() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let leases = Leases::new(store);
        let now = DateTime::now();
        let in_millis = |millis| DateTime::from_millis(now.timestamp_millis() + millis);
        let later = in_millis(3_600_000);
        // The time since which the key is free is not known, so the key is not kept for the process that waits.
        let waits = doc! {
            "waiter": LeaseId::random().to_string(), "owner": "they", "mode": "exclusive", "permits": 1_i64,
            "since": now, "until": in_millis(30_000),
        };
        for (number, waiter) in (0..5).flat_map(|number| [(number, None), (number, Some(&waits))]) {
            let key = format!("key {number} {}", waiter.is_some());
            let mut tombstone = doc! {
                "_id": &key, "schema": leasehold::store::SCHEMA, "fence": later.timestamp_millis() * 1_024,
                "cleanup_at": later, "released_at": later,
            };
            if let Some(waiter) = waiter {
                tombstone.insert("waiters", vec![waiter.clone()]);
            }
            collection.insert_one(tombstone).await.unwrap();
            let attempt = leases.try_acquire(&key, LONG);
            let attempt = match number {
                0 => attempt,
                1 => attempt.shared(),
                2 => attempt.permits(1, 2),
                3 => attempt.reentrant(),
                _ => attempt.shared().reentrant(),
            };
            let attempt = attempt.await.unwrap();
            let Attempt::Acquired(lease) = attempt else {
                panic!("{number} on {engine:?}: {attempt:?}");
            };
            assert!(lease.fence().get() > later.timestamp_millis() * 1_024);
            lease.release().await.unwrap();
        }
        let keys = ["set 0", "set 1"];
        for key in keys {
            let tombstone = doc! {
                "_id": key, "schema": leasehold::store::SCHEMA, "fence": 7_i64, "released_at": later,
            };
            collection.insert_one(tombstone).await.unwrap();
        }
        let set = leases
            .acquire_all(keys, LONG)
            .wait_for(Duration::ZERO)
            .await;
        set.unwrap().release().await.unwrap();
    }
}

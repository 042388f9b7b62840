//! Clean-up: the TTL indexes, and the dates that they use.

use std::time::Duration;

use leasehold::{
    Error, Fence, Key, Leases, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseRequest, RenewAnswer, RenewRequest},
};
use mongodb::{
    IndexModel,
    bson::{Bson, DateTime, Document, doc},
    options::IndexOptions,
};
use tokio::time::{Instant, sleep};

use super::{Engine, Fixture, LONG, PATIENCE, SHORT, patiently, short_lived};

const HOUR: i64 = 60 * 60 * 1_000;
const DAY: i64 = 24 * HOUR;
/// The least step by which the date of the clean-up rises, with a retention of a day.
const STEP: i64 = 1_000_000;

/// The indexes that `prepare` makes for locks and for limiters, as the server lists them.
async fn ttl_indexes(fixture: &Fixture) -> [Document; 2] {
    let mut cursor = fixture
        .collection()
        .await
        .client()
        .database(super::DATABASE)
        .run_cursor_command(doc! { "listIndexes": &fixture.name })
        .await
        .unwrap();
    let mut found = Vec::new();
    while cursor.advance().await.unwrap() {
        let index = cursor.deserialize_current().unwrap();
        if index.contains_key("expireAfterSeconds") {
            found.push(index);
        }
    }
    found.try_into().unwrap()
}

fn seconds(index: &Document) -> i64 {
    match index.get("expireAfterSeconds") {
        Some(Bson::Int32(seconds)) => (*seconds).into(),
        Some(Bson::Int64(seconds)) => *seconds,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn prepare_can_be_repeated_and_by_many_at_once() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let stores = [
            fixture.store().await,
            fixture.store().await,
            fixture.store().await,
        ];
        for _ in 0..2 {
            let prepared = futures::future::join_all(stores.iter().map(|store| store.prepare()));
            for outcome in prepared.await {
                outcome.unwrap();
            }
        }
        let [locks, limiters] = ttl_indexes(&fixture).await;
        // The date of a lock includes the retention already, so its index adds nothing.
        for (index, field, after) in [
            (locks, "cleanup_at", 0),
            (limiters, "over_at", 24 * 60 * 60),
        ] {
            assert_eq!(seconds(&index), after);
            assert_eq!(index.get_document("key"), Ok(&doc! { field: 1 }));
        }
    }
}

#[tokio::test]
async fn prepare_takes_over_a_changed_retention() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    fixture.store().await.prepare().await.unwrap();
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    let store = fixture.store().await.retention(week);
    store.prepare().await.unwrap();
    let retentions = async || ttl_indexes(&fixture).await.map(|index| seconds(&index));
    assert_eq!(retentions().await, [0, 7 * 24 * 60 * 60]);
    let ever = fixture.store().await.retention(Duration::MAX);
    ever.prepare().await.unwrap();
    assert_eq!(retentions().await, [0, i64::from(i32::MAX)]);
}

/// The test needs the complete server. Its TTL monitor runs every second here.
#[tokio::test]
async fn the_ttl_indexes_remove_what_is_dead_and_nothing_else() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await.retention(Duration::ZERO);
    store.prepare().await.unwrap();
    let collection = fixture.collection().await;
    let past = DateTime::from_millis(0);
    let later = doc! { "_id": "later schema", "schema": "leasehold.lock.2", "expires_at": past, "cleanup_at": past };
    let foreign = doc! { "_id": "foreign", "cleanup_at": past, "over_at": past };
    collection.insert_many([later, foreign]).await.unwrap();
    let leases = Leases::new(store);
    let live = leases.acquire("live", LONG).await.unwrap();
    let dead = short_lived(&leases, "dead").await;
    let fence = dead.fence();
    drop(dead.detach());
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    leases.limiter("year", 1, year).permit().await.unwrap();
    leases
        .limiter("moment", 1, Duration::from_millis(1))
        .permit()
        .await
        .unwrap();

    let start = Instant::now();
    let moment = doc! { "_id": { "limiter": "moment", "window": 1_i64, "kind": "fixed" } };
    while leases.inspect("dead").await.unwrap().is_some()
        || collection.find_one(moment.clone()).await.unwrap().is_some()
    {
        assert!(start.elapsed() < PATIENCE, "not removed");
        sleep(Duration::from_millis(50)).await;
    }
    let left = collection.distinct("_id", doc! {}).await.unwrap();
    assert_eq!(left.len(), 4, "{left:?}");
    live.renew().await.unwrap();
    let next = leases.acquire("dead", LONG).await.unwrap();
    assert!(next.fence() > fence);
}

/// The date of the clean-up of the only document, in milliseconds.
async fn cleanup_at(fixture: &Fixture) -> i64 {
    let stored = fixture.collection().await.find_one(doc! {}).await;
    let stored = stored.unwrap().unwrap();
    stored
        .get_datetime("cleanup_at")
        .unwrap()
        .timestamp_millis()
}

/// The date is the retention after the latest expiry, or after the moment that follows the fence if that is later,
/// rounded up. A date that is late enough is not changed, so its entry in the index is not written again.
#[tokio::test]
async fn the_date_of_the_clean_up_goes_up_in_steps() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let key = Key::new("key").unwrap();
        let ask = || AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        let after = async |millis: i64, ttl: Duration| {
            let date = cleanup_at(&fixture).await;
            let late = date - millis;
            assert!(
                (DAY..=DAY + STEP + 1).contains(&(late - 1)),
                "{engine:?}: {late}"
            );
            assert_eq!((date - DAY - ttl.as_millis() as i64) % STEP, 2);
        };
        let expiry = |answer: &AcquireAnswer| match answer {
            AcquireAnswer::Granted(grant) => grant.expires_at.timestamp_millis(),
            refused => panic!("{refused:?}"),
        };
        for request in [
            ask(),
            ask().shared(),
            ask().permits(1, 2).unwrap(),
            ask().reentrant(),
        ] {
            let granted = store.acquire(&request).await.unwrap();
            after(expiry(&granted), LONG).await;
            let before = cleanup_at(&fixture).await;
            let release = ReleaseRequest::new(key.clone(), request.lease);
            store.release(&release.clone().likely_sole()).await.unwrap();
            store.release(&release).await.unwrap();
            assert_eq!(cleanup_at(&fixture).await, before);
        }

        let request = ask();
        let granted = store.acquire(&request).await.unwrap();
        let renewal = RenewRequest::new(key.clone(), request.lease, LONG * 100);
        let renewed = store.renew(std::slice::from_ref(&renewal)).await.unwrap();
        let Ok(RenewAnswer::Renewed(renewed)) = &renewed[0] else {
            panic!("{renewed:?}");
        };
        after(renewed.expires_at.timestamp_millis(), LONG * 100).await;
        let long = Duration::from_secs(3 * 24 * 60 * 60);
        let release = ReleaseRequest::new(key.clone(), request.lease);
        let release = release.min_hold(long, LeaseId::random());
        store.release(&release).await.unwrap();
        let held_on = store.inspect(&key).await.unwrap().unwrap().holders;
        let until = held_on[0].expires_at.timestamp_millis();
        assert!(until >= expiry(&granted) - LONG.as_millis() as i64 + 3 * DAY);
        after(until, Duration::ZERO).await;

        // The fence is ahead of the clock, at last by more than two centuries.
        let later = DateTime::now().timestamp_millis() + 30 * DAY;
        for fence in [later * 1_024, (1 << 53) - 9] {
            let ahead = doc! { "$set": { "fence": fence } };
            collection.update_one(doc! {}, ahead).await.unwrap();
            let eviction = store.evict(&key).await.unwrap().unwrap();
            assert_eq!(eviction.fence, Fence::new(fence + 1));
            after(eviction.fence.get() / 1_024, Duration::ZERO).await;
        }
        let granted = store.acquire(&ask()).await.unwrap();
        assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
    }
}

/// If the document were removed while its fence is ahead of the clock, the next fence could be lower. The test needs
/// the complete server, whose TTL monitor runs every second here.
#[tokio::test]
async fn a_fence_ahead_of_the_clock_keeps_its_document() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await.retention(Duration::ZERO);
    store.prepare().await.unwrap();
    let collection = fixture.collection().await;
    let leases = Leases::new(store.clone());
    // The first grant has put the date of the clean-up off, so the date is removed.
    let ahead = doc! {
        "$set": { "fence": (DateTime::now().timestamp_millis() + HOUR) * 1_024 },
        "$unset": { "cleanup_at": "" },
    };
    let raise = async |key: &str| {
        let raised = collection.update_one(doc! { "_id": key }, ahead.clone());
        assert_eq!(raised.await.unwrap().modified_count, 1);
    };
    let mut fences = Vec::new();
    leases
        .acquire("evicted", LONG)
        .await
        .unwrap()
        .detach()
        .unwrap();
    raise("evicted").await;
    fences.push(leases.evict("evicted").await.unwrap().unwrap().fence);
    for (key, shared) in [("released", false), ("shared", true)] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
        raise(key).await;
        // The eviction ends the test's own lease, and the next fence counts from the raised one.
        leases.evict(key).await.unwrap();
        let next = patiently(|| {
            if shared {
                leases.acquire(key, SHORT).shared().into_future()
            } else {
                leases.acquire(key, SHORT).into_future()
            }
        });
        let next = next.await;
        fences.push(next.fence());
        // On a slow machine the lease has expired by now, which makes no difference.
        let _ = next.release().await;
    }

    // Each of these documents is dead before the monitor begins the round that removes the last one.
    let start = Instant::now();
    for round in 0..3 {
        let dead = short_lived(&leases, format!("dead {round}")).await;
        let (key, fence) = (dead.key().clone(), dead.fence());
        let _ = dead.release().await;
        while leases.inspect(&key).await.unwrap().is_some() {
            assert!(start.elapsed() < PATIENCE, "not removed");
            sleep(Duration::from_millis(50)).await;
        }
        assert!(short_lived(&leases, &key).await.fence() > fence);
    }
    store.purge(Duration::ZERO).await.unwrap();
    for (key, fence) in ["evicted", "released", "shared"].into_iter().zip(fences) {
        let key = Key::new(key).unwrap();
        assert!(!store.remove_expired(&key).await.unwrap());
        let state = leases.inspect(&key).await.unwrap();
        assert!(
            state.is_some_and(|state| state.is_free() && state.fence >= fence),
            "{key}"
        );
        assert!(short_lived(&leases, &key).await.fence() > fence);
    }
}

/// A purge too counts its retention from the fence, if that is later than the expiry.
#[tokio::test]
async fn a_purge_counts_its_retention_from_the_fence() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (store, collection) = (fixture.store().await, fixture.collection().await);
    let past = DateTime::from_millis(0);
    let passed = DateTime::now().timestamp_millis() - LONG.as_millis() as i64;
    collection
        .insert_one(doc! {
            "_id": "key", "schema": leasehold::store::SCHEMA, "fence": passed * 1_024, "released_at": past,
        })
        .await
        .unwrap();
    assert_eq!(store.purge(LONG * 2).await.unwrap(), 0);
    assert_eq!(store.purge(LONG / 2).await.unwrap(), 1);
}

/// Such an index would remove a document although its fence is ahead of the clock.
#[tokio::test]
async fn a_ttl_index_on_a_date_of_ours_is_refused() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let index = |name: &str, field: &str| {
            let options = IndexOptions::builder().name(name.to_owned());
            let options = options.expire_after(Duration::from_secs(60)).build();
            let keys = doc! { field: 1 };
            IndexModel::builder().keys(keys).options(options).build()
        };
        let names = async || collection.list_index_names().await.unwrap();
        let ours = ["_id_", "leasehold_cleanup_at", "leasehold_over_at"];
        store.prepare().await.unwrap();
        for field in [
            "expires_at",
            "acquired_at",
            "released_at",
            "holders.expires_at",
            "granted_at",
            "state.expires_at",
            "state.done.until",
        ] {
            collection
                .create_index(index("somebody's", field))
                .await
                .unwrap();
            let error = store.prepare().await.unwrap_err();
            assert!(
                matches!(&error, Error::NotPrepared { problem, .. } if problem.contains("somebody's")),
                "{field}: {error:?}"
            );
            let classic = MongoStore::new::<Document>(&collection).without_pipelines();
            assert!(classic.prepare().await.is_err(), "{field}");
            collection.drop_index("somebody's").await.unwrap();
        }
        store.prepare().await.unwrap();
        assert_eq!(names().await, ours);
        // It removes documents of theirs.
        collection
            .create_index(index("theirs", "seen_at"))
            .await
            .unwrap();
        store.prepare().await.unwrap();
    }
}

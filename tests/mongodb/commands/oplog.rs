//! Requests that are refused write nothing, not even to the oplog.

use std::time::Duration;

use leasehold::{
    Attempt, Key, Leases, MongoStore, Store,
    store::{AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseRequest, Turn},
};
use mongodb::{
    Collection,
    bson::{Document, doc},
};

use tokio::time::Instant;

use super::{ask, converted, granted, key};
use crate::{Engine, Fixture, LONG, PATIENCE};

/// The oplog of a replica set has every write, so it shows whether there was one.
struct Oplog {
    entries: Collection<Document>,
    ours: Document,
}

impl Oplog {
    /// Sees what is written from now on. The server would read all older entries for each count.
    async fn of(collection: &Collection<Document>) -> Self {
        let entries = collection.client().database("local").collection("oplog.rs");
        let newest = entries.find_one(doc! {}).sort(doc! { "$natural": -1 });
        let newest: Document = newest.await.unwrap().unwrap();
        let later = doc! { "$gte": newest.get_timestamp("ts").unwrap() };
        let namespace = collection.namespace().to_string();
        Self {
            entries,
            ours: doc! { "ns": namespace, "op": { "$ne": "n" }, "ts": later },
        }
    }

    async fn writes(&self) -> u64 {
        let ours = self.ours.clone();
        self.entries.count_documents(ours).await.unwrap()
    }
}

#[tokio::test]
async fn fifty_losing_attempts_write_nothing() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let oplog = Oplog::of(&collection).await;
    let leases = Leases::new(MongoStore::new(&collection));

    let lease = leases.acquire("key", LONG).await.unwrap();
    let before = oplog.writes().await;
    assert!(
        before > 0,
        "a grant is in the oplog, or this test sees nothing"
    );
    for _ in 0..50 {
        let attempt = leases.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
    }
    assert_eq!(oplog.writes().await, before);

    lease.release().await.unwrap();
    assert_eq!(oplog.writes().await, before + 1);
}

/// A free key is kept for a process that waits, for a short time. If this machine stood still meanwhile, an attempt is
/// granted the key, and this is tried again.
#[tokio::test]
async fn attempts_on_a_free_key_that_is_kept_for_another_write_nothing() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let oplog = Oplog::of(&collection).await;
    let store = MongoStore::new(&collection);
    let start = Instant::now();
    loop {
        let holder = ask(LeaseId::random());
        assert!(granted(&store, &holder).await);
        let before = oplog.writes().await;
        let waits = Turn::in_turn(LeaseId::random(), Duration::from_secs(30));
        let waits = ask(LeaseId::random()).turn(waits);
        assert!(!granted(&store, &waits).await);
        assert_eq!(oplog.writes().await, before + 1, "the place is written");
        store
            .release(&ReleaseRequest::new(key(), holder.lease))
            .await
            .unwrap();
        let before = oplog.writes().await;
        let stranger = || AcquireRequest::exclusive(key(), LeaseId::random(), "they".into(), LONG);
        let refused = async |request: AcquireRequest| !granted(&store, &request).await;
        let are_refused = refused(stranger()).await
            && refused(stranger().shared()).await
            && refused(stranger().permits(1, 4).unwrap()).await
            && refused(stranger().reentrant()).await
            && refused(stranger()).await;
        if are_refused {
            assert_eq!(oplog.writes().await, before);
            assert!(granted(&store, &waits).await);
            assert_eq!(oplog.writes().await, before + 1, "the control");
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "each time one was granted the key"
        );
        collection.delete_many(doc! {}).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_refused_beside_other_holders_writes_nothing() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let oplog = Oplog::of(&collection).await;
    let store = MongoStore::new(&collection);
    let [one, two, stranger] = [(); 3].map(|()| LeaseId::random());
    let others = |lease| AcquireRequest::exclusive(key(), lease, "they".into(), LONG);

    // The key has two holders of permits, and then two readers.
    for permits in [true, false] {
        let mine = |lease| {
            if permits {
                ask(lease).permits(2, 4).unwrap()
            } else {
                ask(lease).shared()
            }
        };
        assert!(granted(&store, &mine(one)).await);
        assert!(granted(&store, &mine(two)).await);
        let before = oplog.writes().await;
        for _ in 0..10 {
            let refused = if permits {
                others(stranger).shared()
            } else {
                others(stranger).permits(1, 4).unwrap()
            };
            for refused in [
                refused.clone(),
                refused.reentrant(),
                others(stranger).permits(1, 4).unwrap(),
                others(stranger).permits(1, 4).unwrap().reentrant(),
                others(stranger).reentrant(),
                others(stranger),
            ] {
                assert!(!granted(&store, &refused).await, "{refused:?}");
            }
            // A lease that is granted already is granted again, unchanged, whatever the request
            // asks for.
            for again in [mine(one), ask(two).reentrant(), ask(one).shared()] {
                assert!(granted(&store, &again).await);
            }
            for lease in [one, two, stranger] {
                let upgrade = ConvertRequest::upgrade(key(), lease);
                assert!(!converted(&store, &upgrade).await);
            }
            let held_on = ReleaseRequest::new(key(), stranger).min_hold(LONG, LeaseId::random());
            store.release(&held_on).await.unwrap();
        }
        assert_eq!(oplog.writes().await, before);

        let mut written = before;
        for lease in [one, two] {
            let release = ReleaseRequest::new(key(), lease);
            store.release(&release).await.unwrap();
            written += 1;
            assert_eq!(oplog.writes().await, written, "the control");
        }
    }

    // One conversion asks for the mode that the lease has already, and one is for a key without a
    // document.
    assert!(granted(&store, &ask(one).shared()).await);
    let before = oplog.writes().await;
    let downgrade = ConvertRequest::downgrade(key(), one);
    assert!(converted(&store, &downgrade).await);
    let nowhere = ConvertRequest::upgrade(Key::new("nowhere").unwrap(), one);
    assert_eq!(
        store.convert(&nowhere).await.unwrap(),
        ConvertAnswer::Expired
    );
    assert_eq!(oplog.writes().await, before);
    let upgrade = ConvertRequest::upgrade(key(), one);
    for _ in 0..2 {
        assert!(converted(&store, &upgrade).await);
        assert_eq!(oplog.writes().await, before + 1, "once");
    }
}

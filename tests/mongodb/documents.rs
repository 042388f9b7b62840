//! What else may be in the collection, and what the collection keeps.

use std::time::Duration;

use futures::TryStreamExt;
use leasehold::{Error, Filter, Key, LeaseId, Leases, ReleaseRequest, RenewRequest, Store};
use mongodb::bson::{Bson, DateTime, Document, doc};
use tokio::time::{Instant, sleep};

use super::{Engine, Fixture, LONG, SHORT};

/// Runs every operation on a key whose document is not a lock of this version. Each must be refused
/// and leave the document alone.
async fn refused_and_left_alone(document: Document) -> Vec<Error> {
    let fixture = Fixture::new(Engine::MongoDb);
    let collection = fixture.collection().await;
    let store = fixture.store().await;
    store.prepare().await.unwrap();
    let key = Key::new(document.get_str("_id").unwrap()).unwrap();
    collection.insert_one(&document).await.unwrap();
    let leases = Leases::new(store.clone());
    let lease = LeaseId::random();

    let release = ReleaseRequest::new(key.clone(), lease);
    let renewal = RenewRequest::new(key.clone(), lease, LONG);
    let one = store.renew(std::slice::from_ref(&renewal)).await.unwrap();
    let many = store.renew(&[renewal.clone(), renewal]).await.unwrap();
    let mut errors = vec![
        leases.try_acquire(&key, LONG).await.map(drop).unwrap_err(),
        leases.acquire(&key, LONG).await.map(drop).unwrap_err(),
        store.release(&release).await.map(drop).unwrap_err(),
        leases.inspect(&key).await.map(drop).unwrap_err(),
        leases.evict(&key).await.map(drop).unwrap_err(),
        leases.remove_expired(&key).await.map(drop).unwrap_err(),
    ];
    errors.extend(one.into_iter().chain(many).map(Result::unwrap_err));
    assert_eq!(leases.purge(Duration::ZERO).await.unwrap(), 0);
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert_eq!(listed, []);

    let after = collection.find_one(doc! { "_id": key.as_str() }).await;
    assert_eq!(after.unwrap(), Some(document));
    errors
}

#[tokio::test]
async fn a_document_of_a_later_schema_is_refused_and_left_alone() {
    let later = doc! {
        "_id": "key", "schema": 2, "fence": 7_i64, "grants": [],
        "expires_at": DateTime::from_millis(0),
    };
    for error in refused_and_left_alone(later).await {
        assert!(
            matches!(error, Error::UnsupportedSchema { found: 2, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("upgrade leasehold"), "{error}");
    }
}

#[tokio::test]
async fn a_document_of_somebody_else_is_refused_and_left_alone() {
    let past = DateTime::from_millis(0);
    let foreign = [
        doc! { "_id": "key", "name": "an order", "total": 12 },
        doc! { "_id": "key", "schema": "one" },
        doc! { "_id": "key", "expires_at": past },
        doc! { "_id": "key", "schema": Bson::Null, "holders": [] },
        doc! { "_id": "key", "schema": 1, "name": "a setting of somebody else" },
        doc! { "_id": "key", "schema": 1, "expires_at": "2030-01-01" },
        doc! { "_id": "key", "schema": 1, "fence": 1, "expires_at": past },
        doc! { "_id": "key", "schema": 1, "fence": "1", "holders": [], "expires_at": past },
        doc! { "_id": "key", "schema": 1, "fence": 1, "holders": "none", "expires_at": past },
    ];
    for document in foreign {
        for error in refused_and_left_alone(document).await {
            assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
            assert!(
                error.to_string().contains("a collection of their own"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn the_document_has_its_final_shape() {
    let fixture = Fixture::new(Engine::MongoDb);
    let leases = Leases::builder(fixture.store().await)
        .owner("pod-3")
        .build();
    let lease = leases.acquire("report:42", LONG).await.unwrap();
    let stored = fixture.collection().await.find_one(doc! {}).await;
    let stored = stored.unwrap().unwrap();

    let names: Vec<_> = stored.keys().map(String::as_str).collect();
    assert_eq!(names, ["_id", "schema", "fence", "holders", "expires_at"]);
    assert_eq!(stored.get_str("_id"), Ok("report:42"));
    assert_eq!(stored.get_i64("schema"), Ok(1));
    assert_eq!(stored.get_i64("fence"), Ok(lease.fence().get()));
    let holders = stored.get_array("holders").unwrap();
    assert_eq!(holders.len(), 1);
    let holder = holders[0].as_document().unwrap();
    let names: Vec<_> = holder.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "lease",
            "owner",
            "mode",
            "permits",
            "fence",
            "acquired_at",
            "expires_at"
        ]
    );
    assert_eq!(holder.get_str("lease"), Ok(lease.id().to_string().as_str()));
    assert_eq!(holder.get_str("owner"), Ok("pod-3"));
    assert_eq!(holder.get_str("mode"), Ok("exclusive"));
    assert_eq!(holder.get_i64("permits"), Ok(1));
    assert_eq!(holder.get_i64("fence"), Ok(lease.fence().get()));
    assert_eq!(holder.get("expires_at"), stored.get("expires_at"));

    lease.release().await.unwrap();
    let tombstone = fixture.collection().await.find_one(doc! {}).await;
    let tombstone = tombstone.unwrap().unwrap();
    assert_eq!(tombstone.get("fence"), stored.get("fence"));
    assert_eq!(tombstone.get_array("holders").map(Vec::len), Ok(0));
}

/// The index that `prepare` makes, as the server shows it.
async fn ttl_index(fixture: &Fixture) -> Document {
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
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
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
        let index = ttl_index(&fixture).await;
        assert_eq!(seconds(&index), 24 * 60 * 60);
        assert_eq!(index.get_document("key"), Ok(&doc! { "expires_at": 1 }));
    }
}

#[tokio::test]
async fn prepare_takes_over_a_changed_retention() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    fixture.store().await.prepare().await.unwrap();
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    let store = fixture.store().await.retention(week);
    store.prepare().await.unwrap();
    assert_eq!(seconds(&ttl_index(&fixture).await), 7 * 24 * 60 * 60);
    let ever = fixture.store().await.retention(Duration::MAX);
    ever.prepare().await.unwrap();
    assert_eq!(seconds(&ttl_index(&fixture).await), i64::from(i32::MAX));
}

/// On the complete server, whose TTL monitor runs every second.
#[tokio::test]
async fn the_ttl_index_removes_dead_locks_and_nothing_else() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await.retention(Duration::ZERO);
    store.prepare().await.unwrap();
    let collection = fixture.collection().await;
    let past = DateTime::from_millis(0);
    let later = doc! { "_id": "later schema", "schema": 2, "expires_at": past };
    let foreign = doc! { "_id": "foreign", "expires_at": past };
    collection.insert_many([later, foreign]).await.unwrap();
    let leases = Leases::new(store);
    let live = leases.acquire("live", LONG).await.unwrap();
    let dead = leases.acquire("dead", SHORT).await.unwrap();
    let fence = dead.fence();
    dead.detach();

    let start = Instant::now();
    while leases.inspect("dead").await.unwrap().is_some() {
        assert!(start.elapsed() < Duration::from_secs(60), "not removed");
        sleep(Duration::from_millis(50)).await;
    }
    let left = collection.distinct("_id", doc! {}).await.unwrap();
    assert_eq!(left.len(), 3, "{left:?}");
    live.renew().await.unwrap();
    let next = leases.acquire("dead", LONG).await.unwrap();
    assert!(next.fence() > fence);
}

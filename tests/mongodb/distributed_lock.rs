//! The port of the Java class, with the documents of the Java class.

use std::{sync::Arc, time::Duration};

use leasehold::{Error, MongoDistributedLock};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::ReturnDocument,
};
use tokio::{
    sync::Barrier,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{Engine, Fixture, LONG, PATIENCE};

const SOON: Duration = Duration::from_millis(100);

async fn fixture(engine: Engine) -> (MongoDistributedLock, Collection<Document>) {
    let collection = Fixture::new(engine).collection().await;
    let locks = MongoDistributedLock::new(&collection);
    locks.prepare().await.unwrap();
    (locks, collection)
}

async fn stored(collection: &Collection<Document>, key: &str) -> Option<Document> {
    collection.find_one(doc! { "key": key }).await.unwrap()
}

/// Leaves a lock that has expired without a release.
async fn expired(locks: &MongoDistributedLock, collection: &Collection<Document>, key: &str) {
    locks.acquire(key, SOON).await.unwrap().unwrap();
    until_expired(collection, key).await;
}

/// Waits until the server's clock has passed the expiry.
async fn until_expired(collection: &Collection<Document>, key: &str) {
    let past = doc! { "key": key, "$expr": { "$lt": ["$expire", { "$toLong": "$$NOW" }] } };
    let start = Instant::now();
    while collection.find_one(past.clone()).await.unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "it does not expire");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Sends what the Java class sends, word for word: the increment that also sets the expiry.
async fn java_increment(collection: &Collection<Document>, key: &str, expire: i64) -> Document {
    let update = doc! { "$inc": { "value": 1.0 }, "$set": { "expire": expire } };
    let counted = collection
        .find_one_and_update(doc! { "key": key }, update)
        .upsert(true)
        .return_document(ReturnDocument::After)
        .await;
    counted.unwrap().unwrap()
}

#[tokio::test]
async fn the_document_is_what_the_java_class_reads() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (locks, collection) = fixture(engine).await;
        let grant = locks.acquire("invoices", LONG).await.unwrap().unwrap();
        assert!(grant.remaining() <= LONG && grant.remaining() > LONG / 2);
        let stored = stored(&collection, "invoices").await.unwrap();
        let names: Vec<_> = stored.keys().map(String::as_str).collect();
        assert_eq!(names, ["_id", "key", "expire", "holder", "value"]);
        // In Java these are a String, a double and a long.
        assert_eq!(stored.get_str("key"), Ok("invoices"));
        assert_eq!(stored.get_f64("value"), Ok(1.0));
        assert_eq!(
            stored.get_i64("expire"),
            Ok(grant.expires_at().timestamp_millis())
        );
        assert_eq!(
            stored.get_str("holder"),
            Ok(grant.holder().to_string().as_str())
        );

        assert!(locks.release(&grant).await.unwrap());
        assert!(!locks.release(&grant).await.unwrap());
        assert_eq!(
            super::distributed_lock::stored(&collection, "invoices").await,
            None
        );
    }
}

#[tokio::test]
async fn a_lock_of_a_java_service_is_respected_until_it_expires() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    let now = chrono::Utc::now().timestamp_millis();
    java_increment(&collection, "invoices", now + 600_000).await;
    assert!(locks.acquire("invoices", LONG).await.unwrap().is_none());
    assert!(!locks.remove_expired("invoices").await.unwrap());

    let past = doc! { "$set": { "expire": now - 600_000 } };
    collection
        .update_one(doc! { "key": "invoices" }, past)
        .await
        .unwrap();
    let grant = locks.acquire("invoices", LONG).await.unwrap();
    assert!(grant.is_some());
}

#[tokio::test]
async fn a_java_service_respects_a_lock_of_ours() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    let grant = locks.acquire("invoices", LONG).await.unwrap().unwrap();
    // The Java class reads a live lock, and stops there.
    let read = stored(&collection, "invoices").await.unwrap();
    assert!(read.get_i64("expire").unwrap() >= chrono::Utc::now().timestamp_millis());
    // If the Java class has read before our acquire, its increment makes the value 2, so it has
    // lost.
    let expire = grant.expires_at().timestamp_millis();
    let counted = java_increment(&collection, "invoices", expire).await;
    assert_eq!(counted.get_f64("value"), Ok(2.0));
    assert!(locks.release(&grant).await.unwrap());
}

/// The first race that the source describes, step by step.
#[tokio::test]
async fn two_contenders_see_an_expired_lock() {
    let (a, collection) = fixture(Engine::MongoDb).await;
    let b = MongoDistributedLock::new(&collection);
    expired(&a, &collection, "invoices").await;
    // Both A and B have seen that the lock is expired. B is faster.
    assert!(b.remove_expired("invoices").await.unwrap());
    let of_b = b.increment("invoices", LONG).await.unwrap().unwrap();
    // A goes on from there: its delete is bounded by the expiry, and its increment gives 2.
    assert!(!a.remove_expired("invoices").await.unwrap());
    assert!(a.increment("invoices", LONG * 2).await.unwrap().is_none());

    let stored = stored(&collection, "invoices").await.unwrap();
    assert_eq!(
        stored.get_str("holder"),
        Ok(of_b.holder().to_string().as_str())
    );
    // The loser did not extend the winner's lock. In Java it does.
    assert_eq!(
        stored.get_i64("expire"),
        Ok(of_b.expires_at().timestamp_millis())
    );
    assert!(b.release(&of_b).await.unwrap());
}

/// The control: a delete by key alone, of which the source warns, removes the lock of B.
#[tokio::test]
async fn an_unbounded_delete_would_remove_the_lock_of_the_next() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    expired(&locks, &collection, "invoices").await;
    assert!(locks.remove_expired("invoices").await.unwrap());
    let of_b = locks.increment("invoices", LONG).await.unwrap().unwrap();
    collection
        .delete_one(doc! { "key": "invoices" })
        .await
        .unwrap();
    assert!(locks.acquire("invoices", LONG).await.unwrap().is_some());
    assert!(!locks.release(&of_b).await.unwrap());
}

/// The second race: in Java a late release frees the lock of the next holder.
#[tokio::test]
async fn a_slow_holder_releases_late() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    let slow = locks.acquire("invoices", SOON).await.unwrap().unwrap();
    until_expired(&collection, "invoices").await;
    assert_eq!(slow.remaining(), Duration::ZERO);
    let next = locks.acquire("invoices", LONG).await.unwrap().unwrap();
    assert!(!locks.release(&slow).await.unwrap());
    assert!(locks.acquire("invoices", LONG).await.unwrap().is_none());
    assert!(locks.release(&next).await.unwrap());
}

/// All tasks see no lock, and race for it. One wins, and the increments of the losers do not change
/// its expiry. Returns how many won.
async fn race(locks: &MongoDistributedLock) -> usize {
    let barrier = Arc::new(Barrier::new(32));
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let (locks, barrier) = (locks.clone(), barrier.clone());
        tasks.spawn(async move {
            barrier.wait().await;
            locks.increment("invoices", LONG).await.unwrap()
        });
    }
    tasks.join_all().await.into_iter().flatten().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_32_racing_tasks_one_wins() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        for _ in 0..2 {
            let (locks, _) = fixture(engine).await;
            assert_eq!(race(&locks).await, 1);
        }
    }
}

/// A contender that finds the lock held writes nothing. In Java each contender costs two
/// increments.
#[tokio::test]
async fn the_contender_of_a_held_lock_only_reads() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (collection, commands) = fixture.watched().await;
    let locks = MongoDistributedLock::new(&collection);
    locks.prepare().await.unwrap();
    commands.take();
    locks.acquire("invoices", LONG).await.unwrap().unwrap();
    assert_eq!(commands.names(), ["aggregate", "findAndModify"]);
    assert!(locks.acquire("invoices", LONG).await.unwrap().is_none());
    assert_eq!(commands.names(), ["aggregate"]);
}

/// A document may have the value 0, for example after a reset by hand. The new value 1 then tells nothing.
#[tokio::test]
async fn a_value_of_one_is_no_grant_unless_the_document_is_ours() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (locks, collection) = fixture(engine).await;
        let now = chrono::Utc::now().timestamp_millis();
        let reset = doc! { "key": "invoices", "value": 0.0, "expire": now + 600_000 };
        let mut of_another = reset.clone();
        of_another.extend(doc! { "key": "orders", "holder": "somebody" });
        collection.insert_many([reset, of_another]).await.unwrap();
        for key in ["invoices", "orders"] {
            let granted = locks.increment(key, LONG).await.unwrap();
            assert!(granted.is_none(), "{engine:?}, {key}: {granted:?}");
            let counted = stored(&collection, key).await.unwrap();
            assert_eq!(counted.get_f64("value"), Ok(1.0), "as the class counts");
        }
    }
}

/// The class compares with `$lt` in a query, which has no order between a number and anything else.
#[tokio::test]
async fn an_expiry_that_is_no_number_has_not_passed() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (locks, collection) = fixture(engine).await;
        for expire in [
            None,
            Some(Bson::Null),
            Some(Bson::Double(f64::NAN)),
            Some(Bson::Decimal128("NaN".parse().unwrap())),
            Some("soon".into()),
            Some(mongodb::bson::DateTime::from_millis(0).into()),
            Some(vec![0_i64].into()),
            Some(Bson::MinKey),
        ] {
            let mut document = doc! { "key": "invoices", "value": 1.0 };
            document.extend(expire.clone().map(|expire| ("expire".to_owned(), expire)));
            collection.insert_one(document).await.unwrap();
            let removed = locks.remove_expired("invoices").await.unwrap();
            assert!(!removed, "{engine:?}: {expire:?}");
            assert!(stored(&collection, "invoices").await.is_some());
            collection.delete_many(doc! {}).await.unwrap();
        }
        // Of numbers, each kind counts.
        for expire in [Bson::Int32(5), Bson::Int64(5), Bson::Double(5.5)] {
            let expired = doc! { "key": "invoices", "value": 1.0, "expire": expire };
            collection.insert_one(expired).await.unwrap();
            assert!(locks.remove_expired("invoices").await.unwrap());
            assert!(stored(&collection, "invoices").await.is_none());
        }
    }
}

/// Without the unique index two services that upsert at the same moment leave several documents. The class removes all
/// that have expired.
#[tokio::test]
async fn all_expired_documents_of_a_key_are_removed() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let collection = Fixture::new(engine).collection().await;
        let locks = MongoDistributedLock::new(&collection);
        let now = chrono::Utc::now().timestamp_millis();
        let twin = |expire| doc! { "key": "invoices", "value": 1.0, "expire": expire };
        let twins = [twin(5_i64), twin(now + 600_000), twin(6)];
        collection.insert_many(twins).await.unwrap();
        assert!(locks.remove_expired("invoices").await.unwrap());
        let left = collection.count_documents(doc! {}).await.unwrap();
        assert_eq!(left, 1, "{engine:?}");
        assert!(!locks.remove_expired("invoices").await.unwrap());
    }
}

#[tokio::test]
async fn prepare_can_be_repeated_and_says_what_is_in_its_way() {
    let (locks, _) = fixture(Engine::MongoDb).await;
    locks.prepare().await.unwrap();

    // Two Java services that upserted at the same moment leave this behind.
    let collection = Fixture::new(Engine::MongoDb).collection().await;
    let twins = [
        doc! { "key": "invoices", "value": 1.0 },
        doc! { "key": "invoices", "value": 1.0 },
    ];
    collection.insert_many(twins).await.unwrap();
    let locks = MongoDistributedLock::new(&collection);
    let error = locks.prepare().await.unwrap_err();
    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("several documents have the same key"),
        "{text}"
    );

    // The collection has locks of the other store, which have no such field.
    let fixture = Fixture::new(Engine::MongoDb);
    let (collection, store) = (fixture.collection().await, fixture.store().await);
    let leases = leasehold::Leases::new(store);
    for key in ["one", "two"] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
    }
    let error = MongoDistributedLock::new(&collection)
        .prepare()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
    assert!(error.to_string().contains("have no field key"), "{error}");
}

/// A unique index on another field refuses the second lock. That is not a race between two upserts.
#[tokio::test]
async fn a_unique_index_on_another_field_is_named() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    crate::prepare::unique_on_email(&collection).await;
    locks.acquire("one", LONG).await.unwrap().unwrap();
    let error = locks.acquire("two", LONG).await.unwrap_err();
    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
    assert!(error.to_string().contains("email_1"), "{error}");
}

/// The validator of the collection refuses locks, which no index shows.
#[tokio::test]
async fn prepare_tries_a_lock_and_leaves_nothing_of_it() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        for (rule, is_fit) in [
            (
                doc! { "$jsonSchema": { "required": ["never there"] } },
                false,
            ),
            (doc! {}, true),
        ] {
            let collection = Fixture::new(engine).collection().await;
            let create = doc! { "create": collection.name(), "validator": rule };
            let database = collection.client().database(super::DATABASE);
            database.run_command(create).await.unwrap();
            let prepared = MongoDistributedLock::new(&collection).prepare().await;
            match prepared {
                Ok(()) => assert!(is_fit),
                Err(error) => {
                    assert!(!is_fit, "{error:?}");
                    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                    assert!(error.to_string().contains("validator"), "{error}");
                }
            }
            assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
        }
    }
}

/// The client is set to wait for no acknowledgement. The lock asks for one all the same.
#[tokio::test]
async fn a_client_without_acknowledgements_locks_all_the_same() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let collection = crate::prepare::of_a_careless_client(engine).await;
        let locks = MongoDistributedLock::new(&collection);
        locks.prepare().await.unwrap();
        let grant = locks.acquire("key", LONG).await.unwrap().unwrap();
        assert!(locks.acquire("key", LONG).await.unwrap().is_none());
        assert!(locks.release(&grant).await.unwrap());
    }
}

#[tokio::test]
async fn bad_input_is_refused() {
    let (locks, collection) = fixture(Engine::MongoDb).await;
    let empty = locks.acquire("", LONG).await;
    assert!(
        matches!(empty, Err(Error::InvalidKey { bytes: 0 })),
        "{empty:?}"
    );
    let long = locks.increment("k".repeat(513), LONG).await;
    assert!(
        matches!(long, Err(Error::InvalidKey { bytes: 513 })),
        "{long:?}"
    );
    let brief = locks.acquire("invoices", Duration::ZERO).await;
    assert!(matches!(brief, Err(Error::InvalidTtl { .. })), "{brief:?}");
    let endless = locks.acquire("invoices", Duration::MAX).await;
    assert!(
        matches!(endless, Err(Error::InvalidTtl { .. })),
        "{endless:?}"
    );
    collection
        .insert_one(doc! { "key": "odd", "expire": "soon" })
        .await
        .unwrap();
    let odd = locks.acquire("odd", LONG).await;
    assert!(matches!(odd, Err(Error::NotALock { .. })), "{odd:?}");
}

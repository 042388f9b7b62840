//! What else may be in the collection, and which fields of a lock survive every operation.

use leasehold::{
    Key, Leases, Mode, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, SCHEMA},
};
use leasehold_tests::{
    carried::{is_carried_along, others},
    clock_ahead,
    hostile::{KEY, with_times},
};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::{Value, json};

use super::{Engine, Fixture, LONG};

fn names(document: &Document) -> Vec<&str> {
    document.keys().map(String::as_str).collect()
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

    let flat = [
        "_id",
        "schema",
        "fence",
        "cleanup_at",
        "lease",
        "owner",
        "acquired_at",
        "expires_at",
    ];
    assert_eq!(names(&stored), flat);
    assert_eq!(stored.get_str("_id"), Ok("report:42"));
    assert_eq!(stored.get_str("schema"), Ok(SCHEMA));
    // The last of the fences that the lease has taken.
    assert_eq!(stored.get_i64("fence"), Ok(lease.fence().get() + 1_023));
    assert_eq!(stored.get_str("lease"), Ok(lease.id().to_string().as_str()));
    assert_eq!(stored.get_str("owner"), Ok("pod-3"));
    let acquired_at = stored
        .get_datetime("acquired_at")
        .unwrap()
        .timestamp_millis();
    let expires_at = stored
        .get_datetime("expires_at")
        .unwrap()
        .timestamp_millis();
    assert_eq!(expires_at - acquired_at, LONG.as_millis() as i64);

    lease.release().await.unwrap();
    let tombstone = fixture.collection().await.find_one(doc! {}).await;
    let tombstone = tombstone.unwrap().unwrap();
    assert_eq!(
        names(&tombstone),
        ["_id", "schema", "fence", "cleanup_at", "released_at"]
    );
    assert_eq!(tombstone.get("fence"), stored.get("fence"));
}

#[tokio::test]
async fn every_mode_and_the_note_have_their_final_shape() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    let collection = fixture.collection().await;
    let request = |name: &str| {
        let (key, lease) = (Key::new(name).unwrap(), LeaseId::random());
        AcquireRequest::exclusive(key, lease, "$owner".into(), LONG).note("$$ROOT {nightly}")
    };
    for (request, mode, permits) in [
        (request("alone"), Mode::Exclusive, 1),
        (request("again").reentrant(), Mode::Exclusive, 1),
        (request("shared").shared(), Mode::Shared, 1),
        (request("permits").permits(3, 4).unwrap(), Mode::Permits, 3),
    ] {
        store.acquire(&request).await.unwrap();
        let name = request.key.as_str();
        let stored = collection.find_one(doc! { "_id": name }).await;
        let stored = stored.unwrap().unwrap();
        let holder = if mode == Mode::Exclusive {
            assert!(!stored.contains_key("holders"), "{stored}");
            stored.clone()
        } else {
            let list = [
                "_id",
                "schema",
                "fence",
                "cleanup_at",
                "holders",
                "expires_at",
            ];
            assert_eq!(names(&stored), list);
            let holder = &stored.get_array("holders").unwrap()[0];
            let holder = holder.as_document().unwrap().clone();
            assert_eq!(holder.get_str("mode"), Ok(mode.as_str()));
            assert_eq!(holder.get_i64("permits"), Ok(permits));
            holder
        };
        assert_eq!(holder.get_str("note"), Ok("$$ROOT {nightly}"));
        assert_eq!(holder.get_str("owner"), Ok("$owner"));
        assert_eq!(holder.get("fence"), stored.get("fence"));
        let state = store.inspect(&request.key).await.unwrap().unwrap();
        assert_eq!(state.holders[0].note, request.note);
        assert_eq!(
            (state.holders[0].mode, state.holders[0].permits),
            (mode, permits)
        );
    }
}

/// The test runs on both engines: each is another version of the server, and a batch uses other statements than a
/// single operation.
#[tokio::test]
async fn what_waits_and_what_is_done_is_carried_along() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let collection = fixture.collection().await;
        let set = async |key: &Key, fields: &Value| {
            let fields = bson_of(fields);
            let set = collection
                .update_one(doc! { "_id": key.as_str() }, doc! { "$set": fields })
                .await;
            assert_eq!(set.unwrap().modified_count, 1);
        };
        let get = async |key: &Key| {
            let found = collection.find_one(doc! { "_id": key.as_str() }).await;
            Bson::from(found.unwrap().unwrap()).into_relaxed_extjson()
        };
        is_carried_along(&fixture.store().await, set, get).await;
    }
}

/// `enforce` marks the document of the lock in the transaction.
#[tokio::test]
async fn what_waits_and_what_is_done_is_carried_along_by_enforce() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let leases = Leases::new(MongoStore::new(&collection));
    for (shared, others) in [false, true].into_iter().zip(others()) {
        let key = format!("shared: {shared}");
        let lease = if shared {
            leases.acquire(&key, LONG).shared().await.unwrap()
        } else {
            leases.acquire(&key, LONG).await.unwrap()
        };
        let id = doc! { "_id": &key };
        let fields = bson_of(&others);
        let set = doc! { "$set": fields.clone() };
        collection.update_one(id.clone(), set).await.unwrap();
        let mut session = collection.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        lease.enforce(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        let stored = collection.find_one(id).await.unwrap().unwrap();
        assert!(stored.contains_key("touched"), "{stored}");
        for (name, value) in &fields {
            assert_eq!(stored.get(name), Some(value), "{stored}");
        }
        lease.release().await.unwrap();
    }
}

/// The fields as BSON, with their times.
fn bson_of(fields: &Value) -> Document {
    let now = DateTime::now().timestamp_millis();
    let time =
        |seconds: i64| json!({ "$date": { "$numberLong": (now + seconds * 1_000).to_string() } });
    match Bson::try_from(with_times(fields, &time)) {
        Ok(Bson::Document(fields)) => fields,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_holder_of_a_clock_that_was_ahead_is_named() {
    let fixture = Fixture::new(Engine::MongoDb);
    let collection = fixture.collection().await;
    let mut document = bson_of(&clock_ahead::shape());
    document.remove("key");
    document.insert("_id", KEY);
    collection.insert_one(&document).await.unwrap();
    clock_ahead::is_named(fixture.store().await).await;
}

/// Every kind of grant goes by the latest expiry, so all of them agree on what is free.
#[tokio::test]
async fn a_key_whose_latest_expiry_is_past_is_free_for_everybody() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    let collection = fixture.collection().await;
    let key = Key::new("key").unwrap();
    let lease = LeaseId::random();
    let ask = || AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG);
    for request in [ask(), ask().shared(), ask().permits(1, 4).unwrap()] {
        for request in [request.clone(), request.reentrant()] {
            let far = DateTime::from_millis(DateTime::now().timestamp_millis() + 600_000);
            let holder = doc! {
                "lease": lease.to_string(), "owner": "me", "mode": "exclusive", "permits": 1,
                "fence": 7, "acquired_at": DateTime::now(), "expires_at": far,
            };
            let lock = doc! {
                "_id": "key", "schema": SCHEMA, "fence": 7, "holders": [holder],
                "expires_at": DateTime::now(),
            };
            collection.insert_one(&lock).await.unwrap();
            let answer = store.acquire(&request).await.unwrap();
            let AcquireAnswer::Granted(grant) = answer else {
                panic!("{answer:?}");
            };
            assert!(grant.fence.get() > 7, "a new grant");
            let stored = collection.find_one_and_delete(doc! { "_id": "key" }).await;
            let stored = stored.unwrap().unwrap();
            let holders = stored
                .get_array("holders")
                .map(Vec::len)
                .unwrap_or_default();
            assert_eq!(holders + usize::from(stored.contains_key("lease")), 1);
        }
    }
}

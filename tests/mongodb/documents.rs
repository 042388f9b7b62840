//! What else may be in the collection, and what the collection keeps.

use std::sync::Arc;

use leasehold::{
    Key, Leases, Mode, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseRequest, SCHEMA},
};
use leasehold_tests::hostile::{
    KEY, Verdict, are_judged_alike, flat, several, shapes, untyped_shapes, with_times,
};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::{Value, json};

use super::{Engine, Fixture, LONG};

/// A shape as the documents of this store have it.
fn of_shape(shape: &Value) -> Document {
    let now = DateTime::now().timestamp_millis();
    let time =
        |seconds: i64| json!({ "$date": { "$numberLong": (now + seconds * 1_000).to_string() } });
    let Bson::Document(mut document) = Bson::try_from(with_times(shape, &time)).unwrap() else {
        panic!("{shape} is no document");
    };
    document.remove("key");
    document.insert("_id", KEY);
    document
}

/// The types that JSON has not.
fn shapes_of_bson() -> Vec<(Verdict, Document)> {
    let lock = || of_shape(&flat());
    let far = DateTime::from_millis(i64::MAX);
    let mut shapes = Vec::new();
    for nonsense in [
        Bson::MinKey,
        Bson::MaxKey,
        Bson::ObjectId(Default::default()),
        Bson::Timestamp(mongodb::bson::Timestamp {
            time: u32::MAX,
            increment: 0,
        }),
    ] {
        for field in ["schema", "fence", "expires_at"] {
            for mut document in [lock(), of_shape(&several())] {
                document.insert(field, nonsense.clone());
                // Nothing tells it from a missing number but its type, which would cost every statement one more test.
                if (field, &nonsense) != ("fence", &Bson::MinKey) {
                    shapes.push((Verdict::NoLock, document));
                }
            }
        }
    }
    for (field, value, verdict) in [
        ("fence", Bson::Double(f64::NAN), Verdict::Lock),
        ("fence", Bson::Double(f64::INFINITY), Verdict::NoLock),
        ("fence", Bson::Double(f64::NEG_INFINITY), Verdict::Lock),
        (
            "fence",
            Bson::Decimal128("7.5".parse().unwrap()),
            Verdict::Lock,
        ),
        (
            "fence",
            Bson::Decimal128("1E+300".parse().unwrap()),
            Verdict::NoLock,
        ),
        ("fence", far.into(), Verdict::NoLock),
        ("expires_at", far.into(), Verdict::Lock),
        (
            "expires_at",
            DateTime::from_millis(i64::MIN).into(),
            Verdict::Lock,
        ),
        ("acquired_at", far.into(), Verdict::Lock),
    ] {
        let mut document = lock();
        document.insert(field, value);
        shapes.push((verdict, document));
    }
    let foreign = doc! { "_id": KEY, "name": "an order", "total": 12 };
    shapes.push((Verdict::NoLock, foreign));
    shapes
}

#[tokio::test]
async fn hostile_documents_are_judged_alike_by_every_operation() {
    let fixture = Fixture::new(Engine::MongoDb);
    let collection = fixture.collection().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store().await);
    let mut all = shapes();
    all.extend(untyped_shapes());
    // A document that has nothing but the key is as one that an acquire has just made.
    let all = all
        .iter()
        .filter(|(_, shape)| *shape != json!({ "key": KEY }));
    let all = all.map(|(verdict, shape)| (*verdict, of_shape(shape)));
    let all: Vec<_> = all.chain(shapes_of_bson()).collect();
    let id = doc! { "_id": KEY };
    let put = async |document: &Document| {
        let replaced = collection
            .replace_one(id.clone(), document)
            .upsert(true)
            .await;
        replaced.unwrap();
    };
    let get = async || {
        let found = collection.find_one(id.clone()).await.unwrap();
        // Documents with a fence that is not a number equal themselves.
        found.map(|found| found.to_string())
    };
    // By the text of a document.
    let texts: Vec<_> = all
        .iter()
        .map(|(_, document)| document.to_string())
        .collect();
    let document_of = |text: &String| &all[texts.iter().position(|it| it == text).unwrap()].1;
    let shapes = all
        .iter()
        .zip(&texts)
        .map(|((verdict, _), text)| (*verdict, text.clone()));
    let put = async |text: &String| put(document_of(text)).await;
    are_judged_alike(&store, shapes.collect(), put, get).await;
}

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
    assert_eq!(stored.get_i64("fence"), Ok(lease.fence().get()));
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
        (request("permits").permits(3, 4), Mode::Permits, 3),
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

/// What other processes and jobs have written into the document of a lock stays there, whatever is done with the lock.
#[tokio::test]
async fn what_waits_and_what_is_done_is_carried_along() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (store, collection) = (fixture.store().await, fixture.collection().await);
    let others = doc! { "waiters": [{ "waiter": "w" }], "done": { "tick": 7 } };
    let key = Key::new(KEY).unwrap();
    for number in 0..7 {
        let ask = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        let request = match number % 3 {
            0 => ask,
            1 => ask.shared(),
            _ => ask.reentrant(),
        };
        store.acquire(&request).await.unwrap();
        let set = doc! { "$set": others.clone() };
        collection.update_one(doc! {}, set).await.unwrap();
        let next = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        store
            .acquire(&next.clone().in_place_of(request.lease))
            .await
            .unwrap();
        let release = ReleaseRequest::new(key.clone(), next.lease);
        match number {
            0 => drop(store.evict(&key).await.unwrap()),
            1..=3 => drop(store.release(&release.alone()).await.unwrap()),
            _ => drop(store.release(&release).await.unwrap()),
        }
        let stored = collection.find_one(doc! {}).await.unwrap().unwrap();
        assert!(stored.get_datetime("released_at").is_ok(), "{stored}");
        for (name, value) in &others {
            assert_eq!(stored.get(name), Some(value), "{number}");
        }
    }
}

/// The latest expiry decides for every kind of grant, so that all of them agree on what is free.
#[tokio::test]
async fn a_key_whose_latest_expiry_is_past_is_free_for_everybody() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    let collection = fixture.collection().await;
    let key = Key::new("key").unwrap();
    let lease = LeaseId::random();
    let ask = || AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG);
    for request in [ask(), ask().shared(), ask().permits(1, 4)] {
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

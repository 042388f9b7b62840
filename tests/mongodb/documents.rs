//! What else may be in the collection, and what the collection keeps.

use std::time::Duration;

use futures::TryStreamExt;
use leasehold::{
    Error, Filter, Key, Leases, Mode, Store,
    store::{AcquireAnswer, AcquireRequest, ConvertRequest, LeaseId, ReleaseRequest, RenewRequest},
};
use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{Engine, Fixture, LONG};

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
    let held_on = release.clone().min_hold(LONG, LeaseId::random());
    let upgrade = ConvertRequest::upgrade(key.clone(), lease);
    let downgrade = ConvertRequest::downgrade(key.clone(), lease);
    let renewal = RenewRequest::new(key.clone(), lease, LONG);
    let one = store.renew(std::slice::from_ref(&renewal)).await.unwrap();
    let many = store.renew(&[renewal.clone(), renewal]).await.unwrap();
    let mut errors = vec![
        leases.try_acquire(&key, LONG).await.map(drop).unwrap_err(),
        leases.acquire(&key, LONG).await.map(drop).unwrap_err(),
        store.release(&release).await.map(drop).unwrap_err(),
        store.release(&held_on).await.map(drop).unwrap_err(),
        store.convert(&upgrade).await.map(drop).unwrap_err(),
        store.convert(&downgrade).await.map(drop).unwrap_err(),
        leases.inspect(&key).await.map(drop).unwrap_err(),
        leases.evict(&key).await.map(drop).unwrap_err(),
        leases.remove_expired(&key).await.map(drop).unwrap_err(),
    ];
    let ask = || AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG);
    for request in [ask(), ask().shared(), ask().permits(1, 4)] {
        for request in [request.clone(), request.reentrant()] {
            errors.push(store.acquire(&request).await.map(drop).unwrap_err());
        }
    }
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

const NAMES: [&str; 6] = [
    "_id",
    "schema",
    "fence",
    "holders",
    "expires_at",
    "cleanup_at",
];

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
    assert_eq!(names, NAMES);
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
        let names: Vec<_> = stored.keys().map(String::as_str).collect();
        assert_eq!(names, NAMES);
        let holders = stored.get_array("holders").unwrap();
        let holder = holders[0].as_document().unwrap();
        assert_eq!(holder.keys().last().unwrap(), "note");
        assert_eq!(holder.get_str("note"), Ok("$$ROOT {nightly}"));
        assert_eq!(holder.get_str("owner"), Ok("$owner"));
        assert_eq!(holder.get_str("mode"), Ok(mode.as_str()));
        assert_eq!(holder.get_i64("permits"), Ok(permits));
        assert_eq!(holder.get("fence"), stored.get("fence"));
        let state = store.inspect(&request.key).await.unwrap().unwrap();
        assert_eq!(state.holders[0].note, request.note);
    }
}

/// What a later version may add: a holder of a mode that this one does not know.
#[tokio::test]
async fn a_live_holder_of_an_unknown_mode_lets_nobody_in() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    let collection = fixture.collection().await;
    let key = Key::new("key").unwrap();
    let ask = || AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
    for mode in [Bson::from("reserved"), Bson::Null, Bson::Undefined] {
        let far = DateTime::from_millis(DateTime::now().timestamp_millis() + 600_000);
        let mut holder = doc! {
            "lease": LeaseId::random().to_string(), "owner": "they", "permits": 1, "fence": 7,
            "acquired_at": DateTime::now(), "expires_at": far,
        };
        if mode != Bson::Undefined {
            holder.insert("mode", mode);
        }
        let lock = doc! {
            "_id": "key", "schema": 1, "fence": 7, "holders": [holder], "expires_at": far,
        };
        collection.insert_one(&lock).await.unwrap();
        for request in [ask(), ask().shared(), ask().permits(1, 4)] {
            for request in [request.clone(), request.reentrant()] {
                let error = store.acquire(&request).await.unwrap_err();
                assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
            }
        }
        let after = collection.find_one_and_delete(doc! { "_id": "key" }).await;
        assert_eq!(after.unwrap(), Some(lock));
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
                "_id": "key", "schema": 1, "fence": 7, "holders": [holder],
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
            assert_eq!(stored.get_array("holders").map(Vec::len), Ok(1));
        }
    }
}

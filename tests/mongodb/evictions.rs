//! What an eviction leaves in the document.

use leasehold::{
    Key, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, RenewAnswer, RenewRequest,
    },
};
use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{Engine, Fixture, LONG};

const HOUR_MS: i64 = 60 * 60 * 1_000;

/// The same value with every date an hour later. A server whose clock has stepped back by an hour sees the document
/// like this.
fn an_hour_later(value: Bson) -> Bson {
    match value {
        Bson::DateTime(date) => DateTime::from_millis(date.timestamp_millis() + HOUR_MS).into(),
        Bson::Array(values) => values.into_iter().map(an_hour_later).collect(),
        Bson::Document(fields) => {
            let fields = fields.into_iter();
            let later = fields.map(|(name, value)| (name, an_hour_later(value)));
            Bson::Document(later.collect())
        }
        other => other,
    }
}

/// A renewal that has waited in the server since before the eviction has an older time too, as if the clock had stepped
/// back.
#[tokio::test]
async fn an_evicted_lease_is_over_whatever_the_clock_says() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        let ask = |name: &str| {
            let key = Key::new(name).unwrap();
            AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
        };
        for leases in [
            vec![ask("alone")],
            vec![ask("b").shared(), ask("b").shared()],
        ] {
            for lease in &leases {
                let granted = store.acquire(lease).await.unwrap();
                assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
            }
            let key = &leases[0].key;
            let id = doc! { "_id": key.as_str() };
            let before = collection.find_one(id.clone()).await.unwrap().unwrap();
            let evicted = store.evict(key).await.unwrap().unwrap().evicted;
            assert_eq!(evicted.len(), leases.len());
            let stored = collection.find_one(id.clone()).await.unwrap().unwrap();
            assert!(!stored.contains_key("holders") && !stored.contains_key("lease"));
            let holders = stored.get_array("evicted").unwrap();
            match before.get_array("holders") {
                Ok(before) => assert_eq!(holders, before),
                Err(_) => {
                    let holder = holders[0].as_document().unwrap();
                    assert_eq!(holder.get("lease"), before.get("lease"));
                }
            }

            let Bson::Document(later) = an_hour_later(stored.into()) else {
                panic!("a document is one");
            };
            collection.replace_one(id.clone(), &later).await.unwrap();
            for lease in leases.iter().map(|request| request.lease) {
                let renewal = RenewRequest::new(key.clone(), lease, LONG);
                for requests in [vec![renewal.clone()], vec![renewal.clone(), renewal]] {
                    for answer in store.renew(&requests).await.unwrap() {
                        assert_eq!(answer.unwrap(), RenewAnswer::TakenOver, "{engine:?}");
                    }
                }
                let upgrade = ConvertRequest::upgrade(key.clone(), lease);
                let converted = store.convert(&upgrade).await.unwrap();
                assert_eq!(converted, ConvertAnswer::TakenOver);
                let release = ReleaseRequest::new(key.clone(), lease);
                for release in [release.clone().likely_sole(), release] {
                    let released = store.release(&release).await.unwrap();
                    assert_eq!(released, ReleaseAnswer::NotHeld);
                }
            }
            let after = collection.find_one(id).await.unwrap();
            assert_eq!(after, Some(later));
        }
    }
}

/// A grant drops the names of the evicted leases, and another eviction names other leases.
#[tokio::test]
async fn who_was_evicted_is_forgotten_with_the_next_grant() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (store, collection) = (fixture.store().await, fixture.collection().await);
    let key = Key::new("key").unwrap();
    let ask = || AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
    let stored = async || collection.find_one(doc! {}).await.unwrap().unwrap();
    for request in [
        ask(),
        ask().shared(),
        ask().permits(1, 2).unwrap(),
        ask().reentrant(),
    ] {
        store.acquire(&request).await.unwrap();
        let evicted = async || store.evict(&key).await.unwrap().unwrap().evicted;
        assert_eq!(evicted().await[0].lease, request.lease);
        assert!(evicted().await.is_empty());
        let granted = store.acquire(&request).await.unwrap();
        assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
        let document: Document = stored().await;
        assert!(!document.contains_key("evicted"), "{document}");
        evicted().await;
    }
}

//! What an eviction leaves in the document.

use elasticsearch::http::Method::{Get, Put};
use leasehold::{
    Key,
    store::{
        ConvertAnswer, ConvertRequest, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewRequest,
    },
};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, granted};

const HOUR_MS: i64 = 60 * 60 * 1_000;

/// Puts every time an hour off. A node whose clock has stepped back by an hour sees the document
/// like this.
fn put_off(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(put_off),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_i64().filter(|_| name.ends_with("_at")) {
                    Some(time) => *value = json!(time + HOUR_MS),
                    None => put_off(value),
                }
            }
        }
        _ => {}
    }
}

/// A renewal that has waited in the node since before the eviction has an older time too, as if the
/// clock had stepped back.
#[tokio::test]
async fn an_evicted_lease_is_over_whatever_the_clock_says() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let path = format!("{}/_doc/key", fixture.alias);
        let stored = async || fixture.ask(Get, &path, Value::Null).await["_source"].take();
        let key = Key::new("key").unwrap();
        let ask = || {
            let lease = LeaseId::random();
            leasehold::store::AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG)
        };
        for leases in [
            vec![ask().note("alone")],
            vec![ask().shared(), ask().shared()],
        ] {
            for lease in &leases {
                granted(&store, lease).await;
            }
            let before = stored().await;
            assert_eq!(before["evicted"], Value::Null);
            let evicted = store.evict(&key).await.unwrap().unwrap().evicted;
            assert_eq!(evicted.len(), leases.len());
            let mut later = stored().await;
            assert!(later["holders"].is_null() && later["lease"].is_null());
            match &before["holders"] {
                Value::Null => assert_eq!(later["evicted"][0]["lease"], before["lease"]),
                holders => assert_eq!(later["evicted"], *holders),
            }
            put_off(&mut later);
            fixture.ask(Put, &path, later.clone()).await;

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
                let released = store.release(&release).await.unwrap();
                assert_eq!(released, ReleaseAnswer::NotHeld);
            }
            assert_eq!(stored().await, later);
        }
    }
}

//! What is stored, and what else may be in the index.

use elasticsearch::http::Method::{Get, Put};
use futures::TryStreamExt;
use leasehold::{
    Error, Filter, Key,
    store::{AcquireRequest, ConvertRequest, LeaseId, ListRequest, ReleaseRequest, RenewRequest},
};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, builder, leases};

#[tokio::test]
async fn the_document_has_its_final_shape() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = builder(fixture.store()).owner("pod-3").build();
        let lease = leases.acquire("report:42", LONG).await.unwrap();
        let path = format!("{}/_doc/report:42", fixture.alias);
        let stored = fixture.ask(Get, &path, Value::Null).await;
        let document = &stored["_source"];
        let holder = &document["holders"][0];
        assert_eq!(
            *document,
            json!({
                "key": "report:42",
                "schema": 1,
                "fence": lease.fence().get(),
                "expires_at": holder["expires_at"],
                "written_at": holder["acquired_at"],
                "holders": [{
                    "lease": lease.id().to_string(),
                    "owner": "pod-3",
                    "mode": "exclusive",
                    "permits": 1,
                    "fence": lease.fence().get(),
                    "acquired_at": lease.acquired_at().timestamp_millis(),
                    "expires_at": lease.acquired_at().timestamp_millis() + LONG.as_millis() as i64,
                }],
            })
        );
        lease.release().await.unwrap();
        let tombstone = fixture.ask(Get, &path, Value::Null).await;
        assert_eq!(tombstone["_source"]["holders"], json!([]));
        assert_eq!(tombstone["_source"]["fence"], document["fence"]);
    }
}

#[tokio::test]
async fn a_document_of_a_later_schema_is_refused_and_left_alone() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let later = json!({
            "key": "key", "schema": 2, "fence": 7, "holders": [], "expires_at": 0,
        });
        let path = format!("{}/_doc/key", fixture.alias);
        fixture.ask(Put, &path, later).await;
        let before = fixture.ask(Get, &path, Value::Null).await;

        let (store, key) = (fixture.store(), Key::new("key").unwrap());
        let leases = leases(store.clone());
        let lease = LeaseId::random();
        let reader = AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG).shared();
        let conversion = ConvertRequest::upgrade(key.clone(), lease);
        let release = ReleaseRequest::new(key.clone(), lease);
        let holding = release.clone().min_hold(LONG, LeaseId::random());
        let renewal = RenewRequest::new(key.clone(), lease, LONG);
        let one = store.renew(std::slice::from_ref(&renewal)).await.unwrap();
        let many = store.renew(&[renewal.clone(), renewal]).await.unwrap();
        let mut errors = vec![
            leases.try_acquire(&key, LONG).await.map(drop).unwrap_err(),
            leases.acquire(&key, LONG).await.map(drop).unwrap_err(),
            store.acquire(&reader).await.map(drop).unwrap_err(),
            store.convert(&conversion).await.map(drop).unwrap_err(),
            store.release(&release).await.map(drop).unwrap_err(),
            store.release(&holding).await.map(drop).unwrap_err(),
            leases.inspect(&key).await.map(drop).unwrap_err(),
            leases.evict(&key).await.map(drop).unwrap_err(),
        ];
        errors.extend(one.into_iter().chain(many).map(Result::unwrap_err));
        for error in errors {
            assert!(
                matches!(error, Error::UnsupportedSchema { found: 2, .. }),
                "{error:?}"
            );
        }
        assert!(!leases.remove_expired(&key).await.unwrap());
        assert_eq!(leases.purge(std::time::Duration::ZERO).await.unwrap(), 0);
        let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
        assert_eq!(listed, []);
        assert_eq!(fixture.ask(Get, &path, Value::Null).await, before);
    }
}

/// The index takes nothing but locks, so nobody else's document can be in the way of one.
#[tokio::test]
async fn the_index_refuses_what_is_not_a_lock() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let path = format!("{}/_doc/order", fixture.alias);
        let refused = fixture.ask(Put, &path, json!({ "total": 12 })).await;
        assert_eq!(refused["status"], 400, "{refused}");
    }
}

/// The pages go by the key, and the locks by the id.
#[tokio::test]
async fn a_document_under_another_id_is_left_out_of_a_list() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let lock = |key: &str| json!({ "key": key, "schema": 1, "fence": 7, "holders": [], "expires_at": 0 });
        for (id, key) in [("a", "z"), ("b", "b"), ("c", "y"), ("d", "d")] {
            fixture
                .ask(Put, &format!("{}/_doc/{id}", fixture.alias), lock(key))
                .await;
        }
        let store = fixture.store();
        // A page at a time, which must come to an end.
        let (mut after, mut shown) = (None, Vec::new());
        for _ in 0..10 {
            let page = ListRequest::new(Filter::new(), after, 1);
            let page = store.list(&page).await.unwrap();
            shown.extend(page.locks.iter().map(|lock| lock.key.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((shown, after), (vec!["b".to_owned(), "d".to_owned()], None));
    }
}

/// Paths drop these two, percent-encoded or not.
#[tokio::test]
async fn dots_are_keys_as_well() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        for key in [".", ".."] {
            assert_eq!(leases.inspect(key).await.unwrap(), None);
            let lease = leases.acquire(key, LONG).await.unwrap();
            lease.renew().await.unwrap();
            let state = leases.inspect(key).await.unwrap().unwrap();
            assert_eq!(state.holders[0].lease, lease.id());
            let refused = leases
                .acquire(key, LONG)
                .wait_for(std::time::Duration::ZERO)
                .await;
            assert!(
                matches!(refused, Err(Error::WaitTimedOut { .. })),
                "{refused:?}"
            );
            lease.release().await.unwrap();
            assert!(leases.evict(key).await.unwrap().is_some());
        }
        let locks: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
        let keys: Vec<_> = locks.iter().map(|lock| lock.key.as_str()).collect();
        assert_eq!(keys, [".", ".."]);
    }
}

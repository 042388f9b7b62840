//! Collections in which locks would not work. They are refused, and the error names the reason.

use std::sync::Arc;

use leasehold::{
    Error, Key, Leases, MongoStore, Store,
    store::{AcquireRequest, BatchRequest, LeaseId},
};
use leasehold_tests::sentence::sentence;
use mongodb::{
    Collection, IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};

use super::{Engine, Fixture, LONG, errors::everything};

pub async fn unique_on_email(collection: &Collection<Document>) {
    let options = IndexOptions::builder().unique(true).build();
    let keys = doc! { "email": 1 };
    let index = IndexModel::builder().keys(keys).options(options).build();
    collection.create_index(index).await.unwrap();
}

/// A collection of a client that waits for no acknowledgement of a write.
pub async fn of_a_careless_client(engine: Engine) -> Collection<Document> {
    let mut fixture = Fixture::new(engine);
    let separator = if fixture.uri.contains('?') { "&" } else { "/?" };
    fixture.uri.push_str(separator);
    fixture.uri.push_str("w=0");
    fixture.collection().await
}

fn ask(name: &str) -> AcquireRequest {
    let key = Key::new(name).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

#[tokio::test]
async fn a_unique_index_on_another_field_is_named_and_is_no_race() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (store, collection) = (fixture.store().await, fixture.collection().await);
        // The store has looked at the collection before it got the index.
        store.acquire(&ask("one")).await.unwrap();
        unique_on_email(&collection).await;
        let again = ask("two");
        let errors = [
            store.acquire(&ask("two").fresh()).await.unwrap_err(),
            store.acquire(&again).await.unwrap_err(),
            store.acquire(&ask("two").shared()).await.unwrap_err(),
            store
                .batch(&[BatchRequest::Acquire(Arc::new(again))])
                .await
                .unwrap()
                .remove(0)
                .unwrap_err(),
            store.prepare().await.unwrap_err(),
            store.check().await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            assert!(sentence(&error).contains("email_1"), "{error}");
            assert!(!error.is_ambiguous() && !error.is_retryable());
        }
    }
}

/// If an index does not include locks, neither `prepare` nor an acquire reports it. If it includes them, both do.
#[tokio::test]
async fn a_unique_index_is_refused_if_locks_are_in_it_and_only_then() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let there = |field: &str| doc! { field: { "$exists": true } };
        for (field, filter, harmless) in [
            ("email", None, true),
            ("owner", None, false),
            ("owner", Some(there("email")), true),
            ("owner", Some(there("lease")), false),
        ] {
            let fixture = Fixture::new(engine);
            let (store, collection) = (fixture.store().await, fixture.collection().await);
            // This store has looked at the collection before it got the index.
            let before = fixture.store().await;
            before.acquire(&ask("one")).await.unwrap();
            let mut options = IndexOptions::builder().unique(true).build();
            options.sparse = filter.is_none().then_some(true);
            options.partial_filter_expression = filter;
            let keys = doc! { field: 1 };
            let index = IndexModel::builder().keys(keys).options(options).build();
            collection.create_index(index.clone()).await.unwrap();
            assert_eq!(store.prepare().await.is_ok(), harmless, "{index:?}");
            for (store, key) in [(store, "two"), (before, "three")] {
                let next = store.acquire(&ask(key)).await;
                assert_eq!(next.is_ok(), harmless, "{index:?}: {next:?}");
            }
        }
    }
}

/// Such a collection is a capped one, a view, and so on.
#[tokio::test]
async fn a_collection_that_is_of_no_use_for_locks_is_refused() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let database = fixture
            .collection()
            .await
            .client()
            .database(super::DATABASE);
        let english = doc! { "locale": "en", "strength": 2 };
        for (options, problem) in [
            (doc! { "capped": true, "size": 4096 }, "capped"),
            (doc! { "collation": english }, "collation"),
            (doc! { "viewOn": "orders", "pipeline": [] }, "view"),
            (doc! { "timeseries": { "timeField": "at" } }, "time series"),
        ] {
            let name = format!("odd_{}", LeaseId::random());
            let mut create = doc! { "create": &name };
            create.extend(options);
            database.run_command(create).await.unwrap();
            let collection = database.collection::<Document>(&name);
            let store = MongoStore::new(&collection);
            for outcome in [store.check().await, store.prepare().await] {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                assert!(sentence(&error).contains(problem), "{engine:?}: {error}");
            }
        }
        let plain = fixture.store().await;
        plain.check().await.unwrap();
        plain.prepare().await.unwrap();
        plain.check().await.unwrap();
    }
}

/// The server refuses locks for a reason that no description of the collection shows, or only their release.
#[tokio::test]
async fn prepare_tries_a_lock_and_leaves_nothing_of_it() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        for is_classic in [false, true] {
            let prepared = async |rule: Document| {
                let fixture = Fixture::new(engine);
                let (collection, commands) = fixture.watched().await;
                let create = doc! { "create": collection.name(), "validator": rule };
                let database = collection.client().database(super::DATABASE);
                database.run_command(create).await.unwrap();
                commands.take();
                let store = MongoStore::new(&collection);
                let store = match is_classic {
                    true => store.without_pipelines(),
                    false => store,
                };
                let outcome = store.prepare().await;
                let names = commands.names();
                let left = collection.count_documents(doc! {}).await.unwrap();
                assert_eq!(left, 0, "{engine:?}: {names:?}");
                (outcome, names)
            };
            for required in ["never there", "lease"] {
                let rule = doc! { "$jsonSchema": { "required": [required] } };
                let error = prepared(rule).await.0.unwrap_err();
                assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                let text = everything(&error);
                assert!(text.contains("its validator"), "{text}");
            }
            let (outcome, names) = prepared(doc! {}).await;
            outcome.unwrap();
            assert!(
                names.ends_with(&["update".to_owned(), "delete".to_owned()]),
                "{names:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_without_acknowledgements_locks_all_the_same() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let store = MongoStore::new(&of_a_careless_client(engine).await);
        store.prepare().await.unwrap();
        let leases = Leases::new(store.clone());
        let lease = leases.acquire("key", LONG).await.unwrap();
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
        let requests = ["one", "two"].map(|name| BatchRequest::Acquire(Arc::new(ask(name))));
        for answer in store.batch(&requests).await.unwrap() {
            answer.unwrap();
        }
    }
}

//! Collections in which two clients could hold one lock. They are refused at the first use, without `prepare`.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{
    Error, Key, Leases, MongoDistributedLock, MongoStore, Store,
    store::{
        AcquireRequest, BatchRequest, ConvertRequest, LeaseId, PermitId, PermitRequest, Quota,
        ReleaseRequest, RenewAnswer, RenewRequest,
    },
};
use leasehold_tests::{disguise::Disguise, proxy::Proxy};
use mongodb::{
    Client, Collection, IndexModel,
    bson::{Document, doc},
    options::{ClientOptions, IndexOptions},
};

use super::{
    DATABASE, Engine, Fixture, LONG, errors::everything, prepare::unique_on_email, soon_mended,
};

const BOTH: [Engine; 2] = [Engine::MongoDb, Engine::MongoDbReplicaSet];

/// An index of the application by which the server removes documents.
async fn ttl_on(collection: &Collection<Document>, field: &str) {
    let options = IndexOptions::builder().expire_after(Duration::from_secs(60));
    let options = options.name("theirs".to_owned()).build();
    let keys = doc! { field: 1 };
    let index = IndexModel::builder().keys(keys).options(options).build();
    collection.create_index(index).await.unwrap();
}

/// Collections that are not fit, and a word of the reason.
async fn unfit(engine: Engine) -> Vec<(&'static str, Collection<Document>)> {
    let english = doc! { "locale": "en", "strength": 2 };
    let mut unfit = Vec::new();
    for (options, problem) in [
        (doc! { "capped": true, "size": 4096 }, "capped"),
        (doc! { "collation": english }, "collation"),
        (doc! { "viewOn": "orders", "pipeline": [] }, "view"),
        (doc! { "timeseries": { "timeField": "at" } }, "time series"),
    ] {
        let collection = Fixture::new(engine).collection().await;
        let mut create = doc! { "create": collection.name() };
        create.extend(options);
        let database = collection.client().database(DATABASE);
        database.run_command(create).await.unwrap();
        unfit.push((problem, collection));
    }
    let elsewhere = Fixture::new(engine).collection().await;
    let local = elsewhere.client().database("local");
    unfit.push(("local", local.collection(elsewhere.name())));
    let unique = Fixture::new(engine).collection().await;
    unique_on_email(&unique).await;
    unfit.push(("email_1", unique));
    unfit
}

/// Every request that may give its caller a lock or a permit.
async fn granted(store: &MongoStore) -> Vec<(&'static str, Result<(), Error>)> {
    let key = || Key::new("key").unwrap();
    let ask = || AcquireRequest::exclusive(key(), LeaseId::random(), "me".into(), LONG);
    let quota = Quota::fixed(5, LONG).unwrap();
    let permit = PermitRequest::new(key(), PermitId::random(), quota, 1);
    let batch = [BatchRequest::Acquire(Arc::new(ask()))];
    let upgrade = ConvertRequest::upgrade(key(), LeaseId::random());
    vec![
        ("acquire", store.acquire(&ask()).await.map(drop)),
        ("fresh", store.acquire(&ask().fresh()).await.map(drop)),
        ("batch", store.batch(&batch).await.map(drop)),
        ("upgrade", store.convert(&upgrade).await.map(drop)),
        ("permit", store.permit(&permit).await.map(drop)),
    ]
}

fn assert_refused(problem: &str, operation: &str, outcome: Result<(), Error>) {
    match outcome {
        Err(error @ Error::NotPrepared { .. }) => {
            let text = everything(&error);
            assert!(text.contains(problem), "{operation}, {problem}: {text}");
            assert!(!error.is_ambiguous() && !error.is_retryable());
        }
        other => panic!("{operation}, {problem}: {other:?}"),
    }
}

#[tokio::test]
async fn what_is_not_fit_for_locks_is_refused_at_first_use_as_by_prepare() {
    for engine in BOTH {
        let mut collections = unfit(engine).await;
        for field in [
            "expires_at",
            "acquired_at",
            "holders.expires_at",
            "granted_at",
        ] {
            let collection = Fixture::new(engine).collection().await;
            ttl_on(&collection, field).await;
            collections.push(("TTL index theirs", collection));
        }
        for (problem, collection) in collections {
            for is_classic in [false, true] {
                let store = || match is_classic {
                    true => MongoStore::new(&collection).without_pipelines(),
                    false => MongoStore::new(&collection),
                };
                // The store has not been used before.
                assert_refused(problem, "check", store().check().await);
                assert_refused(problem, "prepare", store().prepare().await);
                for (operation, outcome) in granted(&store()).await {
                    assert_refused(problem, operation, outcome);
                }
            }
            if problem != "view" {
                assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 0);
            }
        }
    }
}

/// Their index removes documents of theirs, by a date that locks have not.
#[tokio::test]
async fn an_index_that_removes_no_locks_is_no_reason() {
    let fixture = Fixture::new(Engine::MongoDb);
    ttl_on(&fixture.collection().await, "seen_at").await;
    for (operation, outcome) in granted(&fixture.store().await).await {
        assert!(outcome.is_ok(), "{operation}: {outcome:?}");
    }
}

#[tokio::test]
async fn the_locks_of_the_java_class_are_looked_at_too() {
    for engine in BOTH {
        let mut collections = unfit(engine).await;
        // Two upserts at once would both insert the lock.
        let bare = Fixture::new(engine).collection().await;
        bare.insert_one(doc! { "key": "other", "value": 1.0, "expire": 5_i64 })
            .await
            .unwrap();
        collections.push(("no unique index on key", bare));
        for (problem, collection) in collections {
            let locks = || MongoDistributedLock::new(&collection);
            let acquired = locks().acquire("key", LONG).await.map(drop);
            assert_refused(problem, "acquire", acquired);
            let counted = locks().increment("key", LONG).await.map(drop);
            assert_refused(problem, "increment", counted);
            let prepared = locks().prepare().await;
            if problem == "no unique index on key" {
                prepared.unwrap();
                assert!(locks().acquire("key", LONG).await.unwrap().is_some());
            } else {
                assert_refused(problem, "prepare", prepared);
            }
        }
        // The first upsert would create the collection without the index.
        let missing = Fixture::new(engine).collection().await;
        let locks = MongoDistributedLock::new(&missing);
        let acquired = locks.acquire("key", LONG).await.map(drop);
        assert_refused("no unique index on key", "acquire", acquired);
        locks.prepare().await.unwrap();
        assert!(locks.acquire("key", LONG).await.unwrap().is_some());
    }
}

const LOOK: [&str; 2] = ["listCollections", "listIndexes"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_one_look_and_nobody_looks_again() {
    for is_classic in [false, true] {
        let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
        let store = match is_classic {
            true => MongoStore::new(&collection).without_pipelines(),
            false => MongoStore::new(&collection),
        };
        // What only shows or ends locks needs no look.
        let leases = Leases::new(store.clone());
        leases.inspect("key").await.unwrap();
        leases.evict("key").await.unwrap();
        assert_eq!(commands.looks(), [""; 0]);
        let first = (0..50).map(|number| leases.try_acquire(format!("key {number}"), LONG));
        for lease in join_all(first.map(IntoFuture::into_future)).await {
            drop(lease.unwrap());
        }
        let mut looks = commands.looks();
        looks.sort();
        assert_eq!(looks, LOOK);
        let clone = Leases::new(store);
        drop(clone.acquire("other", LONG).await.unwrap());
        assert_eq!(commands.looks(), [""; 0]);
    }
}

/// A look is lost, and the next operation looks again. So does the next one after a refusal.
#[tokio::test]
async fn only_a_good_look_is_remembered() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let options = fixture.options_at(proxy.address, "&retryReads=false").await;
    let collection = fixture.collection_with(options);
    let store = MongoStore::new(&collection);
    let ask = || {
        let key = Key::new("key").unwrap();
        AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
    };
    collection
        .insert_one(doc! { "_id": "theirs" })
        .await
        .unwrap();
    for question in LOOK {
        store.inspect(&Key::new("key").unwrap()).await.unwrap();
        proxy.lose_the_answer_to(question);
        let error = store.acquire(&ask()).await.unwrap_err();
        // Only a question was lost, so nothing can have been granted.
        assert!(error.is_retryable() && !error.is_ambiguous(), "{error:?}");
        everything(&error);
    }
    assert_eq!(proxy.cuts(), 2);
    ttl_on(&collection, "expires_at").await;
    for _ in 0..2 {
        assert_refused("theirs", "acquire", store.acquire(&ask()).await.map(drop));
    }
    collection.drop_index("theirs").await.unwrap();
    let held = ask();
    store.acquire(&held).await.unwrap();
    // The collection is not looked at again.
    ttl_on(&collection, "expires_at").await;
    store.acquire(&ask()).await.unwrap();
    // But whoever asks is told, and from then on whoever acquires. The holder keeps its lease all the same.
    assert_refused("theirs", "check", store.check().await);
    assert_refused("theirs", "acquire", store.acquire(&ask()).await.map(drop));
    let renewal = RenewRequest::new(held.key.clone(), held.lease, LONG);
    let renewed = store.renew(&[renewal]).await.unwrap().remove(0).unwrap();
    assert!(matches!(renewed, RenewAnswer::Renewed(_)), "{renewed:?}");
    let release = ReleaseRequest::new(held.key.clone(), held.lease);
    store.release(&release).await.unwrap();
}

/// An engine that does not know the questions.
#[tokio::test]
async fn an_engine_that_tells_nothing_of_a_collection_has_locks() {
    let fixture = Fixture::new(Engine::MongoDb);
    let address = Disguise::Taciturn.of(&fixture.uri).await;
    let options = soon_mended(ClientOptions::parse(&address).await.unwrap());
    let client = Client::with_options(options).unwrap();
    let collection = client
        .database(DATABASE)
        .collection::<Document>(&fixture.name);
    for (operation, outcome) in granted(&MongoStore::new(&collection)).await {
        assert!(outcome.is_ok(), "{operation}: {outcome:?}");
    }
    let locks = MongoDistributedLock::new(&collection);
    assert!(locks.acquire("key", LONG).await.unwrap().is_some());
}

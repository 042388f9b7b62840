//! Engines that are not available here. A server behind a proxy stands in for each of them.

use std::time::Duration;

use futures::TryStreamExt as _;
use leasehold::{
    Attempt, Error, Filter, Leases, MongoStore, Store as _,
    store::{ReleaseAnswer, ReleaseRequest},
};
use leasehold_conformance::Clients;
use leasehold_tests::disguise::Disguise;
use mongodb::{
    Client,
    bson::{Bson, Document, doc, oid::ObjectId},
    options::ClientOptions,
};

use super::{DATABASE, Engine, Fixture, LONG, soon_mended};

async fn disguised(fixture: &Fixture, disguise: Disguise) -> MongoStore {
    let address = disguise.of(&fixture.uri).await;
    let options = soon_mended(ClientOptions::parse(&address).await.unwrap());
    let client = Client::with_options(options).unwrap();
    MongoStore::new(
        &client
            .database(DATABASE)
            .collection::<Document>(&fixture.name),
    )
}

/// A sharded cluster with the expression `$currentDate`.
mod shard_date {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::new(Engine::MongoDbAlpha);
        let first = disguised(&fixture, Disguise::Router).await;
        first.prepare().await.unwrap();
        Clients::new(first, disguised(&fixture, Disguise::Router).await)
    }

    mod conformance {
        use super::*;

        leasehold_conformance::conformance_suite!(
            connect,
            flavor = "multi_thread",
            worker_threads = 2
        );
    }

    /// The collection has documents of the classic dialect, as after an upgrade of the cluster.
    #[tokio::test]
    async fn a_collection_with_classic_documents_stays_with_them() {
        let fixture = Fixture::new(Engine::MongoDbAlpha);
        let before = Leases::new(fixture.store().await.without_pipelines());
        let lease = before.acquire("before", LONG).await.unwrap();
        let upgraded = disguised(&fixture, Disguise::Router).await;
        assert!(!upgraded.has_pipelines().await.unwrap());
        let upgraded = Leases::new(upgraded);
        let attempt = upgraded.try_acquire("before", LONG).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
        lease.release().await.unwrap();
        drop(upgraded.acquire("before", LONG).await.unwrap());
    }

    #[tokio::test]
    async fn the_statements_are_pipelines_and_ask_the_shard() {
        let fixture = Fixture::new(Engine::MongoDbAlpha);
        let leases = Leases::new(disguised(&fixture, Disguise::Router).await);
        let lease = leases.acquire("key", LONG).await.unwrap();
        let found = fixture.collection().await.find_one(doc! {}).await.unwrap();
        assert_eq!(found.unwrap().get_str("schema"), Ok("leasehold.lock.1"));
        lease.release().await.unwrap();
    }
}

/// An engine without pipelines, such as Amazon DocumentDB.
mod without_pipelines {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::new(Engine::MongoDb);
        let first = disguised(&fixture, Disguise::WithoutPipelines).await;
        let second = disguised(&fixture, Disguise::WithoutPipelines).await;
        let first = first.without_pipelines();
        first.prepare().await.unwrap();
        Clients::new(first, second.without_pipelines())
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);

    #[tokio::test]
    async fn the_error_says_what_to_do() {
        let fixture = Fixture::new(Engine::MongoDb);
        let store = disguised(&fixture, Disguise::WithoutPipelines).await;
        let leases = Leases::new(store.clone());
        let refusals = [
            store.check().await,
            store.prepare().await,
            leases.try_acquire("key", LONG).await.map(drop),
        ];
        for refused in refusals {
            let Err(error @ Error::NotPrepared { .. }) = refused else {
                panic!("{refused:?}");
            };
            assert!(error.to_string().contains("without_pipelines"), "{error}");
        }
        let database = fixture.collection().await.client().database(DATABASE);
        let made = database.list_collection_names().await.unwrap();
        assert!(!made.contains(&fixture.name));
    }
}

/// Neither dialect takes a lock of the other one for its own, and both leave it unchanged.
#[tokio::test]
async fn the_two_dialects_refuse_each_others_documents() {
    for is_classic in [true, false] {
        let fixture = Fixture::new(Engine::MongoDb);
        let (pipelines, classic) = (fixture.store().await, fixture.store().await);
        let classic = classic.without_pipelines();
        let (holder, other) = match is_classic {
            true => (classic, pipelines),
            false => (pipelines, classic),
        };
        let (holder, other) = (Leases::new(holder), Leases::new(other));
        let lease = holder.acquire("key", LONG).await.unwrap();
        let collection = fixture.collection().await;
        let before = collection.find_one(doc! {}).await.unwrap();
        let refusals = [
            other.try_acquire("key", LONG).await.map(drop),
            other.inspect("key").await.map(drop),
            other.evict("key").await.map(drop),
            other.remove_expired("key").await.map(drop),
        ];
        for refused in refusals {
            let is_told = matches!(
                refused,
                Err(Error::NotALock { .. } | Error::UnsupportedSchema { .. })
            );
            assert!(is_told, "{refused:?}");
        }
        assert_eq!(collection.find_one(doc! {}).await.unwrap(), before);
        lease.release().await.unwrap();
        let attempt = holder.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)));
    }
}

/// Grants and releases of one command each. The first document of a key takes other commands, so the second grant is
/// the first of this kind.
#[tokio::test]
async fn grants_and_releases_of_one_step_keep_the_rules() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (collection, commands) = fixture.watched().await;
    let store = MongoStore::new(&collection).without_pipelines();
    let leases = Leases::new(store.clone());
    let first = leases.acquire("key", LONG).await.unwrap();
    let (mut fence, mut before) = (first.fence(), first.id());
    first.release().await.unwrap();
    for _ in 0..3 {
        commands.take();
        let lease = leases.acquire("key", LONG).await.unwrap();
        assert!(lease.fence() > fence, "{} after {fence}", lease.fence());
        // This is a late release of an earlier lease.
        let key = lease.key().clone();
        let late = store.release(&ReleaseRequest::new(key, before)).await;
        assert_eq!(late.unwrap(), ReleaseAnswer::NotHeld);
        let state = leases.inspect("key").await.unwrap().unwrap();
        assert_eq!(state.holders[0].lease, lease.id());
        (fence, before) = (lease.fence(), lease.id());
        lease.release().await.unwrap();
        // The late release and the read take commands of their own.
        let expected = [
            "findAndModify",
            "update",
            "findAndModify",
            "findAndModify",
            "update",
        ];
        assert_eq!(commands.names(), expected);
    }
}

/// A page of the list takes the time from a document that makes sense, and shows the documents around the damaged one.
#[tokio::test]
async fn a_damaged_document_hides_no_others_of_a_list() {
    let fixture = Fixture::new(Engine::MongoDb);
    let leases = Leases::new(fixture.store().await.without_pipelines());
    for key in ["a", "b", "c"] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
    }
    let collection = fixture.collection().await;
    let damage = doc! { "$set": { "version": "none" } };
    let damaged = collection.update_one(doc! { "_id": "a" }, damage).await;
    assert_eq!(damaged.unwrap().modified_count, 1);
    let listed: Vec<_> = leases
        .list(Filter::new().live())
        .try_collect()
        .await
        .unwrap();
    let keys: Vec<_> = listed.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(
        keys,
        ["a", "b", "c"],
        "of the first only a change is impossible"
    );
    let refused = leases.evict("a").await;
    assert!(
        matches!(refused, Err(Error::NotALock { .. })),
        "{refused:?}"
    );
}

/// The documents that a request makes to learn the time, before anything is granted.
#[tokio::test]
async fn a_purge_removes_what_is_new_and_dead_and_leaves_the_rest() {
    let fixture = Fixture::new(Engine::MongoDb);
    let leases = Leases::new(fixture.store().await.without_pipelines());
    let lease = leases.acquire("held", LONG).await.unwrap();
    leases
        .acquire("dead", LONG)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let collection = fixture.collection().await;
    let schema = "leasehold.classic.1";
    let new =
        |id: Bson| doc! { "_id": id, "schema": schema, "version": ObjectId::new(), "fence": 0_i64 };
    let limiter = doc! { "limiter": "new", "window": 1_000_i64, "kind": "fixed" };
    let later = doc! {
        "_id": "later",
        "schema": schema,
        "version": ObjectId::new(),
        "fence": 1_i64,
        "state": { "schema": "leasehold.lock.2", "fence": 1_i64 },
    };
    let added = [new("new".into()), new(limiter.into()), later];
    collection.insert_many(added).await.unwrap();
    // A dead lock is not removed before the clock has passed its fence.
    while leases.purge(Duration::ZERO).await.unwrap() == 0 {}
    let left: Vec<_> = collection
        .find(doc! {})
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let mut left: Vec<_> = left
        .iter()
        .map(|it| it.get("_id").unwrap().to_string())
        .collect();
    left.sort();
    assert_eq!(left, ["\"held\"", "\"later\""]);
    lease.release().await.unwrap();
}

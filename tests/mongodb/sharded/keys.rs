//! Sharded collections, by `_id` and by another field.

use leasehold::{Error, Leases, MongoStore};
use mongodb::{
    bson::{Bson, doc},
    options::{ReadConcern, ReadPreference},
};

use super::routers;
use crate::{DATABASE, LONG};

/// A store behind each router, on a collection that is sharded by this field.
async fn sharded_by(field: &str, how: impl Into<Bson>) -> [MongoStore; 2] {
    let (fixture, routers) = routers().await;
    let collections = routers.map(|router| fixture.collection_with(router));
    let admin = collections[0].client().database("admin");
    let command = doc! {
        "shardCollection": format!("{DATABASE}.{}", fixture.name),
        "key": { field: how },
    };
    admin.run_command(command).await.unwrap();
    collections.map(|collection| MongoStore::new(&collection))
}

#[tokio::test]
async fn a_collection_that_is_sharded_by_id_has_locks() {
    for how in [Bson::from(1), "hashed".into()] {
        let [first, second] = sharded_by("_id", how).await;
        first.prepare().await.unwrap();
        let [first, second] = [first, second].map(Leases::new);
        let lease = first.acquire("key", LONG).await.unwrap();
        let held = second.inspect("key").await.unwrap().unwrap();
        assert_eq!(held.holders[0].lease, lease.id());
        lease.release().await.unwrap();
        drop(second.acquire("key", LONG).await.unwrap());
    }
}

/// Two shards would each have a document for one key.
#[tokio::test]
async fn a_collection_that_is_sharded_by_another_field_is_refused() {
    let [store, _] = sharded_by("owner", 1).await;
    let leases = Leases::new(store.clone());
    let refusals = [
        store.check().await,
        store.prepare().await,
        leases.try_acquire("key", LONG).await.map(drop),
        leases.inspect("key").await.map(drop),
    ];
    for refused in refusals {
        let Err(error @ Error::NotPrepared { .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(error.to_string().contains("sharded by _id"), "{error}");
    }
}

/// The store was told to do without pipelines, so it asks the cluster nothing else.
#[tokio::test]
async fn it_is_refused_without_pipelines_too() {
    let [store, _] = sharded_by("owner", 1).await;
    let leases = Leases::new(store.without_pipelines());
    let refused = leases.try_acquire("key", LONG).await.map(drop);
    assert!(
        matches!(refused, Err(Error::NotPrepared { .. })),
        "{refused:?}"
    );
}

/// The defaults of the client are for the reads of the application. The settings of the cluster have no secondary here.
#[tokio::test]
async fn a_client_that_reads_from_secondaries_has_locks_and_is_told_of_a_wrong_key() {
    for (field, is_fit) in [("_id", true), ("owner", false)] {
        let (fixture, _) = routers().await;
        let mut options = fixture.options().await;
        options.selection_criteria = Some(ReadPreference::Secondary { options: None }.into());
        options.read_concern = Some(ReadConcern::available());
        let (collection, commands) = fixture.watched_with(options);
        let admin = collection.client().database("admin");
        let name = format!("{DATABASE}.{}", fixture.name);
        let command = doc! { "shardCollection": name, "key": { field: 1 } };
        admin.run_command(command).await.unwrap();
        commands.take();

        let leases = Leases::new(MongoStore::new(&collection));
        match leases.acquire("key", LONG).await {
            Ok(lease) if is_fit => lease.release().await.unwrap(),
            Err(Error::NotPrepared { .. }) if !is_fit => {}
            other => panic!("{field}: {other:?}"),
        }
        for sent in commands.take() {
            assert!(!sent.contains_key("$readPreference"), "{sent}");
            let concern = sent.get_document("readConcern").ok();
            assert_ne!(concern, Some(&doc! { "level": "available" }), "{sent}");
        }
    }
}

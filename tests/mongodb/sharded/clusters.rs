//! An address with routers of two clusters.

use std::{sync::Arc, time::Duration};

use leasehold::{Error, Leases, MongoStore};
use leasehold_tests::disguise::Disguise;
use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, SelectionCriteria, ServerAddress},
};
use tokio::time::timeout;

use crate::{DATABASE, Engine, Fixture, LONG};

/// A collection whose driver knows two routers: one of the cluster, and one that looks like the router of another
/// cluster.
async fn behind_two_clusters() -> (Fixture, MongoStore) {
    let fixture = Fixture::new(Engine::MongoDbSharded);
    let mut options = fixture.options().await;
    let other = Fixture::new(Engine::MongoDb);
    let config = other.collection().await.client().database("config");
    let version = doc! { "$set": { "clusterId": "that of another cluster" } };
    let versions = config.collection::<Document>("version");
    let written = versions.update_one(doc! { "_id": 1 }, version).upsert(true);
    written.await.unwrap();
    let disguised = Disguise::Router.of(&other.uri).await;
    let disguised = ClientOptions::parse(&disguised).await.unwrap();
    options.hosts = vec![options.hosts[0].clone(), disguised.hosts[0].clone()];
    let client = Client::with_options(options.clone()).unwrap();
    for router in options.hosts {
        knows(&client, router).await;
    }
    let collection = client
        .database(DATABASE)
        .collection::<Document>(&fixture.name);
    (fixture, MongoStore::new(&collection))
}

/// Waits until the driver has heard from this router.
async fn knows(client: &Client, router: ServerAddress) {
    let this = SelectionCriteria::Predicate(Arc::new(move |it| *it.address() == router));
    let admin = client.database("admin");
    let ping = admin.run_command(doc! { "ping": 1 });
    timeout(Duration::from_secs(120), ping.selection_criteria(this))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn routers_of_two_clusters_are_refused() {
    let (fixture, store) = behind_two_clusters().await;
    let leases = Leases::new(store.clone());
    let refusals = [
        leases.try_acquire("key", LONG).await.map(drop),
        store.check().await,
        store.prepare().await,
        leases.inspect("key").await.map(drop),
        leases.try_acquire("key", LONG).await.map(drop),
    ];
    for refused in refusals {
        let Err(error @ Error::NotPrepared { .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(error.to_string().contains("different clusters"), "{error}");
    }
    let documents = fixture.collection().await.count_documents(doc! {}).await;
    assert_eq!(documents.unwrap(), 0);
}

/// The control: both routers belong to one cluster.
#[tokio::test]
async fn routers_of_one_cluster_are_not() {
    let fixture = Fixture::new(Engine::MongoDbSharded);
    let options = fixture.options().await;
    let client = Client::with_options(options.clone()).unwrap();
    assert_eq!(options.hosts.len(), 2);
    for router in options.hosts {
        knows(&client, router).await;
    }
    let collection = client
        .database(DATABASE)
        .collection::<Document>(&fixture.name);
    let store = MongoStore::new(&collection);
    store.prepare().await.unwrap();
    store.check().await.unwrap();
    let lease = Leases::new(store).acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
}

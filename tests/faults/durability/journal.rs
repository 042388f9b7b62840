//! What a write waits for, without luck: a server whose journal stands still acknowledges nothing that is
//! to be in it.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use leasehold::{Fence, GuardedCollection, Leases, MongoStore};
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::{Acknowledgment, WriteConcern},
};
use tokio::time::{sleep, timeout};

use super::{super::ONE_RUN, HANGS, Network, Server, TTL};

/// Where the thread that writes the journal stops.
const PAUSE: &str = "pauseJournalFlusherBeforeFlush";
const LOOK: Duration = Duration::from_millis(20);
/// So many writes that do not wait for the journal are acknowledged meanwhile.
const MEANWHILE: i32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deployment {
    Standalone,
    /// A set of one member, with this `writeConcernMajorityJournalDefault`.
    Set(bool),
}

async fn start(deployment: Deployment) -> Result<(Server, Client)> {
    let network = Network::default();
    let engine = match deployment {
        Deployment::Standalone => "mongodb-standalone",
        Deployment::Set(_) => "mongodb-member",
    };
    let server = Server::start(engine, 0, Vec::new(), &network).await?;
    let uri = format!("mongodb://{}/?directConnection=true", server.target());
    let client = Client::with_uri_str(uri).await?;
    if let Deployment::Set(journal) = deployment {
        let initiate = doc! { "replSetInitiate": {
            "_id": "rs0",
            "members": [{ "_id": 0, "host": server.target() }],
            "writeConcernMajorityJournalDefault": journal,
        } };
        let admin = client.database("admin");
        admin.run_command(initiate).await?;
        let primary = async {
            loop {
                let hello = admin.run_command(doc! { "hello": 1 }).await?;
                if hello.get_bool("isWritablePrimary") == Ok(true) {
                    return anyhow::Ok(());
                }
                sleep(LOOK).await;
            }
        };
        timeout(HANGS, primary).await.context("no primary")??;
    }
    Ok((server, client))
}

/// The journal stands still, or goes on.
async fn pause(client: &Client, paused: bool) -> Result<()> {
    let admin = client.database("admin");
    let mode = if paused { "alwaysOn" } else { "off" };
    let set = doc! { "configureFailPoint": PAUSE, "mode": mode };
    let before = admin.run_command(set).await?.get_i32("count")?;
    if paused {
        let millis = HANGS.as_millis() as i64;
        let reached = doc! {
            "waitForFailPoint": PAUSE, "timesEntered": before + 1, "maxTimeMS": millis,
        };
        admin.run_command(reached).await?;
    }
    Ok(())
}

async fn insert(collection: &Collection<Document>, concern: WriteConcern) -> Result<()> {
    let insert = collection.insert_one(doc! {}).write_concern(concern);
    let inserted = timeout(HANGS, insert.into_future()).await;
    inserted.context("a write that does not wait for the journal hangs")??;
    Ok(())
}

async fn until_there(collection: &Collection<Document>, id: &str) -> Result<()> {
    let there = async {
        while collection.find_one(doc! { "_id": id }).await?.is_none() {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(HANGS, there).await.context("it was not written")?
}

async fn nothing_is_acknowledged(deployment: Deployment) -> Result<()> {
    let (server, client) = start(deployment).await?;
    let database = client.database("leasehold_test");
    let (locks, data) = (database.collection("locks"), database.collection("data"));
    let leases = Leases::builder(MongoStore::new(&locks))
        .call_timeout(HANGS)
        .build();
    leases.acquire("before", TTL).await?.release().await?;
    let guarded = GuardedCollection::new(&data, Fence::new(1));
    guarded.insert_one(&doc! { "_id": "before" }).await?;
    pause(&client, true).await?;

    let acquired = {
        let leases = leases.clone();
        tokio::spawn(async move { leases.acquire("key", TTL).await })
    };
    let written = tokio::spawn(async move { guarded.insert_one(&doc! { "_id": "key" }).await });
    until_there(&locks, "key").await?;
    until_there(&data, "key").await?;
    let least = WriteConcern::builder()
        .w(Some(Acknowledgment::Nodes(1)))
        .journal(false)
        .build();
    for _ in 0..MEANWHILE {
        insert(&data, least.clone()).await?;
    }
    if deployment == Deployment::Set(false) {
        // What the concern without `j` is worth here.
        insert(&data, WriteConcern::majority()).await?;
    }
    // A server that is slow may have said meanwhile that the majority did not confirm it in time.
    let (early, hasty) = (acquired.is_finished(), written.is_finished());
    pause(&client, false).await?;
    let acquired = timeout(HANGS, acquired).await.context("no grant")??;
    let written = timeout(HANGS, written).await.context("no write")??;
    anyhow::ensure!(!early || acquired.is_err(), "{deployment:?}: granted early");
    anyhow::ensure!(!hasty || written.is_err(), "{deployment:?}: written early");
    leases.acquire("after", TTL).await?.release().await?;
    leases.close().await;
    drop(server);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_journal_stands_still_nothing_is_acknowledged() {
    let _alone = ONE_RUN.lock().await;
    let deployments = [
        Deployment::Standalone,
        Deployment::Set(true),
        Deployment::Set(false),
    ];
    try_join_all(deployments.map(nothing_is_acknowledged))
        .await
        .unwrap();
}

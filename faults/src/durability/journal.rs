//! What a write waits for, shown without depending on chance: while its journal is stopped, a server does not
//! acknowledge a write that must be in the journal.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use leasehold::{Fence, Leases, MongoStore, fencing::GuardedCollection};
use leasehold_tests::preload;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::{Acknowledgment, WriteConcern},
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{HANGS, Network, Server, TTL};

/// The failpoint at which the journal thread stops, in a server that has failpoints.
const PAUSE: &str = "pauseJournalFlusherBeforeFlush";
/// The library that holds back the journal's writes, for a server without failpoints.
const HOLD_BACK: &str = include_str!("hold_back.c");
const LOOK: Duration = Duration::from_millis(20);
/// How many writes that do not wait for the journal are acknowledged in the meantime.
const MEANWHILE: i32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// MongoDB's code in a process, which is of a newer version than the others.
    Newer,
    Standalone,
    /// A set of one member, with this `writeConcernMajorityJournalDefault`.
    Set(bool),
}

/// A server whose journal can be stopped.
struct Stoppable {
    deployment: Deployment,
    client: Client,
    /// While this file exists, nothing is written to the journal.
    held: PathBuf,
    server: Server,
    _folder: TempDir,
}

impl Stoppable {
    async fn start(deployment: Deployment) -> Result<Self> {
        let (network, folder) = (Network::default(), TempDir::new()?);
        let held = folder.path().join("held");
        let (engine, environment) = match deployment {
            Deployment::Newer => {
                let library = preload::compiled(folder.path(), HOLD_BACK).await?;
                let held = ("LEASEHOLD_JOURNAL_HELD", held.clone());
                ("mongodb", vec![("LD_PRELOAD", library), held])
            }
            Deployment::Standalone => ("mongodb-standalone", Vec::new()),
            Deployment::Set(_) => ("mongodb-member", Vec::new()),
        };
        let server = Server::start_with(engine, 0, Vec::new(), environment, &network).await?;
        let client = Client::with_uri_str(server.uri()).await?;
        if let Deployment::Set(journal) = deployment {
            make_set(&client, &server.target(), journal).await?;
        }
        Ok(Self {
            deployment,
            client,
            held,
            server,
            _folder: folder,
        })
    }

    async fn stop(&self) -> Result<()> {
        if self.deployment == Deployment::Newer {
            fs::write(&self.held, "")?;
            return Ok(());
        }
        let admin = self.client.database("admin");
        let set = doc! { "configureFailPoint": PAUSE, "mode": "alwaysOn" };
        let before = admin.run_command(set).await?.get_i32("count")?;
        let reached = doc! {
            "waitForFailPoint": PAUSE,
            "timesEntered": before + 1,
            "maxTimeMS": HANGS.as_millis() as i64,
        };
        admin.run_command(reached).await?;
        Ok(())
    }

    async fn go_on(&self) -> Result<()> {
        if self.deployment == Deployment::Newer {
            fs::remove_file(&self.held)?;
            return Ok(());
        }
        let set = doc! { "configureFailPoint": PAUSE, "mode": "off" };
        self.client.database("admin").run_command(set).await?;
        Ok(())
    }
}

async fn make_set(client: &Client, host: &str, journal: bool) -> Result<()> {
    let initiate = doc! { "replSetInitiate": {
        "_id": "rs0",
        "members": [{ "_id": 0, "host": host }],
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
    timeout(HANGS, primary).await.context("no primary")?
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

/// Checks that a server whose journal is stopped acknowledges no write that must be in it.
pub async fn nothing_is_acknowledged(deployment: Deployment) -> Result<()> {
    let mut server = Stoppable::start(deployment).await?;
    let database = server.client.database("leasehold_test");
    let (locks, data) = (database.collection("locks"), database.collection("data"));
    let leases = Leases::builder(MongoStore::new(&locks))
        .call_timeout(HANGS)
        .build();
    leases.acquire("before", TTL).await?.release().await?;
    let guarded = GuardedCollection::new(&data, Fence::new(1));
    guarded.insert_one(&doc! { "_id": "before" }).await?;
    server.stop().await?;

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
    // Some majority writes do not wait for the journal: a write without `j` in a set that does not imply it, and any
    // majority write on a newer standalone server, even with `j`.
    let majority = |journal| {
        let concern = WriteConcern::builder().w(Some(Acknowledgment::Majority));
        concern.journal(journal).build()
    };
    match deployment {
        Deployment::Newer => insert(&data, majority(Some(true))).await?,
        Deployment::Set(false) => insert(&data, majority(None)).await?,
        Deployment::Standalone | Deployment::Set(true) => {}
    }
    // A slow server may have answered in the meantime that the majority did not confirm the write in time.
    let (early, hasty) = (acquired.is_finished(), written.is_finished());
    server.go_on().await?;
    let acquired = timeout(HANGS, acquired).await.context("no grant")??;
    let written = timeout(HANGS, written).await.context("no write")??;
    anyhow::ensure!(!early || acquired.is_err(), "{deployment:?}: granted early");
    anyhow::ensure!(!hasty || written.is_err(), "{deployment:?}: written early");
    leases.acquire("after", TTL).await?.release().await?;
    leases.close().await;
    server.server.kill().await
}

//! Standalone servers that are killed while they acknowledge grants. The ttl of these leases is longer than the run.
//! After the restart, the program compares what was acknowledged with what the server has.

pub mod journal;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use fastrand::Rng;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{Attempt, Lease, Leases, MongoStore, Upgrade};
use mongodb::{Client, bson::Document};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    HANGS,
    check::{Kind, Violations},
    network::Network,
    server::Server,
    weather::Altered,
};

/// MongoDB's code in a process, and a complete server.
pub const SERVERS: [&str; 2] = ["mongodb", "mongodb-standalone"];
/// A kill comes after this many grants, plus a random number of up to as many again.
const GRANTS: u64 = 60;
const WORKERS: u64 = 8;
/// The ttl of a lease, which is longer than the run.
const TTL: Duration = Duration::from_secs(3_600);
/// How many checks are in flight at once.
const LOOKS: usize = 16;

/// What the server has acknowledged to the client that asked for it.
#[derive(Default)]
struct Acknowledged {
    leases: Mutex<Vec<Lease>>,
    count: AtomicU64,
    more: Notify,
}

struct Killed {
    engine: &'static str,
    server: Server,
    address: String,
    collection: String,
    random: Rng,
    acknowledged: Arc<Acknowledged>,
    kills: u64,
    violations: Violations,
}

impl Killed {
    async fn start(engine: &'static str, altered: Altered, seed: u64) -> Result<Self> {
        let network = Network::default();
        network.alters(altered);
        let server = Server::start(engine, 0, Vec::new(), &network).await?;
        let port = network.port_of(0, vec![server.target()]).await?;
        let options = format!(
            "directConnection=true&maxPoolSize=64&serverSelectionTimeoutMS={}",
            HANGS.as_millis()
        );
        Ok(Self {
            engine,
            server,
            address: format!("mongodb://{port}/?{options}"),
            collection: "locks".to_owned(),
            random: Rng::with_seed(seed),
            acknowledged: Arc::default(),
            kills: 0,
            violations: Violations::new(),
        })
    }

    /// The locks, through a new client.
    async fn leases(&self) -> Result<Leases> {
        let client = Client::with_uri_str(&self.address).await?;
        let database = client.database("leasehold_test");
        let store = MongoStore::new(&database.collection::<Document>(&self.collection));
        Ok(Leases::builder(store).call_timeout(HANGS).build())
    }

    /// Collects grants, kills the server at the same time, starts it again, and checks what it has.
    async fn once_more(&mut self) -> Result<()> {
        let leases = self.leases().await?;
        let goal = self.acknowledged.count.load(Relaxed) + GRANTS + self.random.u64(..GRANTS);
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let name = format!("{}-{worker}", self.kills);
            let acknowledged = self.acknowledged.clone();
            workers.spawn(work(leases.clone(), name, acknowledged));
        }
        let enough = async {
            while self.acknowledged.count.load(Relaxed) < goal {
                self.acknowledged.more.notified().await;
            }
        };
        tokio::select! {
            enough = timeout(HANGS, enough) => enough.context("no grants")?,
            Some(ended) = workers.join_next() => ended??,
        }
        self.server.kill().await?;
        self.kills += 1;
        workers.shutdown().await;
        self.server.run().await?;
        self.look().await?;
        eprintln!(
            "{}: {} kills, {} grants",
            self.engine,
            self.kills,
            self.acknowledged.count.load(Relaxed)
        );
        Ok(())
    }

    /// Compares everything that was acknowledged with what the server has.
    async fn look(&mut self) -> Result<()> {
        let others = self.leases().await?;
        let leases = self
            .acknowledged
            .leases
            .lock()
            .drain(..)
            .collect::<Vec<_>>();
        let looks = leases.iter().map(|lease| look_at(lease, &others));
        let found: Vec<_> = stream::iter(looks)
            .buffer_unordered(LOOKS)
            .try_collect()
            .await?;
        self.violations.extend(found.into_iter().flatten());
        self.acknowledged.leases.lock().extend(leases);
        Ok(())
    }

    async fn stop(mut self) -> Result<Outcome> {
        self.server.kill().await?;
        let (row, violations) = (self.row(), std::mem::take(&mut self.violations));
        Ok(Outcome { row, violations })
    }

    fn row(&self) -> String {
        let count = |kind| self.violations.iter().filter(|it| it.kind == kind).count();
        format!(
            "| {} | {} | {} | {} | {} |",
            self.engine,
            self.kills,
            self.acknowledged.count.load(Relaxed),
            count(Kind::Forgotten),
            count(Kind::Exclusion),
        )
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // There is no server any more at which they could be released.
        let leases = self
            .acknowledged
            .leases
            .lock()
            .drain(..)
            .collect::<Vec<_>>();
        // One that is lost is not held.
        leases.into_iter().for_each(|lease| drop(lease.detach()));
    }
}

/// Takes leases, and renews or upgrades some, until the server is killed.
async fn work(leases: Leases, name: String, acknowledged: Arc<Acknowledged>) -> Result<()> {
    for number in 0.. {
        let key = format!("{name}-{number}");
        let ask = leases.acquire(&key, TTL);
        let lease = match number % 4 {
            0 => ask.shared().await,
            _ => ask.await,
        };
        let changed = match &lease {
            Ok(lease) if number % 4 == 0 => {
                let upgraded = lease.upgrade().await;
                upgraded.map(|upgraded| assert!(matches!(upgraded, Upgrade::Exclusive)))
            }
            Ok(lease) if number % 4 == 1 => lease.renew().await.map(drop),
            _ => Ok(()),
        };
        // A change without an answer was not acknowledged. A grant before it was.
        let answers = [changed.err(), lease.as_ref().err().cloned()];
        if let Ok(lease) = lease {
            acknowledged.leases.lock().push(lease);
            acknowledged.count.fetch_add(1, Relaxed);
            acknowledged.more.notify_one();
        }
        for error in answers.into_iter().flatten() {
            anyhow::ensure!(error.is_retryable(), error);
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// Checks that what was acknowledged to a holder is still there, and still keeps others out.
async fn look_at(lease: &Lease, others: &Leases) -> Result<Violations> {
    let (key, fence) = (lease.key(), lease.fence());
    let mut violations = Violations::new();
    let state = others.inspect(key).await?;
    // This is read after the server's answer, so it must be less than the time in the answer.
    let remaining = lease.remaining();
    let holder = state
        .as_ref()
        .and_then(|state| state.holders.iter().find(|it| it.lease == lease.id()));
    match (&state, holder) {
        (Some(state), Some(holder)) => {
            let left = (holder.expires_at - state.now).to_std().unwrap_or_default();
            if holder.fence < fence || state.fence < fence {
                let text = format!("{key}: the fence {fence} is {} again", holder.fence);
                violations.push(Kind::Forgotten.of(text));
            }
            if left < remaining && lease.is_live() {
                let text = format!("{key}: {left:?} are left, and {remaining:?} acknowledged");
                violations.push(Kind::Forgotten.of(text));
            }
        }
        _ => violations.push(Kind::Forgotten.of(format!("{key}: {fence} is not there"))),
    }
    let attempt = others.try_acquire(key, TTL).await?;
    if let Attempt::Acquired(other) = attempt {
        if lease.is_live() {
            let text = format!("{key}: granted as {} beside {fence}", other.fence());
            violations.push(Kind::Exclusion.of(text));
        }
        other.release().await?;
    }
    Ok(violations)
}

/// The result for a server.
pub struct Outcome {
    /// The row of the table with the head [`HEADER`].
    pub row: String,
    pub violations: Violations,
}

pub const HEADER: &str = "\
| server | kills | acknowledged grants | of these lost | keys granted to a second holder |
|---|---|---|---|---|";

/// Kills a server this many times. Everything that it had acknowledged must survive.
pub async fn survives(engine: &'static str, kills: u64, seed: u64) -> Result<Outcome> {
    let mut killed = Killed::start(engine, Altered::Nothing, seed).await?;
    while killed.kills < kills {
        killed.once_more().await?;
    }
    killed.stop().await
}

/// The control: on its way to the server, a write loses the option that waits for the journal. Returns an error if this
/// many kills lose nothing.
pub async fn is_caught(engine: &'static str, kills: u64, seed: u64) -> Result<Outcome> {
    let mut killed = Killed::start(engine, Altered::Unjournaled, seed).await?;
    let caught = |killed: &Killed| {
        let is = |kind| killed.violations.iter().any(|it| it.kind == kind);
        is(Kind::Forgotten) && is(Kind::Exclusion)
    };
    while !caught(&killed) {
        anyhow::ensure!(killed.kills < kills, "{kills} kills lost nothing");
        killed.once_more().await?;
    }
    let outcome = killed.stop().await?;
    Ok(Outcome {
        violations: Violations::new(),
        ..outcome
    })
}

//! The MongoDB stores on real engines.

mod accounts;
mod at_work;
mod awaited;
mod batches;
mod between_processes;
mod cancel;
mod cleanup;
mod clock_steps;
mod commands;
mod computing;
mod conformance;
mod delays;
mod dialects;
mod distributed_lock;
mod documents;
mod durability;
mod enforce;
mod errors;
mod evictions;
mod faults;
mod fencing;
mod first_use;
mod freed;
mod fuzz;
mod heard;
mod hostile;
mod limits;
mod listeners;
mod model;
mod nonsense;
mod prepare;
mod protocol;
mod releases;
mod renewals;
mod sharded;
mod sharing;
mod wakeups;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold::{Error, Lease, Leases, MongoStore, store::LeaseId};
use leasehold_conformance::Clients;
use leasehold_tests::engine::Engine;
use mongodb::{
    Client, Collection,
    bson::Document,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use parking_lot::Mutex;
use tokio::time::Instant;

const DATABASE: &str = "leasehold_test";
/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// A ttl that a test waits for.
const SHORT: Duration = Duration::from_secs(1);
/// A limit that only ends a hang: whatever is waited for comes sooner.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a test tries what has to be done in time, if each attempt shows that the machine was too slow.
const ATTEMPTS: usize = 10;

/// A collection that no other test uses.
struct Fixture {
    uri: String,
    name: String,
}

impl Fixture {
    fn new(engine: Engine) -> Self {
        Self {
            uri: engine.address(),
            name: format!("locks_{}", LeaseId::random()),
        }
    }

    async fn options(&self) -> ClientOptions {
        soon_mended(ClientOptions::parse(&self.uri).await.unwrap())
    }

    /// The options of a client that talks to the server at this address, which may be that of a proxy.
    async fn options_at(&self, address: SocketAddr, more: &str) -> ClientOptions {
        let uri = format!("mongodb://{address}/?directConnection=true{more}");
        soon_mended(ClientOptions::parse(&uri).await.unwrap())
    }

    /// The collection, by a client of its own.
    async fn collection(&self) -> Collection<Document> {
        self.collection_with(self.options().await)
    }

    fn collection_with(&self, options: ClientOptions) -> Collection<Document> {
        let client = Client::with_options(options).unwrap();
        client.database(DATABASE).collection(&self.name)
    }

    /// A store with a client of its own, as every process has one.
    async fn store(&self) -> MongoStore {
        MongoStore::new(&self.collection().await)
    }

    async fn clients(&self) -> Clients {
        let first = self.store().await;
        first.prepare().await.unwrap();
        Clients::new(first, self.store().await)
    }

    /// A collection whose client records every command that it sends, except for those of the connections themselves.
    async fn watched(&self) -> (Collection<Document>, Commands) {
        self.watched_with(self.options().await)
    }

    fn watched_with(&self, mut options: ClientOptions) -> (Collection<Document>, Commands) {
        let commands = Commands::default();
        let seen = commands.clone();
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(started) = event
                && !["endSessions", "hello"].contains(&started.command_name.as_str())
            {
                seen.add(&started.command_name, started.command);
            }
        }));
        (self.collection_with(options), commands)
    }
}

/// Has the driver look for its server again soon after it has lost it. By default that may take ten seconds, and no
/// test here is about that. A slow server does not count as lost.
fn soon_mended(mut options: ClientOptions) -> ClientOptions {
    options.heartbeat_freq = Some(Duration::from_millis(500));
    options.connect_timeout = Some(PATIENCE);
    options.server_selection_timeout = Some(PATIENCE);
    options
}

/// A lease that expires soon. On a slow machine it is over when its caller gets it, so a `detach` may fail.
async fn short_lived(leases: &Leases, key: impl AsRef<str>) -> Lease {
    in_time(key.as_ref(), SHORT, || leases.acquire(key.as_ref(), SHORT)).await
}

/// A lease with a ttl that may be over before a slow machine has the lease. If that is so, by the local clock, it is
/// acquired again.
async fn in_time<A>(key: &str, ttl: Duration, mut acquire: impl FnMut() -> A) -> Lease
where
    A: IntoFuture<Output = Result<Lease, Error>>,
{
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        match acquire().await {
            Ok(lease) => return lease,
            Err(error) => {
                let took = start.elapsed();
                let too_late = matches!(error, Error::TimedOut { .. } | Error::NotTaken { .. });
                let late = too_late && took >= ttl * 4 / 5;
                assert!(late, "{key}: {error:?} after {took:?} of {ttl:?}");
            }
        }
    }
    panic!("{key}: no lease of {ttl:?} in {ATTEMPTS} attempts");
}

/// Retries for as long as the error may pass: the client gives up a slow server too early.
async fn patiently<T, F>(mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    let start = Instant::now();
    loop {
        match attempt().await {
            Ok(outcome) => return outcome,
            Err(error) => {
                let passing = error.is_retryable() && start.elapsed() < PATIENCE;
                assert!(passing, "{error:?}");
            }
        }
    }
}

/// The commands that a client sent. Those by which a store looks at its collection before the first use are apart.
#[derive(Clone, Default)]
struct Commands(Arc<Mutex<[Vec<Document>; 2]>>);

impl Commands {
    fn add(&self, name: &str, command: Document) {
        let is_look = ["listCollections", "listIndexes"].contains(&name);
        self.0.lock()[usize::from(is_look)].push(command);
    }

    /// The commands that were sent since the last call.
    fn take(&self) -> Vec<Document> {
        std::mem::take(&mut self.0.lock()[0])
    }

    /// The names of the looks that were sent since the last call.
    fn looks(&self) -> Vec<String> {
        let looks = std::mem::take(&mut self.0.lock()[1]);
        let name = |command: &Document| command.keys().next().cloned();
        looks.iter().filter_map(name).collect()
    }

    /// The names of the commands that were sent since the last call.
    fn names(&self) -> Vec<String> {
        let name = |command: &Document| command.keys().next().cloned();
        self.take().iter().filter_map(name).collect()
    }
}

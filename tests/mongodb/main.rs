//! The MongoDB stores on real engines.

mod accounts;
mod at_work;
mod batches;
mod between_processes;
mod cancel;
mod cleanup;
mod commands;
mod conformance;
mod dialects;
mod distributed_lock;
mod documents;
mod durability;
mod enforce;
mod errors;
mod evictions;
mod faults;
mod fencing;
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
/// A time to live that outlasts any test.
const LONG: Duration = Duration::from_secs(600);
/// A time to live that a test waits for.
const SHORT: Duration = Duration::from_secs(1);
/// Longer than anything takes that is to come: it only ends a hang.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often what has to be done in time is tried, where each attempt shows that the machine was too slow.
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

    /// Those of a client that talks to the server at this address, a proxy for example.
    async fn options_at(&self, address: SocketAddr, more: &str) -> ClientOptions {
        let uri = format!("mongodb://{address}/?directConnection=true{more}");
        soon_mended(ClientOptions::parse(&uri).await.unwrap())
    }

    /// The collection, through a client of its own.
    async fn collection(&self) -> Collection<Document> {
        self.collection_with(self.options().await)
    }

    fn collection_with(&self, options: ClientOptions) -> Collection<Document> {
        let client = Client::with_options(options).unwrap();
        client.database(DATABASE).collection(&self.name)
    }

    /// A store with a client of its own, as a process has it.
    async fn store(&self) -> MongoStore {
        MongoStore::new(&self.collection().await)
    }

    async fn clients(&self) -> Clients {
        let first = self.store().await;
        first.prepare().await.unwrap();
        Clients::new(first, self.store().await)
    }

    /// A collection whose client writes down every command that it sends, but for those of the
    /// connections themselves.
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
                seen.0.lock().push(started.command);
            }
        }));
        (self.collection_with(options), commands)
    }
}

/// A driver that takes its server for lost finds it again with the next look. By default that may be ten seconds
/// later, which no test here is about. A slow server is not taken for lost.
fn soon_mended(mut options: ClientOptions) -> ClientOptions {
    options.heartbeat_freq = Some(Duration::from_millis(500));
    options.connect_timeout = Some(PATIENCE);
    options.server_selection_timeout = Some(PATIENCE);
    options
}

/// A lease that expires soon.
async fn short_lived(leases: &Leases, key: impl AsRef<str>) -> Lease {
    in_time(key.as_ref(), SHORT, || leases.acquire(key.as_ref(), SHORT)).await
}

/// A lease of a ttl that a slow machine may outlast before it has the lease in hand. It tries again where that is
/// what happened, by its own clock.
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

/// Tries again for as long as what went wrong may pass: a slow server is given up too early.
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

/// The commands that a client sent.
#[derive(Clone, Default)]
struct Commands(Arc<Mutex<Vec<Document>>>);

impl Commands {
    /// What was sent since the last time.
    fn take(&self) -> Vec<Document> {
        std::mem::take(&mut self.0.lock())
    }

    /// The names of the commands that were sent since the last time.
    fn names(&self) -> Vec<String> {
        let name = |command: &Document| command.keys().next().cloned();
        self.take().iter().filter_map(name).collect()
    }
}

//! The MongoDB stores on real engines.

mod accounts;
mod batches;
mod cancel;
mod cleanup;
mod commands;
mod conformance;
mod distributed_lock;
mod documents;
mod durability;
mod ears;
mod enforce;
mod errors;
mod evictions;
mod faults;
mod fencing;
mod freed;
mod fuzz;
mod limits;
mod model;
mod nonsense;
mod processes;
mod protocol;
mod renewals;
mod sharing;
mod soak;
mod wakeups;

use std::{sync::Arc, time::Duration};

use leasehold::{LeaseId, MongoStore};
use leasehold_conformance::Clients;
use leasehold_tests::engine::Engine;
use mongodb::{
    Client, Collection,
    bson::Document,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use parking_lot::Mutex;

const DATABASE: &str = "leasehold_test";
/// A time to live that outlasts any test.
const LONG: Duration = Duration::from_secs(600);
/// A time to live that a test waits for.
const SHORT: Duration = Duration::from_secs(1);

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
        ClientOptions::parse(&self.uri).await.unwrap()
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
        let commands = Commands::default();
        let seen = commands.clone();
        let mut options = self.options().await;
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

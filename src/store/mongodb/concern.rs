//! Which acknowledgement a write asks for, whatever the defaults of the client and the collection are:
//!
//! | write | replica set, sharded cluster | standalone server |
//! |---|---|---|
//! | durable | a majority, each member with the write in its journal (`w: "majority"`, `j: true`) | the server, with the write in its journal (`w: 1`, `j: true`) |
//! | durable, after `journal(false)` | a majority (`w: "majority"`) | the server (`w: "majority"`) |
//! | undoable | the primary alone, perhaps before the write is in its journal (`w: 1`) | the server, likewise (`w: 1`) |
//!
//! With the journal, a durable write survives the loss of any minority, and that all members are killed at once. Two of
//! its settings look unnecessary, but are needed:
//!
//! - `j: true`, because a majority alone does not include the journal on a replica set that was set up with
//!   `writeConcernMajorityJournalDefault: false`.
//! - `w: 1` instead of `w: "majority"` for a standalone server, which is its own majority. Newer versions wait for the
//!   journal only with `w: 1`. With a majority they leave the wait to replication. There is none, so they acknowledge
//!   writes that a kill can undo (`docs/evidence.md`).

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::{
    Collection, Database, ServerInfo,
    bson::{Document, doc},
    error::Error as DriverError,
    options::{
        Acknowledgment, CollectionOptions, DatabaseOptions, ReadConcern, ReadPreference,
        SelectionCriteria, ServerAddress, WriteConcern,
    },
};
use parking_lot::Mutex;

use super::error::{STORE, at, classify};
use crate::{
    model::{Error, brief, quoted},
    runtime,
};

/// How long the server waits for a majority before it says that there is none. Without a bound it waits without end,
/// and keeps the connection busy.
const MAJORITY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest list of servers in a message, in characters.
const SERVERS: usize = 100;
/// How long a server counts as standalone before the store asks it again. It may have been restarted as a member of a
/// replica set, where `w: 1` is not enough.
const STANDALONE_FOR: Duration = Duration::from_secs(10);

/// One collection under the write concerns of the table above. Its reads go to the primary.
#[derive(Clone)]
pub(crate) struct Collections<T: Send + Sync> {
    /// For durable writes to a replica set or a sharded cluster, and for reads.
    majority: Collection<T>,
    /// For durable writes to a standalone server.
    standalone: Collection<T>,
    /// For undoable writes.
    primary: Collection<T>,
    /// Whether `j: true` is sent. Otherwise the server decides.
    journal: bool,
    known: Arc<Mutex<Known>>,
}

/// What is known of the servers behind a client.
#[derive(Default)]
struct Known {
    /// What one of them has answered, and when it was asked.
    deployment: Option<(Deployment, Instant)>,
    /// The addresses among which the driver has last chosen. Empty before its first choice.
    servers: String,
}

/// The kind of deployment behind a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    Standalone,
    ReplicaSet,
    /// A sharded cluster: commands go through a router.
    Sharded,
}

impl<T: Send + Sync> Collections<T> {
    /// The same collection, with concerns and a read preference of its own.
    pub(crate) fn new<U: Send + Sync>(collection: &Collection<U>) -> Self {
        Self::with(collection, true)
    }

    /// The same collection, with or without waiting for the journal.
    pub(crate) fn journal(self, journal: bool) -> Self {
        Self::with(&self.majority, journal)
    }

    fn with<U: Send + Sync>(collection: &Collection<U>, journal: bool) -> Self {
        let acknowledged_by = |w, journal: bool| {
            let concern = WriteConcern::builder()
                .w(w)
                .journal(journal.then_some(true))
                .w_timeout(MAJORITY_TIMEOUT)
                .build();
            let options = CollectionOptions::builder()
                .write_concern(concern)
                .read_concern(ReadConcern::local())
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                .build();
            let namespace = collection.namespace();
            let database = collection.client().database(&namespace.db);
            database.collection_with_options(&namespace.coll, options)
        };
        Self {
            majority: acknowledged_by(Acknowledgment::Majority, journal),
            standalone: acknowledged_by(Acknowledgment::Nodes(1), journal),
            primary: acknowledged_by(Acknowledgment::Nodes(1), false),
            journal,
            known: Arc::default(),
        }
    }

    /// For reads, for commands that write no documents, and for sessions. In a transaction, the write concern of the
    /// transaction counts.
    pub(crate) fn reads(&self) -> &Collection<T> {
        &self.majority
    }

    /// What messages call the collection: with its servers, when one of them could be reached. Before that, the driver
    /// does not tell where they are.
    pub(crate) fn name(&self) -> String {
        let namespace = self.majority.namespace().to_string();
        let namespace = quoted(&namespace);
        match self.servers() {
            Some(servers) => format!("{STORE} ({namespace} at {servers})"),
            None => format!("{STORE} ({namespace})"),
        }
    }

    /// The outcome of an operation. If it is an error, that names the servers.
    pub(crate) fn answered<R>(&self, outcome: Result<R, Error>) -> Result<R, Error> {
        outcome.map_err(|error| match self.servers() {
            Some(servers) => at(&servers, error),
            None => error,
        })
    }

    /// Runs a call in a task of its own, as [`runtime::call`] does. Its errors name the collection or its servers.
    pub(super) async fn call<R: Send + 'static>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<R, Error>> + Send + 'static,
    ) -> Result<R, Error>
    where
        T: Clone + 'static,
    {
        let locks = self.clone();
        let answered = async move { locks.answered(work.await) };
        runtime::call(operation, limit, || self.name(), answered).await
    }

    fn servers(&self) -> Option<String> {
        let servers = &self.known.lock().servers;
        (!servers.is_empty()).then(|| brief(servers, SERVERS).into_owned())
    }

    /// The database of the collection, for commands that are built by hand.
    pub(crate) fn database(&self) -> Database {
        self.other_database(&self.majority.namespace().db)
    }

    /// Another database of the same client, for what the server tells of itself. Its reads go to the primary, like those
    /// of the collection: a client whose reads go to secondaries could not read the settings of a sharded cluster, or
    /// would read old ones. The driver refuses some commands if the write concern of the client waits for no answers.
    pub(crate) fn other_database(&self, name: &str) -> Database {
        let options = DatabaseOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let client = self.majority.client();
        client.database_with_options(name, options.build())
    }

    /// For writes that must be durable. The first call asks the server for its kind. A standalone server is asked again
    /// from time to time.
    pub(crate) async fn durable_writes(&self) -> Result<&Collection<T>, Error> {
        Ok(if self.ask_whether_standalone().await? {
            &self.standalone
        } else {
            &self.majority
        })
    }

    /// For writes that a failover or a kill may undo.
    pub(crate) fn undoable_writes(&self) -> &Collection<T> {
        &self.primary
    }

    /// The write concern of [`durable_writes`](Self::durable_writes), for a command that is built by hand.
    pub(crate) async fn write_concern(&self) -> Result<Document, Error> {
        let standalone = self.ask_whether_standalone().await?;
        Ok(written_out(standalone, self.journal))
    }

    /// Whether durable writes go to [`standalone`](Self::standalone). Without the journal the two write concerns do not
    /// differ, and the answer only tells where the servers are.
    async fn ask_whether_standalone(&self) -> Result<bool, Error> {
        Ok(self.ask_deployment().await? == Deployment::Standalone && self.journal)
    }

    /// The kind of deployment behind the client. Asks the server if that is not known. A standalone server is asked
    /// again from time to time, and others are asked once.
    pub(super) async fn ask_deployment(&self) -> Result<Deployment, Error> {
        if let Some((deployment, asked)) = self.known.lock().deployment {
            let is_old = asked.elapsed() >= STANDALONE_FOR;
            // Sets and sharded clusters are not asked again. If a standalone server replaces a set, it is still sent
            // `w: "majority"`, and may acknowledge a write before it is in the journal.
            if deployment != Deployment::Standalone || !is_old {
                return Ok(deployment);
            }
        }
        let asked = Instant::now();
        let (servers, hello) = self.ask_any(doc! { "hello": 1 }).await;
        let servers: BTreeSet<_> = servers.iter().map(ToString::to_string).collect();
        let mut known = self.known.lock();
        if !servers.is_empty() {
            known.servers = Vec::from_iter(servers).join(", ");
        }
        let deployment = deployment_of(&hello.map_err(classify)?);
        known.deployment = Some((deployment, asked));
        Ok(deployment)
    }

    /// Asks any server behind the client. Returns the addresses of those that could have been asked, too: the driver
    /// tells them only to who chooses among them.
    pub(super) async fn ask_any(
        &self,
        question: Document,
    ) -> (HashSet<ServerAddress>, Result<Document, DriverError>) {
        let servers = Arc::<Mutex<HashSet<ServerAddress>>>::default();
        let seen = servers.clone();
        let choose = move |server: &ServerInfo<'_>| {
            seen.lock().insert(server.address().clone());
            true
        };
        let answer = self
            .other_database("admin")
            .run_command(question)
            .selection_criteria(SelectionCriteria::Predicate(Arc::new(choose)))
            .await;
        let servers = servers.lock().clone();
        (servers, answer)
    }
}

/// The deployment of a server with this answer to `hello`. A member of a set that is not initiated yet is not
/// standalone.
fn deployment_of(hello: &Document) -> Deployment {
    let member = hello.contains_key("setName") || hello.contains_key("isreplicaset");
    match hello.get_str("msg") {
        Ok("isdbgrid") => Deployment::Sharded,
        _ if !member && hello.get_bool("isWritablePrimary").unwrap_or(false) => {
            Deployment::Standalone
        }
        _ => Deployment::ReplicaSet,
    }
}

/// The write concern for replica sets and sharded clusters, as part of a command.
#[cfg(test)]
pub(super) fn majority() -> Document {
    written_out(false, true)
}

fn written_out(standalone: bool, journal: bool) -> Document {
    let mut concern = if standalone {
        doc! { "w": 1 }
    } else {
        doc! { "w": "majority" }
    };
    if journal {
        concern.insert("j", true);
    }
    concern.insert("wtimeout", MAJORITY_TIMEOUT.as_millis() as i64);
    concern
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Bson;

    use super::*;

    #[test]
    fn a_server_tells_what_it_belongs_to() {
        let of = |hello| deployment_of(&hello);
        let primary = doc! { "isWritablePrimary": true };
        assert_eq!(of(primary.clone()), Deployment::Standalone);
        let with = |field: &str, value: Bson| {
            let mut hello = primary.clone();
            hello.insert(field, value);
            hello
        };
        let member = with("setName", "rs0".into());
        assert_eq!(of(member), Deployment::ReplicaSet);
        assert_eq!(of(with("msg", "isdbgrid".into())), Deployment::Sharded);
        let uninitiated = doc! { "isWritablePrimary": false, "isreplicaset": true };
        for other in [uninitiated, doc! {}] {
            assert_eq!(of(other), Deployment::ReplicaSet);
        }
    }
}

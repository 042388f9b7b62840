//! Locks and limiters in MongoDB.
//!
//! What an application uses is `MongoStore` in this file, documents under a fence (`guarded.rs`, `fence_filter.rs`,
//! `transaction.rs`), and the port of a Java class (`distributed_lock.rs`).
//!
//! - **What is sent:** `statements.rs` and its folder say what the rules say, as pipelines. They are pure.
//! - **The operations:** `by_dialect.rs` has each operation, and asks which dialect the engine speaks (`dialect.rs`,
//!   `engine.rs`). The dialect of pipelines has them as methods of `Pipelines`, in files named for them: `acquire.rs`,
//!   `renew.rs`, `release.rs`, `batch.rs`, `read.rs`, `admin.rs`. `bulk.rs` sends the changes of many keys as one
//!   command, and `change.rs` a change of one document, among them conversions and permits. `classic.rs` has all of
//!   them in the other dialect.
//! - **The answers:** `decode.rs` reads documents, and `error.rs` sorts errors. `bson_compat.rs` converts between the
//!   versions of the BSON library.
//! - **The streams:** `change_stream.rs` reads which keys became free. `runtime/listener.rs` opens a stream again after
//!   an error.
//! - **The set-up:** `fitness.rs` says what a collection must be like, `look.rs` looks whether it is so before the first
//!   use, and `prepare.rs` creates indexes and tries a lock. `concern.rs` says which acknowledgement a write asks for,
//!   `statement_clock.rs` whose clock a statement uses, and `routers.rs` and `router_checks.rs` check the routers of a
//!   sharded cluster.

mod acquire;
mod admin;
mod batch;
#[cfg(feature = "fencing")]
mod bson_compat;
mod bulk;
mod by_dialect;
mod change;
mod change_stream;
mod classic;
mod concern;
mod decode;
mod dialect;
pub(crate) mod distributed_lock;
mod engine;
mod error;
#[cfg(feature = "fencing")]
mod fence_filter;
mod fitness;
#[cfg(feature = "fencing")]
pub(crate) mod guarded;
mod known_keys;
mod look;
mod pipelines;
mod prepare;
#[cfg(test)]
mod protocol_pages;
#[cfg(test)]
mod protocol_templates;
mod read;
mod release;
mod renew;
mod router_checks;
mod routers;
mod statement_clock;
mod statements;
#[cfg(feature = "fencing")]
pub(crate) mod transaction;

use std::{fmt, sync::Arc, time::Duration};

use mongodb::{Collection, bson::RawDocumentBuf};
use parking_lot::Mutex;

use self::{
    concern::Collections, dialect::Dialect, known_keys::KnownKeys, look::FirstLook,
    router_checks::RouterChecks,
};
use crate::{model::Error, store::clock::ServerClock};

/// How long the document of a dead lock is kept, unless [`MongoStore::retention`] says otherwise.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a command is sent at most while its answer is of no use. There are two such answers: another client has
/// inserted the same key at the same moment; or the answer comes from the driver's retry, without the time. The second
/// attempt finds the document, unless it was removed in between, and has an ordinary answer.
const MAX_SENDS: u32 = 3;

/// Keeps locks in a MongoDB collection, one document for each key.
///
/// It uses the application's own [`Collection`], so that authentication, TLS and pools are the application's. Whatever
/// the defaults of the client and the collection are, each write asks for a majority and its journal, and each read
/// asks the primary. [`prepare`](MongoStore::prepare) creates the indexes by which the server removes dead locks.
///
/// # What it needs
///
/// - MongoDB 5.0 or newer.
/// - The role `readWrite` on the database. If the [`retention`](MongoStore::retention) was changed since the first
///   [`prepare`](MongoStore::prepare), the next one also needs the right `collMod`, which is in `dbAdmin`.
/// - A collection for locks and limiters only, without a collation of its own: a collation that ignores case, for
///   example, would treat two keys as one. A sharded collection must be sharded by `_id`. The first acquire of a store looks
///   at the collection, and is refused with [`Error::NotPrepared`](crate::Error::NotPrepared) if it is not fit
///   ([`check`](MongoStore::check) says for what reasons). A user who may not list collections and indexes can lock all
///   the same, and is not told.
///
/// # Options of the driver
///
/// - The driver looks for a server for 30 s by default. Set `server_selection_timeout` to less than the
///   [`call_timeout`](crate::LeasesBuilder::call_timeout). The error then says that no server can be reached, or that a
///   server refused the password, instead of that it did not answer in time.
/// - The driver waits for an answer without a limit. So a dead connection keeps its place in the pool until the
///   operating system closes it, and the connection of a renewal keeps its place as long as a transaction holds the
///   document of the lease. A `max_pool_size` above the driver's default of 10 leaves room for that: up to 24 batches
///   of renewals without an answer may be under way.
///
/// # What it guarantees
///
/// - Every operation is one atomic command on one document, on the clock of the server that carries it out. The
///   [classic dialect](MongoStore::without_pipelines) takes two commands for most operations.
/// - A majority of the replica set has acknowledged a grant, each member with the grant in its journal (`w:
///   "majority"`, `j: true`). So the grant survives a failover, the loss of any minority, and that all members are
///   killed or lose their power at once. That is also true on a set with `writeConcernMajorityJournalDefault: false`,
///   where a majority alone says nothing about the journal. The same applies to renewals, conversions, evictions and
///   permits. The next primary may have another clock: the clock margin of 100 ms covers a difference up to that, and
///   [`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin) a greater one.
/// - The primary alone acknowledges a **plain release**, unless [`durable_releases`](MongoStore::durable_releases) says
///   otherwise. If a failover undoes the release, the key stays taken until the ttl is over.
/// - A refused attempt writes nothing, not even to the oplog, unless it takes a place among the waiting processes.
/// - On a **standalone server** an acknowledged grant is in the server's journal (`w: 1`, `j: true`). So it survives
///   that the server is killed or loses its power, and is lost with its disk. The store does not send `w: "majority"`
///   to such a server, because newer servers then do not wait for the journal, even with `j: true`. With its first
///   write the store asks which kind of server it is (`hello`), and it asks a standalone server again after 10 s. So if
///   you make a standalone server a member of a set, wait 10 s before you add the second member.
/// - A server **without a journal** causes [`Error::NoJournal`](crate::Error::NoJournal), unless
///   [`journal(false)`](MongoStore::journal) says that the store may use it.
///
/// # Sharded clusters
///
/// There `$$NOW` is the clock of the router (`mongos`), and routers often run beside the applications. So the store
/// uses the clock of the shard, whatever the clocks of the routers say. From MongoDB 8.3 on, if the feature
/// compatibility version of the cluster is as new, it uses the expression `$currentDate` for that. (No sharded cluster
/// of that version was available: the statements were tried on a single server of it.) On an older cluster the store
/// uses the [classic dialect](MongoStore::without_pipelines).
///
/// The store asks the cluster once, with its first request. If a collection has documents of the classic dialect, the
/// store keeps using that dialect after an upgrade of the cluster.
///
/// # Freed keys
///
/// On a replica set, and on a sharded cluster with pipelines, the store learns of releases, evictions and downgrades as
/// they happen ([`Store::freed`](crate::Store::freed)), by a change stream. On a standalone server it does not.
///
/// - An open stream keeps one connection of the client's pool busy, so `max_pool_size` should leave some for the locks.
///   For each stream the server looks at every write that it gets.
/// - A change stream shows what a majority has, so it may be late. Without a majority it shows nothing until there is
///   one again. It is never early: the primary has freed a key before the stream shows it.
/// - It needs the right `changeStream`, which is in `readWrite`.
/// - It ends if the collection is dropped or renamed.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
/// use leasehold::{Leases, MongoStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = mongodb::options::ClientOptions::parse("mongodb://localhost").await?;
/// options.server_selection_timeout = Some(Duration::from_secs(2)); // the default is 30 s
/// let client = mongodb::Client::with_options(options)?;
/// let locks = client.database("app").collection::<mongodb::bson::Document>("locks");
/// let store = MongoStore::new(&locks);
/// store.prepare().await?;
/// let lease = Leases::new(store).acquire("report:42", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MongoStore {
    locks: Collections<RawDocumentBuf>,
    retention: Duration,
    /// Whether releases are acknowledged like all other writes.
    durable_releases: bool,
    clock: Arc<ServerClock>,
    /// Whether changes may be pipelines.
    pipelines: bool,
    /// The dialect on a sharded cluster, if the cluster was asked.
    sharded: Arc<Mutex<Option<Dialect>>>,
    /// When the routers of a sharded cluster were asked to which cluster they belong.
    routers: Arc<Mutex<RouterChecks>>,
    /// Whether the collection was looked at.
    first_look: FirstLook,
    /// The keys that are likely to have a document.
    known_keys: Arc<Mutex<KnownKeys>>,
}

impl MongoStore {
    /// Makes a store in this collection. Sends nothing yet. The type `T` of the collection's documents does not matter.
    pub fn new<T: Send + Sync>(collection: &Collection<T>) -> Self {
        Self {
            locks: Collections::new(collection),
            retention: RETENTION,
            durable_releases: false,
            clock: Arc::default(),
            pipelines: true,
            sharded: Arc::default(),
            routers: Arc::default(),
            first_look: FirstLook::default(),
            known_keys: Arc::default(),
        }
    }

    /// Sets how long the document of a dead lock is kept, and with it the key's last fence. The default is a day.
    ///
    /// The time counts from the expiry or from the moment at which the clock has passed the fence, whichever is later.
    /// It is rounded up by a 24th, at most 1,000 s. If a lease is released early, the date stays as it was.
    ///
    /// A changed retention applies to a lock from its next grant or renewal on. It applies to limiters, in whole
    /// seconds, from the next [`prepare`](MongoStore::prepare) on. A shorter retention moves no date of a lock forward.
    ///
    /// Without the document, the next fence is taken from the server's clock. So it is still greater, unless the clock
    /// goes back by more than the retention.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets whether a write must be in the server's journal before it is acknowledged. The default is `true`. A server
    /// without a journal, for example with a storage engine that keeps everything in memory, refuses that with
    /// [`Error::NoJournal`](crate::Error::NoJournal).
    ///
    /// With `false`, a server that is killed or loses its power may come back without grants, renewals and evictions
    /// that it has acknowledged. Then two holders may have one key at the same time, and one fence may be granted
    /// twice. On a replica set this takes a majority of its members that fail at the same time. Use `false` only where
    /// the server has no journal, and where the consequences are acceptable.
    pub fn journal(mut self, journal: bool) -> Self {
        self.locks = self.locks.journal(journal);
        self
    }

    /// Makes the store use the classic dialect, whose changes are not pipelines: for engines that do not support
    /// pipelines in updates, such as Amazon DocumentDB, and for collections that such a store has used. On a sharded
    /// cluster before MongoDB 8.3 each store uses it.
    ///
    /// It can do all that a store must do. The differences are:
    ///
    /// - Taking an exclusive lease of a free key is one command. So is its release, if the lease was not renewed, no
    ///   process waits and no tick is done. If that command finds that it is not enough, two more follow.
    /// - Any other operation is two commands: one writes the time of the request, and so learns the clock of the server
    ///   that keeps the document; the other is a compare-and-set. If other clients change the document in between, both
    ///   are sent again.
    /// - So a refused request writes to the document, and so do [`inspect`](crate::Leases::inspect),
    ///   [`peek`](crate::Limiter::peek) and, for one document of each page, [`list`](crate::Leases::list).
    ///   [`Store::look`](crate::Store::look) writes to one document, if one of the keys has a place in its queue.
    /// - Waiters are not told of [freed keys](crate::Store::freed): they poll. Each request of a batch is sent alone.
    /// - There is no TTL index: [`purge`](crate::Leases::purge) removes dead locks. [`prepare`](MongoStore::prepare)
    ///   only checks the collection.
    /// - [`Lease::enforce`](crate::Lease::enforce) is refused.
    ///
    /// Its documents have a schema of their own. A store of the other dialect refuses them, and this one refuses those
    /// of the other dialect, so it needs a collection of its own. Amazon DocumentDB also needs `retryWrites=false` in
    /// the address.
    ///
    /// ```no_run
    /// # use leasehold::MongoStore;
    /// # async fn example(client: mongodb::Client) -> Result<(), leasehold::Error> {
    /// let locks = client.database("app").collection::<mongodb::bson::Document>("locks");
    /// let store = MongoStore::new(&locks).without_pipelines();
    /// store.prepare().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn without_pipelines(mut self) -> Self {
        self.pipelines = false;
        self
    }

    /// Sets whether a release must be acknowledged by a majority of the replica set and in its journal, as a grant is.
    /// The default is `false`.
    ///
    /// By default the primary alone acknowledges a plain release (`w: 1`), which saves a wait for the other members in
    /// every cycle. A failover right after it, or a kill of a standalone server, may undo the release. The key then
    /// stays taken until the ttl is over, as if the holder had died. It cannot cause two holders at once, or a fence
    /// that is granted twice.
    ///
    /// In any case a majority acknowledges these releases: one with a minimum hold; one after the local deadline of the
    /// lease; one of a lease that was never handed out; one that hands the key to a waiter of the same process; one
    /// that leaves the key to other processes after many of those; and one of a [leader](crate::Leases::leader).
    pub fn durable_releases(mut self, durable: bool) -> Self {
        self.durable_releases = durable;
        self
    }

    /// For a release, or for the end of a place.
    async fn writes_of_an_end(
        &self,
        is_undoable: bool,
    ) -> Result<&Collection<RawDocumentBuf>, Error> {
        if is_undoable && !self.durable_releases {
            Ok(self.locks.undoable_writes())
        } else {
            self.locks.durable_writes().await
        }
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, because its options contain the credentials.
        f.debug_struct("MongoStore")
            .field("collection", &self.locks.reads().namespace().to_string())
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}

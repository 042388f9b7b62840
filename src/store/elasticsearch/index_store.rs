//! The store on an index, and its options.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
};

use parking_lot::Mutex;

use super::{
    aliased_index::AliasedIndex, nodes::Nodes, statements::Statements, transport::Transport,
};
use crate::store::clock::ServerClock;

/// Keeps locks in an index of Elasticsearch or OpenSearch, one document for each key.
///
/// It uses the application's own client, so that authentication, TLS and cloud ids are the application's. The locks
/// have an index of their own, behind an alias. [`prepare`](IndexStore::prepare) creates both. Without it every
/// operation fails.
///
/// # Where the locks are
///
/// The index has two aliases: the one that the store is given, `app-locks` for example, and `app-locks-write`, to which
/// operations are sent. There are two reasons for the second alias. A rollover, or anything else that moves the first
/// alias, leaves it where it is. And an update of a missing index would create the index, with a guessed mapping, but
/// an update that requires an alias does not.
///
/// Before its first operation a store asks where the aliases lead. That is one request, which serves all clones and all
/// operations that wait for it. Both aliases must lead to **one index**, which is fit for locks: it has the mapping of
/// locks, no ingest pipelines, and no routing at its alias, for example. Otherwise operations fail with
/// [`Error::NotPrepared`](crate::Error::NotPrepared), which names the problem, until it is solved.
/// [`check`](IndexStore::check) checks the same, and lists the conditions.
///
/// From then on each answer must name the document that was asked for, in that index. An answer about another document
/// is neither a grant nor a refusal, but [`Error::Interrupted`](crate::Error::Interrupted), whose source names both
/// documents. The next operation then asks again where the aliases lead.
///
/// The page `docs/stores/elasticsearch.md` says which changes of an index are safe while clients run. In short: a
/// **rollover** is; a **move** of both aliases is only if nobody can write to the old index any more and its documents
/// were copied; a **deletion** of the index, and a move to an empty one, end every lease, as
/// [`evict`](crate::Leases::evict) ends those of a key: the holders learn of it with their next renewal, and may work
/// until then. Only [`prepare`](IndexStore::prepare) creates the index again.
///
/// # What it guarantees
///
/// - Every operation is one scripted update of one document, in one request. The primary shard runs the script on the
///   document as it is at that moment, and on the real clock of its node (`new Date().getTime()`; the cached clock,
///   `ctx._now`, was seen up to 194 ms late). If another change comes in between, the shard runs the script again.
/// - A refused attempt writes nothing but the [place](crate::store::Turn::InTurn) of a process that waits. No operation
///   on a key needs a refresh, because reads by key are real-time.
/// - An acknowledged grant, renewal or release is on the disk of the primary (`index.translog.durability` is `request`
///   in the index that [`prepare`](IndexStore::prepare) creates) and of every replica in sync. A primary acknowledges a
///   write only when the replicas have it, or when the cluster has removed them from the copies in sync. A primary that
///   is cut off can do neither. For this reason a repeated request for a grant or a conversion writes the lock again.
/// - The answer to a request that changed nothing may come from the primary alone. So a refused acquire, the answer
///   that a lease is not held, and the result of [`inspect`](crate::Leases::inspect) may come from a primary that was
///   cut off a moment ago. Lists come from any copy, and so does what a
///   [look](crate::Store::look) at leases that stay tells.
/// - [`wait_for_active_shards`](IndexStore::wait_for_active_shards) is a check before the write, and promises nothing
///   about the write itself. With no replica in sync, as always with [`replicas`](IndexStore::replicas) of 0, a grant
///   is on one disk only. If that disk is lost, or an operator restores an old copy (`allocate_stale_primary`, a
///   snapshot), the key can be granted again before the lease is over.
/// - When the primary shard moves, the clock of another node decides. The clock margin of 100 ms covers a difference up
///   to that; [`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin) covers a greater one.
/// - A purge removes what is over by the clock of the primary, with the margin.
///
/// # Privileges
///
/// With the security of Elasticsearch on, a role needs `read`, `write`, `view_index_metadata` (to ask where the locks
/// are) and `maintenance` (lists and purges refresh) for the alias and whatever begins with its name, `app-locks*`.
/// [`prepare`](IndexStore::prepare) needs `manage` on the same, and with [`stored_scripts`](IndexStore::stored_scripts)
/// the right to store scripts. On OpenSearch the permission instead of `view_index_metadata` is `indices:admin/get`.
///
/// Even an inspection of a key needs the right to write: it is an update that changes nothing, because a get does not
/// tell the time. Where the security plugin of OpenSearch is on, a role also needs the cluster permissions
/// `indices:data/write/bulk` and `indices:data/read/mget`, which are in the group `cluster_composite_ops`: several
/// requests of this crate are bulks, one reads several documents, and the plugin requires the permissions for them.
/// Tried on Elasticsearch 8.12 and OpenSearch 2.5.
///
/// # Which store to choose
///
/// MongoDB with a majority write concern is the stronger store. Use this one where the search cluster is what you have.
/// Where two holders would be a disaster, let the resource check the [`Fence`](crate::Fence):
/// [`GuardedIndex`](crate::fencing::GuardedIndex) does it for documents here.
///
/// # Example
///
#[cfg_attr(feature = "elasticsearch", doc = "```no_run")]
#[cfg_attr(not(feature = "elasticsearch"), doc = "```ignore")]
/// use std::time::Duration;
/// use elasticsearch::{Elasticsearch, http::transport::Transport};
/// use leasehold::{ElasticsearchStore, Leases};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Elasticsearch::new(Transport::single_node("http://localhost:9200")?);
/// let store = ElasticsearchStore::new(client, "app-locks");
/// store.prepare().await?;
/// let lease = Leases::new(store).acquire("report:42", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct IndexStore<C> {
    pub(super) client: C,
    pub(super) nodes: Nodes,
    pub(super) statements: Statements,
    pub(super) replicas: Option<u32>,
    pub(super) clock: Arc<ServerClock>,
    pub(super) aliased_index: Arc<AliasedIndex>,
    /// How many changes go in one request. It only becomes smaller: what refuses a request because of its size does not
    /// change while a process runs.
    pub(super) bulk_limit: Arc<AtomicUsize>,
    /// The host that gave the last answer. The client does not tell which hosts it has.
    pub(super) last_host: Arc<Mutex<Option<Arc<str>>>>,
}

impl<C: Transport> IndexStore<C> {
    /// A store behind this alias. Sends nothing yet.
    ///
    /// [`prepare`](IndexStore::prepare) names the index after the alias, with the suffix `-v1`. The second alias has
    /// the suffix `-write` ([where the locks are](IndexStore#where-the-locks-are)).
    pub fn new(client: C, alias: impl Into<String>) -> Self {
        Self::of(client, Statements::of_locks(alias.into()))
    }

    pub(super) fn of(client: C, statements: Statements) -> Self {
        Self {
            client,
            nodes: Nodes::default(),
            statements,
            replicas: None,
            clock: Arc::default(),
            aliased_index: Arc::default(),
            bulk_limit: Arc::new(AtomicUsize::new(usize::MAX)),
            last_host: Arc::default(),
        }
    }

    /// The nodes between which the client chooses by the number of the [current](Nodes::current) one.
    #[cfg(feature = "address")]
    pub(crate) fn nodes(mut self, nodes: Nodes) -> Self {
        self.nodes = nodes;
        self
    }

    /// How many replicas the index has that [`prepare`](IndexStore::prepare) creates. The default is one, as soon as
    /// the cluster has a second node for it.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Makes each write wait until this many copies of its shard are active, including the primary. By default the
    /// setting of the index decides (`index.write.wait_for_active_shards`). That is 1, the primary alone, unless it was
    /// changed.
    ///
    /// With 2, and a replica, nothing is granted while only one node has the locks, which would be lost with its disk.
    /// The price is that operations fail meanwhile: each fails after 5 s, with
    /// [`Error::Interrupted`](crate::Error::Interrupted). Renewals and releases fail too, so leases are lost. If the
    /// number is greater than the copies that the index has ([`replicas`](IndexStore::replicas) and the primary), that
    /// is always so.
    ///
    /// The option is a check before the write, and promises nothing about the write itself. A replica that fails
    /// between the two is removed from the copies in sync, and the write is acknowledged without it. With or without
    /// this option, an acknowledged write is on every copy in sync.
    pub fn wait_for_active_shards(mut self, copies: u32) -> Self {
        self.statements.active_shards = Some(copies);
        self
    }

    /// Makes [`prepare`](IndexStore::prepare) store the scripts in the cluster, and requests contain the names of the
    /// scripts instead of their text: for clusters that forbid inline scripts (`script.allowed_types: stored`).
    /// [`prepare`](IndexStore::prepare) then needs the right to store scripts.
    pub fn stored_scripts(mut self) -> Self {
        self.statements.stored_scripts = true;
        self
    }
}

impl<C> fmt::Debug for IndexStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, because it would show the credentials.
        f.debug_struct("IndexStore")
            .field("alias", &self.statements.alias)
            .field("replicas", &self.replicas)
            .field("stored_scripts", &self.statements.stored_scripts)
            .finish_non_exhaustive()
    }
}

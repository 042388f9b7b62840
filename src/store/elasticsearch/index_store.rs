//! The store of an index, and its options.

use std::{fmt, sync::Arc};

use super::{dialect::Dialect, place::Place, transport::Transport};
use crate::store::clock::ServerClock;

/// Keeps locks in an index of Elasticsearch or OpenSearch, one document a key.
///
/// It takes the application's own client, so that authentication, TLS and cloud ids are the
/// application's. The locks have an index of their own, behind an alias:
/// [`prepare`](IndexStore::prepare) creates both, and nothing works without it.
///
/// # Where the locks are
///
/// The index has two aliases: the one that the store is given, `app-locks` say, and `app-locks-write`,
/// which operations are sent to. The second is there because a rollover, or whatever else moves the first,
/// leaves it where it is, and because an update of a missing index would create it, with a mapping that is
/// guessed, where one of an alias does not.
///
/// Before its first operation a store asks where they lead (one request, which all clones and all
/// operations that wait for it share), and requires that both lead to **one index**, with the mapping of
/// locks and **without ingest pipelines**, which could change a lock or its id. Otherwise that operation and
/// the next ones fail with [`Error::NotPrepared`](crate::Error::NotPrepared), which names what is in the way; as soon as that is gone
/// they succeed. [`check`](IndexStore::check) asks the same. From then on each answer has to be of the
/// document that was asked for, in that index. One of another document is no grant and no refusal, but
/// [`Error::Interrupted`](crate::Error::Interrupted), whose source names both, and the next operation asks anew where the locks are.
///
/// - **A rollover** while locks are held: processes that run go on with the index that they have, until they
///   have a reason to ask again. Those that start, and those that ask, are refused until the alias is back.
/// - **A move** to another index: stop all writes (`index.blocks.write`), copy the documents, give the new
///   index the mapping and both aliases in one `_aliases` request that takes them from the old one. What is
///   asked of the new index for the first time fails as above, and is asked again.
/// - **A deletion** ends every lease in the index, as [`evict`](crate::Leases::evict) ends one: their holders
///   hear of it with the next renewal, and may work until then. Nothing is created again by anything but
///   [`prepare`](IndexStore::prepare); after it the same processes go on in the new index.
/// - **A pipeline that is put on the index later** is found as soon as it writes an `_id` or `_index`, by
///   the first answer, and in any case by the next process that starts, and by
///   [`check`](IndexStore::check). One that changes the fields of a lock and nothing else is not found by a
///   process that runs: the answer shows the document as the script made it. Locks can be granted twice
///   then. Whoever may change the settings of the index can do that.
///
/// # What it guarantees
///
/// - Every operation is one scripted update of one document, in one request. The primary shard runs
///   it on the document as it is at that moment, and on the real clock of its node
///   (`new Date().getTime()`; the cached clock, `ctx._now`, was seen up to 194 ms late). A change
///   that was overtaken is run again by the shard.
/// - A refused attempt writes nothing. Nothing is refreshed on the way: reads by key are real-time.
/// - An acknowledged grant, renewal or release is on the disk of the primary
///   (`index.translog.durability` is `request` in the index that [`prepare`](IndexStore::prepare)
///   creates) and of every replica in sync, because a primary acknowledges a write only when they
///   have it, or the cluster has struck them off. A primary that is cut off can do neither. A grant
///   or a conversion that is asked for again is written again for this reason.
/// - What changes nothing may be answered by the primary alone: that a key is held, that a lease is not,
///   and what [`inspect`](crate::Leases::inspect) shows may come from a primary that was cut off a
///   moment ago. Lists come from any copy.
/// - [`wait_for_active_shards`](IndexStore::wait_for_active_shards) is a look before the write and no
///   promise about it. With no replica in
///   sync, which [`replicas`](IndexStore::replicas) of 0 makes the rule, a grant is on one disk only.
///   If that is lost, or an operator brings back an old copy (`allocate_stale_primary`, a snapshot),
///   the key can be granted again before the lease is over.
/// - When the primary shard moves, the clock of another node decides. A difference of up to the
///   clock margin of 100 ms is covered;
///   [`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin) covers a greater one.
/// - A purge judges by the clock of any node that has a copy, the margin included, in whole seconds.
///
/// # Privileges
///
/// With the security of Elasticsearch on, a role needs `read`, `write`, `view_index_metadata` (where the
/// locks are) and `maintenance` (lists and purges refresh) for the alias and what begins with its name,
/// `app-locks*`. [`prepare`](IndexStore::prepare) needs `manage` on the same, and with
/// [`stored_scripts`](IndexStore::stored_scripts) the right to store scripts. On OpenSearch
/// the permission in the place of `view_index_metadata` is `indices:admin/get`.
///
/// Looking at a key is an update that changes nothing, because a get does not tell the time: it
/// needs the right to write, as everything else here. Where the security plugin of OpenSearch is
/// on, a role needs the cluster permission `indices:data/write/bulk` besides, which is in the group
/// `cluster_composite_ops`: the plugin judges bulks by it, and several requests in this crate are
/// such. Tried on Elasticsearch 8.12 and OpenSearch 2.5.
///
/// MongoDB with a majority write concern is the stronger store. Use this one where the search
/// cluster is what you have, and let the resource check the [`Fence`](crate::Fence) where two
/// holders would be a disaster: [`GuardedIndex`](crate::elasticsearch::GuardedIndex) does it for documents here.
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
    pub(super) dialect: Dialect,
    pub(super) replicas: Option<u32>,
    pub(super) clock: Arc<ServerClock>,
    pub(super) place: Arc<Place>,
}

impl<C: Transport> IndexStore<C> {
    /// A store behind this alias. Nothing is sent yet.
    ///
    /// The index itself has the name of the alias and `-v1` behind it, and a second alias with `-write`
    /// behind the name ([where the locks are](IndexStore#where-the-locks-are)).
    pub fn new(client: C, alias: impl Into<String>) -> Self {
        Self::of(client, Dialect::of_locks(alias.into()))
    }

    pub(super) fn of(client: C, dialect: Dialect) -> Self {
        Self {
            client,
            dialect,
            replicas: None,
            clock: Arc::default(),
            place: Arc::default(),
        }
    }

    /// How many replicas the index has that [`prepare`](IndexStore::prepare) creates. By default
    /// one, as soon as the cluster has a second node for it.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Has each write wait until so many copies of its shard are active, the primary among them. By default
    /// the setting of the index decides (`index.write.wait_for_active_shards`), which is 1 unless somebody
    /// changed it: the primary alone.
    ///
    /// With 2, and a replica, nothing is granted while only one node has the locks, whose disk would take
    /// them along. The price is that nothing is granted then: after 5 s an operation fails with
    /// [`Error::Interrupted`](crate::Error::Interrupted), renewals and releases too, so that leases are lost. With more copies than the
    /// index has ([`replicas`](IndexStore::replicas) and the primary) that is always so.
    ///
    /// It is a look before the write and no promise about it: a replica that fails between the two is
    /// struck off, and the write is acknowledged without it. What is acknowledged is on every copy in sync
    /// with or without it.
    pub fn wait_for_active_shards(mut self, copies: u32) -> Self {
        self.dialect.wait_for_active_shards(copies);
        self
    }

    /// Has [`prepare`](IndexStore::prepare) store the scripts in the cluster, and requests name them
    /// instead of bringing them along: for clusters that forbid inline scripts
    /// (`script.allowed_types: stored`). It needs the right to store scripts, once.
    pub fn stored_scripts(mut self) -> Self {
        self.dialect.use_stored_scripts();
        self
    }
}

impl<C> fmt::Debug for IndexStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: it holds the credentials, and shows them.
        f.debug_struct("IndexStore")
            .field("alias", &self.dialect.alias())
            .field("replicas", &self.replicas)
            .field("stored_scripts", &self.dialect.uses_stored_scripts())
            .finish_non_exhaustive()
    }
}

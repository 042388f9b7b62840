//! Documents of the application that refuse a stale holder.

mod change;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::change::object;
use super::{
    answer::{Answer, Effect, Outcome},
    dialect::{Change, Dialect, Target},
    index_store::IndexStore,
    send::is_missing_index,
    transport::Transport,
};
use crate::model::{Error, Fence, Key};

/// Writes to documents in an index of the application, and only as long as no newer holder has been at
/// them.
///
/// A lease cannot stop a holder that was paused past its expiry; the document can. Each write here is
/// one scripted `_update`: the primary shard compares the [`Fence`] with the one that the document has
/// seen, in its field [`Fence::FIELD`](crate::Fence::FIELD), and writes both or nothing. A stale holder
/// gets [`Error::Fenced`]. It does not matter which store the leases are in.
///
/// [`claim`](GuardedIndex::claim) a document before you read it: what was read before the fence is in it
/// may be overtaken by a stale write that was under way.
///
/// # Example
///
#[cfg_attr(feature = "elasticsearch", doc = "```no_run")]
#[cfg_attr(not(feature = "elasticsearch"), doc = "```ignore")]
/// use elasticsearch::Elasticsearch;
/// use leasehold::{Error, Lease, elasticsearch::GuardedIndex};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Order {
///     total: u64,
/// }
///
/// async fn add(client: &Elasticsearch, lease: &Lease, id: &str, price: u64) -> Result<(), Error> {
///     let orders = GuardedIndex::new(client.clone(), "orders", lease.fence());
///     let mut order = orders.claim(id).await?.unwrap_or(Order { total: 0 });
///     order.total += price;
///     orders.index(id, &order).await
/// }
/// ```
///
/// # Which leases
///
/// One document is guarded by one key, and by exclusive leases on it. Of
/// [`shared`](crate::Acquire::shared) leases and [`permits`](crate::Acquire::permits) each has a fence of
/// its own, and the older holders would be refused beside the newest. One key may guard many documents.
///
/// A fence that was seen before passes: it is the same holder.
///
/// [Reentrant](crate::Acquire::reentrant) leases have the fence of their owner. A process that was
/// restarted under the same name, and enters while a lease of the paused one is live, has its fence too,
/// and does not fence it off. Let the name of the owner be of one run of the process, as it is by default,
/// or do not use `reentrant` here.
///
/// # What it does not see
///
/// - **A document that is not there.** [`index`](GuardedIndex::index) creates it, for a stale holder as
///   well, and a deletion deletes the fence. Where that matters, index a tombstone of your own and do
///   not delete.
/// - **Documents from before.** Without the field, or with null in it, a document has seen no fence, and
///   every fence passes.
/// - **Writers that are not upgraded.** Nothing stops them, and a plain `index` of theirs drops the
///   fence. So does whatever else goes past this: the client's own `index`, `update` and `delete`, bulks,
///   `_update_by_query`, a reindex without the field, an ingest pipeline that removes it. Upgrade all
///   writers first, and rely on fences only then.
/// - **The order of one holder's own requests.** One whose future was dropped, or that failed
///   [ambiguously](Error::is_ambiguous), may still arrive after the next, with the same fence.
///
/// # The index
///
/// - Give the name of an alias if you can: then each call is one request. An alias to several indices
///   needs one of them to write to, and a document in another is not found. The name of an index does as
///   well, at two requests more for the first call of a guard and its clones: an update would create an
///   index that is not there, with a mapping that is guessed, unless it asks for an alias. So that is asked
///   for first, and then whether the index is there. One that is deleted later, while the guard is in
///   use, is created again by the next write, as it would be by any other.
/// - Each answer tells which document it is of, and in which index. One of another document is
///   [`Error::Interrupted`], whose source names both: an ingest pipeline has written the `_id`, or the
///   alias leads to another index than at the first call of the guard. The write is done then, elsewhere.
///   A pipeline that sends everything behind an alias to one other index, from the first call on, is not
///   found, nor one that changes the field with the fence: an update reads the document, and the pipeline
///   gets what the script made of it. Let pipelines leave `_id`, `_index` and the field alone.
/// - The field is a `long` where the mapping is dynamic. With `dynamic: strict` map it first, as a
///   `long`. `dynamic: false` needs nothing.
/// - The documents need their `_source`, as all updates do, and the field in it.
/// - Documents with a routing of their own, and data streams, are not supported.
/// - Nothing is refreshed: a search finds what was written after the index's next refresh; reads by id find
///   it at once.
/// - On a cluster that forbids inline scripts see [`stored_scripts`](GuardedIndex::stored_scripts).
///
/// # Errors
///
/// Of every method:
///
/// - [`Error::Fenced`] if a newer holder has been at the document. A primary that was cut off a moment ago
///   may say so too, and is right.
/// - [`Error::InvalidKey`] if the id is empty or longer than 512 bytes.
/// - [`Error::Contention`] if other writers kept changing the document. Nothing was changed.
/// - [`Error::Store`] if the index is not there, if its mapping refuses the document or the field, if the
///   field is in use for something that is no whole number, or if the document cannot be made into JSON or
///   out of it. The source says which.
/// - Otherwise what the cluster answers, as [`Error`] says. Nothing is tried again here. A repeat with the
///   same fence is allowed, also after an [ambiguous](Error::is_ambiguous) failure. One call takes a minute
///   per request at most; put a timeout around it where that is too long.
///
/// # Cancel safety
///
/// Of every method: the future may be dropped at any point. The request may or may not be carried out,
/// also a little later. Repeat it with the same fence, or read.
///
/// # Without it: versions
///
/// Where nothing but whole documents is ever written, by nobody else, **and nothing is read first**, the
/// engines do it themselves: the fence is the version. An older one is answered 409. There is no claim: a
/// stale write may come between the read of the next holder and its write, and would be lost without a
/// word. Partial updates are not possible then, and a write without a version must never happen, because it
/// counts the version up. The version of a deleted document is forgotten after a minute
/// (`index.gc_deletes`), and then any fence passes.
///
#[cfg_attr(feature = "elasticsearch", doc = "```no_run")]
#[cfg_attr(not(feature = "elasticsearch"), doc = "```ignore")]
/// use elasticsearch::{Elasticsearch, IndexParts, params::VersionType};
/// use leasehold::Lease;
///
/// async fn put(client: &Elasticsearch, lease: &Lease, total: u64) -> Result<bool, elasticsearch::Error> {
///     let answer = client
///         .index(IndexParts::IndexId("orders", "42"))
///         .version(lease.fence().get())
///         .version_type(VersionType::ExternalGte)
///         .body(format!(r#"{{"total":{total}}}"#))
///         .send()
///         .await?;
///     if answer.status_code().as_u16() == 409 {
///         return Ok(false); // A newer holder was there.
///     }
///     answer.error_for_status_code().map(|_| true)
/// }
/// ```
#[derive(Clone)]
pub struct GuardedIndex<C> {
    store: IndexStore<C>,
    fence: Fence,
    /// Whether the name was found to be no alias but an index.
    is_index: Arc<AtomicBool>,
    /// The index of the first answer, which all the others have to be of.
    index: Arc<OnceLock<String>>,
}

impl<C: Transport> GuardedIndex<C> {
    /// Guards the documents behind this alias, or in this index, with the fence of a lease. Nothing is
    /// sent yet.
    pub fn new(client: C, index: impl Into<String>, fence: Fence) -> Self {
        Self {
            store: IndexStore::of(client, Dialect::of_documents(index.into())),
            fence,
            is_index: Arc::default(),
            index: Arc::default(),
        }
    }

    /// Has requests name scripts that are stored in the cluster, for clusters that forbid inline ones.
    ///
    /// [`prepare`](IndexStore::prepare) of any [`IndexStore`] with
    /// [`stored_scripts`](IndexStore::stored_scripts) on the cluster stores them, the one with the locks
    /// for example. Until then each call fails with [`Error::NotPrepared`].
    pub fn stored_scripts(mut self) -> Self {
        self.store = self.store.stored_scripts();
        self
    }

    /// Shows the fence to a document and returns the document as it then is, the field with the fence
    /// included. `None` if it is not there.
    ///
    /// From now on no older holder changes it. It is written for that, also if the fence is in it already:
    /// an answer of a primary without its replicas would prove nothing.
    ///
    /// # Errors
    ///
    /// As [above](GuardedIndex#errors). After [`Error::Store`] because the document is not of this type,
    /// the fence is in it all the same.
    ///
    /// # Cancel safety
    ///
    /// As [above](GuardedIndex#cancel-safety).
    pub async fn claim<T: DeserializeOwned>(
        &self,
        id: impl AsRef<str>,
    ) -> Result<Option<T>, Error> {
        let id = Key::new(id)?;
        let Some(document) = self.claimed(&id).await? else {
            return Ok(None);
        };
        match serde_json::from_value(document) {
            Ok(document) => Ok(Some(document)),
            Err(error) => Err(Error::Store {
                store: C::NAME,
                source: error.into(),
            }),
        }
    }

    /// Writes a whole document, in the place of the one that is there or as a new one.
    ///
    /// A field of the document by the name of [`Fence::FIELD`](crate::Fence::FIELD) is overwritten.
    ///
    /// # Errors
    ///
    /// As [above](GuardedIndex#errors).
    ///
    /// # Cancel safety
    ///
    /// As [above](GuardedIndex#cancel-safety).
    pub async fn index<T: Serialize + ?Sized>(
        &self,
        id: impl AsRef<str>,
        document: &T,
    ) -> Result<(), Error> {
        let id = Key::new(id)?;
        let document = object(&document, C::NAME)?;
        let change = self.store.dialect.guarded_index(&id, self.fence, document);
        match self.change(&id, change).await? {
            Some(outcome) => outcome.passed(self.fence, C::NAME).map(drop),
            None => Err(self.store.senseless("an upsert found no document")),
        }
    }

    /// Merges into a document that is there. `false` if there is none, and nothing is created then.
    ///
    /// It merges as the `doc` of the `_update` API does: objects field by field, at every depth; all else,
    /// lists too, takes the place of what was there. Null is a value as well. A field by the name of
    /// [`Fence::FIELD`](crate::Fence::FIELD) is overwritten.
    ///
    /// # Errors
    ///
    /// As [above](GuardedIndex#errors).
    ///
    /// # Cancel safety
    ///
    /// As [above](GuardedIndex#cancel-safety).
    pub async fn update<T: Serialize + ?Sized>(
        &self,
        id: impl AsRef<str>,
        partial: &T,
    ) -> Result<bool, Error> {
        let id = Key::new(id)?;
        let partial = object(&partial, C::NAME)?;
        let change = self.store.dialect.guarded_update(&id, self.fence, partial);
        match self.change(&id, change).await? {
            Some(outcome) => outcome.passed(self.fence, C::NAME).map(|_| true),
            None => Ok(false),
        }
    }

    /// Deletes a document. `false` if there is none.
    ///
    /// **The fence goes with the document**: a stale holder that then calls
    /// [`index`](GuardedIndex::index) creates it anew. Index a tombstone of your own where that matters.
    ///
    /// # Errors
    ///
    /// As [above](GuardedIndex#errors). A refusal takes a second request, to tell why.
    ///
    /// # Cancel safety
    ///
    /// As [above](GuardedIndex#cancel-safety).
    pub async fn delete(&self, id: impl AsRef<str>) -> Result<bool, Error> {
        let id = Key::new(id)?;
        let change = self.store.dialect.guarded_delete(&id, self.fence);
        match self.change(&id, change).await?.map(|it| it.effect) {
            Some(Effect::Deleted) => Ok(true),
            None => Ok(false),
            Some(Effect::Written) => Err(self.store.senseless("a deletion wrote")),
            Some(Effect::None) => {
                self.claimed(&id).await?;
                // Deleted meanwhile, and perhaps created anew: it was refused all the same.
                let (fence, seen) = (self.fence, None);
                Err(Error::Fenced { fence, seen })
            }
        }
    }

    async fn claimed(&self, id: &Key) -> Result<Option<Value>, Error> {
        let change = self.store.dialect.guarded_claim(id, self.fence);
        match self.change(id, change).await? {
            Some(outcome) => outcome.passed(self.fence, C::NAME).map(Some),
            None => Ok(None),
        }
    }

    /// Sends one change. `None` if the document is not there.
    async fn change(&self, id: &Key, change: Change) -> Result<Option<Outcome>, Error> {
        let asked = change.id().to_owned();
        let answer = self.answer(change).await?;
        // Where the documents are is what the first answer tells. It cannot be asked of an alias for
        // nothing, and one that leads elsewhere later, to where no claim is, is found all the same.
        // A refusal may name the alias instead, as one of an index that is missing does.
        if let (true, Some(told)) = (answer.was_carried_out(), &answer.index) {
            self.index.get_or_init(|| told.clone());
        }
        let index = self.index.get().filter(|_| answer.index.is_some());
        let outcome = answer.of(&asked, index.map(String::as_str));
        match outcome.map_err(|problem| self.store.misdirected(problem))? {
            Ok(outcome) => Ok(Some(outcome)),
            Err(refusal) if refusal.is_missing_document() => Ok(None),
            Err(refusal) => Err(refusal.sorted_for_a_document(C::NAME, id)),
        }
    }

    async fn answer(&self, change: Change) -> Result<Answer, Error> {
        let IndexStore { dialect, .. } = &self.store;
        if !self.is_index.load(Ordering::Relaxed) {
            let request = dialect.update(change.clone());
            let answer = self.store.change_once(&request).await?;
            if !is_missing_index(&answer) {
                return Ok(answer);
            }
            // It is no alias: an index, or nothing, or a node that starts and does not know yet.
            if let Err(refusal) = self.store.send(&dialect.look()).await? {
                return Ok(Answer::refused(refusal));
            }
            self.is_index.store(true, Ordering::Relaxed);
        }
        let request = dialect.update_at(change, Target::Any);
        self.store.change_once(&request).await
    }
}

impl<C> fmt::Debug for GuardedIndex<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client, as in the store.
        f.debug_struct("GuardedIndex")
            .field("index", &self.store.dialect.alias())
            .field("fence", &self.fence)
            .field("stored_scripts", &self.store.dialect.uses_stored_scripts())
            .finish_non_exhaustive()
    }
}

//! The application's own documents, with writes that a stale holder cannot make.

mod change;
mod target;

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::OnceCell;

use self::{
    change::object,
    target::{Target, target},
};
use super::{
    answer::{ChangeOutcome, Effect},
    index_store::IndexStore,
    send::{Knows, UPSERT_FOUND_NONE, existing, unsent},
    statements::{ScriptedUpdate, Statements},
    transport::Transport,
};
use crate::model::{Cause, Error, Fence, Key};

/// Writes to documents in an index of the application. A document refuses a write if a newer holder has written or
/// claimed it.
///
/// A lease cannot stop a holder that was paused past its expiry. The document can. Each write here is one scripted
/// update. The primary shard compares the [`Fence`] of the write with the one in the document's field
/// [`Fence::FIELD`](crate::Fence::FIELD). It writes the document and the fence, or nothing. A stale holder gets
/// [`Error::Fenced`]. The leases may be in any store.
///
/// [`claim`](GuardedIndex::claim) a document before you read it. Without a claim, a stale write that is under way may
/// still change the document after the read.
///
/// # Example
///
#[cfg_attr(feature = "elasticsearch", doc = "```no_run")]
#[cfg_attr(not(feature = "elasticsearch"), doc = "```ignore")]
/// use elasticsearch::Elasticsearch;
/// use leasehold::{Error, Lease, fencing::GuardedIndex};
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
/// A document must be guarded by one key, and by exclusive leases on that key. Several
/// [`shared`](crate::Acquire::shared) leases or [`permits`](crate::Acquire::permits) of a key each have a fence of
/// their own, so only the newest holder could write. One key may guard many documents.
///
/// A document accepts a fence that it has seen before: the fence belongs to the same holder.
///
/// [Reentrant](crate::Acquire::reentrant) leases have the fence of their owner. If a process is restarted with the same
/// owner name, and acquires the key while a lease of the paused process is live, both have the same fence, and neither
/// stops the other. Use an owner name that is new for each run of the process, as the default is, or do not use
/// `reentrant` here.
///
/// # What it does not stop
///
/// - **A write to a missing document.** [`index`](GuardedIndex::index) creates the document, for a stale holder too,
///   and a deletion deletes the fence. Where that matters, do not delete: index a tombstone of your own.
/// - **Writes to documents without a fence.** A document without the field, or with null in it, has seen no fence, and
///   accepts every fence.
/// - **Writers that are not upgraded.** Nothing stops a write that does not go through this type: the client's own
///   `index`, `update` and `delete`, bulks, `_update_by_query`, a reindex without the field. Several of these drop the
///   fence, as a plain `index` does. Upgrade all writers first, and rely on fences only then.
/// - **The holder's own requests.** They are not put in order. A request whose future was dropped, or that failed
///   [ambiguously](Error::is_ambiguous), may still arrive after the next one, with the same fence.
///
/// # The index
///
/// - Give the name of an alias or of an index. An alias to several indices needs a write index, and documents in the
///   other indices are not found. A missing index is not created, with one exception: if an index whose own name was
///   given is deleted while the guard is in use, the next write creates it again, as any other write would.
/// - **The first call of a guard and its clones asks for the index**, and goes on only if it keeps the fence. It must
///   keep the whole `_source`: with `enabled: false`, `includes` or `excludes` each change would lose fields, and the
///   fence could be one of them. If its `_source` is synthetic, it must map the field as a `long`. It must be open, and
///   require no routing. Otherwise nothing is written, and the error says what to do. A user needs the privileges `read`,
///   `write` and `view_index_metadata` on it (on OpenSearch, `indices:admin/get` instead of the last).
/// - Each answer names its document and its index. If one of them is not the one that was meant, the call fails with
///   [`Error::Interrupted`], whose source names both: the alias leads to another index than at the first call of the
///   guard. The write was then made in another place.
/// - Ingest pipelines see nothing of what is written, because the engines do not run them for updates in a bulk: they
///   get only the empty document before a first write. So no pipeline can drop a fence, and none changes a guarded write.
/// - The field is a `long` where the mapping is dynamic. With `dynamic: strict`, map it first, as a `long`. `dynamic:
///   false` needs nothing, unless the `_source` is synthetic.
/// - Documents with a routing of their own, and data streams, are not supported.
/// - Nothing is refreshed. A search finds a write after the next refresh of the index; a read by id finds it at once.
/// - For a cluster that forbids inline scripts see [`stored_scripts`](GuardedIndex::stored_scripts).
///
/// # Errors
///
/// Every method has these:
///
/// - [`Error::Fenced`] if a newer holder has written or claimed the document. A primary that was cut off from its
///   cluster a moment ago may answer this too, and it is true then as well.
/// - [`Error::InvalidKey`] if the id is empty or longer than 512 bytes.
/// - [`Error::Contention`] if other writers kept changing the document. Nothing was changed.
/// - [`Error::Store`] if the index is missing or [does not keep the fence](GuardedIndex#the-index), if the name cannot be
///   one of an index, if the mapping refuses the document or the field, if the field contains
///   something other than a whole number, or if the document cannot be converted to JSON or from it. The source says
///   which.
/// - Otherwise the error with which the cluster answers; see [`Error`].
///
/// This type retries nothing. You may retry with the same fence, even after an [ambiguous](Error::is_ambiguous)
/// failure. A call takes at most a minute per request; use a timeout if that is too long.
///
/// # Cancel safety
///
/// The future of every method may be dropped at any point. The request may or may not be carried out, perhaps a little
/// later. Repeat the call with the same fence, or read the document.
///
/// # An alternative: versions
///
/// If only holders write, only whole documents, **and nothing is read first**, the engines can compare the fence
/// themselves, as the version of the document. They answer a write with an older version with 409.
///
/// There is no claim then: a stale write may come between the next holder's read and its write, and is overwritten
/// without notice. Partial updates are not possible. A write without a version must never happen, because it raises the
/// version. The version of a deleted document is forgotten after a minute (`index.gc_deletes`), and then any fence is
/// accepted.
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
    /// The index that the name leads to, once it was found to keep fences. All answers have to name it.
    target: Arc<OnceCell<Target>>,
}

impl<C: Transport> GuardedIndex<C> {
    /// Guards the documents behind this alias, or in this index, with the fence of a lease. Sends nothing yet.
    pub fn new(client: C, index: impl Into<String>, fence: Fence) -> Self {
        Self {
            store: IndexStore::of(client, Statements::of_documents(index.into())),
            fence,
            target: Arc::default(),
        }
    }

    /// Sends the names of scripts that are stored in the cluster, instead of the scripts: for clusters that forbid
    /// inline scripts.
    ///
    /// [`prepare`](IndexStore::prepare) of any [`IndexStore`] on the cluster that has
    /// [`stored_scripts`](IndexStore::stored_scripts) stores them, for example that of the locks. Until then each call
    /// fails with [`Error::NotPrepared`].
    pub fn stored_scripts(mut self) -> Self {
        self.store = self.store.stored_scripts();
        self
    }

    /// Records the fence in a document, and returns the document, with the fence in it. `None` if the document does not
    /// exist.
    ///
    /// From then on no older holder can change the document. The document is written even if the fence is in it
    /// already, because the replicas confirm only a write.
    ///
    /// # Errors
    ///
    /// The [errors of every method](GuardedIndex#errors). If the document cannot be read as `T`, the error is
    /// [`Error::Store`], and the fence has been recorded nevertheless.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: [of every method](GuardedIndex#cancel-safety).
    pub async fn claim<T: DeserializeOwned>(
        &self,
        id: impl AsRef<str>,
    ) -> Result<Option<T>, Error> {
        let id = Key::new(id)?;
        let document = self.claimed(&id).await?;
        let read = document.map(serde_json::from_value).transpose();
        read.map_err(|error| Error::Store {
            store: C::NAME,
            source: error.into(),
        })
    }

    /// Writes a whole document. It creates the document, or replaces the existing one.
    ///
    /// A field of the document with the name [`Fence::FIELD`](crate::Fence::FIELD) is overwritten.
    ///
    /// # Errors
    ///
    /// The [errors of every method](GuardedIndex#errors).
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: [of every method](GuardedIndex#cancel-safety).
    pub async fn index<T: Serialize + ?Sized>(
        &self,
        id: impl AsRef<str>,
        document: &T,
    ) -> Result<(), Error> {
        let id = Key::new(id)?;
        let document = object(&document, C::NAME)?;
        let statements = &self.store.statements;
        let change = statements.guarded_index(&id, self.fence, document);
        match self.change(&id, change).await? {
            Some(outcome) => outcome.passed(self.fence).map(drop),
            None => Err(self.store.malformed(UPSERT_FOUND_NONE)),
        }
    }

    /// Merges fields into an existing document. Returns `false` if the document does not exist, and creates nothing
    /// then.
    ///
    /// The merge is that of `doc` in the `_update` API: objects are merged field by field, at every depth. Any other
    /// value, even a list or null, replaces the old one. A field with the name [`Fence::FIELD`](crate::Fence::FIELD) is
    /// overwritten.
    ///
    /// # Errors
    ///
    /// The [errors of every method](GuardedIndex#errors).
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: [of every method](GuardedIndex#cancel-safety).
    pub async fn update<T: Serialize + ?Sized>(
        &self,
        id: impl AsRef<str>,
        partial: &T,
    ) -> Result<bool, Error> {
        let id = Key::new(id)?;
        let partial = object(&partial, C::NAME)?;
        let statements = &self.store.statements;
        let change = statements.guarded_update(&id, self.fence, partial);
        match self.change(&id, change).await? {
            Some(outcome) => outcome.passed(self.fence).map(|_| true),
            None => Ok(false),
        }
    }

    /// Deletes a document. Returns `false` if it does not exist.
    ///
    /// **The fence is deleted with the document**: a stale holder that then calls [`index`](GuardedIndex::index)
    /// creates it anew. Where that matters, index a tombstone of your own instead.
    ///
    /// # Errors
    ///
    /// The [errors of every method](GuardedIndex#errors). After a refusal a second request asks for the reason.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point: [of every method](GuardedIndex#cancel-safety).
    pub async fn delete(&self, id: impl AsRef<str>) -> Result<bool, Error> {
        let id = Key::new(id)?;
        let change = self.store.statements.guarded_delete(&id, self.fence);
        let Some(outcome) = self.change(&id, change).await? else {
            return Ok(false);
        };
        match outcome.effect {
            Effect::Deleted => Ok(true),
            Effect::Written => Err(outcome.server.malformed("a deletion wrote")),
            Effect::None | Effect::Absent => {
                self.claimed(&id).await?;
                // The document was deleted meanwhile, or was created anew. A newer fence has refused the deletion
                // nevertheless.
                let (fence, seen) = (self.fence, None);
                Err(Error::Fenced { fence, seen })
            }
        }
    }

    async fn claimed(&self, id: &Key) -> Result<Option<Value>, Error> {
        let change = self.store.statements.guarded_claim(id, self.fence);
        let outcome = self.change(id, change).await?;
        outcome
            .map(|outcome| outcome.passed(self.fence))
            .transpose()
    }

    /// Sends one change. `None` if the document does not exist.
    async fn change(
        &self,
        id: &Key,
        change: ScriptedUpdate,
    ) -> Result<Option<ChangeOutcome>, Error> {
        let found = self.target.get_or_try_init(|| self.find(id)).await;
        let target = found.map_err(unsent::<C>)?;
        let asked = change.asked();
        let request = self.store.statements.bulk_at(vec![change], target.is_alias);
        let answer = self.store.change_once(&request).await?;
        let outcome = answer.of(&asked.id, &target.index)?;
        existing(outcome, &asked, |it| it.classify_for_a_document(id))
    }

    /// Asks for the index that the name leads to, and requires that it keeps fences.
    async fn find(&self, id: &Key) -> Result<Target, Error> {
        let IndexStore { statements, .. } = &self.store;
        let given = &statements.alias;
        let refused = |problem| Error::Store {
            store: C::NAME,
            source: Cause::text(problem),
        };
        statements.has_name().map_err(refused)?;
        match self.store.send(&statements.describe(given)).await? {
            Ok(answer) => {
                let answer = answer.describes_indices()?;
                let found = target(given, &answer.json);
                found.map_err(|problem| refused(answer.server.told(problem)))
            }
            Err(refusal) => {
                // A node that has just started does not know the indices yet.
                if refusal.is_missing_index()
                    && self.store.knows(&statements.probe()).await? != Knows::Nothing
                {
                    return Err(self.store.classify(refusal, true, None));
                }
                Err(refusal.classify_for_a_document(id))
            }
        }
    }
}

impl<C> fmt::Debug for GuardedIndex<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, because it would show the credentials.
        f.debug_struct("GuardedIndex")
            .field("index", &self.store.statements.alias)
            .field("fence", &self.fence)
            .field("stored_scripts", &self.store.statements.stored_scripts)
            .finish_non_exhaustive()
    }
}

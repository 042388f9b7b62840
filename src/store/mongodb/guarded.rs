//! The application's own documents, written under a fence.

pub(crate) mod actions;
mod send;

use std::{fmt, marker::PhantomData};

use mongodb::{
    Collection,
    bson::{Bson, Document, doc, oid::ObjectId},
    options::UpdateModifications,
};
use serde::Serialize;

use self::{
    actions::{
        Delete, FindAndUpdate, GuardedDelete, GuardedFind, GuardedInsert, GuardedUpdate, Insert,
        WriteBody,
    },
    send::{Creates, GuardedTarget, Pending},
};
use super::{bson_compat, concern::Collections, look::FirstLook};
use crate::model::{Error, Fence};

/// Writes to the application's own collection that are refused once a later holder has written.
///
/// A lease alone cannot stop a holder that was paused past its expiry and then goes on. Only the document itself can
/// tell that the write comes after that of the next holder. So each document keeps the newest fence that it has seen,
/// in the field [`Fence::FIELD`]. Each write is one atomic statement, which matches the document only if it has seen no
/// newer fence, and which records its own fence. A write that comes too late fails with [`Error::Fenced`]. This works
/// on any deployment, even a standalone server.
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Leases, fencing::GuardedCollection};
/// # use mongodb::{Collection, bson::{Document, doc}};
/// # async fn example(leases: Leases, accounts: Collection<Document>) -> Result<(), leasehold::Error> {
/// let lease = leases.acquire("account:7", Duration::from_secs(30)).await?;
/// let guarded = GuardedCollection::new(&accounts, lease.fence());
/// // Claim first: from here on no earlier holder can write.
/// let Some(account) = guarded.claim(7).await? else {
///     return Ok(());
/// };
/// let balance = account.get_i64("balance").unwrap_or(0) / 2;
/// guarded.update_one(doc! { "_id": 7 }, doc! { "$set": { "balance": balance } }).await?;
/// # lease.release().await
/// # }
/// ```
///
/// # Read, modify, write
///
/// **Claim a document before you read it.** [`claim`](GuardedCollection::claim) records the fence in the document and
/// returns the document, in one step. After a claim no earlier holder can write any more. After a plain read, a holder
/// that was paused could still write before the new holder does, and the new holder would compute with old values.
///
/// A document that does not exist keeps no fence. [`claim_or_insert`](GuardedCollection::claim_or_insert) creates it
/// with the claim.
///
/// # What it guarantees, and what it does not
///
/// - A document must be written under **exclusive leases of one key**. Several shared leases of a key, or several
///   leases with permits, exist at the same time with different fences, and would stop each other's writes. Do not use
///   it with them. [`Lease::upgrade`](crate::Lease::upgrade) gives a new fence.
/// - **[Reentrant](crate::Acquire::reentrant) leases have the fence of their owner.** If a process is restarted with
///   the same owner name, and acquires the key while a lease of the paused process is live, both have the same fence,
///   and neither stops the other. Use an owner name that is new for each run of the process, as the default is, or do
///   not use `reentrant` here.
/// - **All writers must guard and stamp.** A writer that ignores fences is not stopped, and a writer that replaces the
///   whole document drops the fence. So the guarantee begins when all writers guard and stamp. Documents that existed
///   before are matched, and have a fence from the first guarded write on.
/// - **Deleting a document deletes its fence**, and a missing document has no fence to compare with: a stale holder may
///   insert it again. Keep a tombstone instead (an update that marks the document as deleted), or write in a
///   transaction with [`Lease::enforce`](crate::Lease::enforce).
/// - With a filter by `_id` a stale holder always gets [`Error::Fenced`]. With any other filter it may match no
///   document, because the newer holder has changed the fields in the filter. The result is then that nothing was
///   matched.
/// - Whatever the write concern of the collection is, a write is acknowledged when it is in the journal of a majority,
///   or of the standalone server, like a lock. A write that only one member has confirmed can be rolled back, and a
///   write that is in no journal is lost with a kill, and the fence with it. The first write asks the server (`hello`)
///   which of the two it is. In a transaction the transaction's own write concern counts: set it to a majority and the
///   journal, as [`Lease::enforce`](crate::Lease::enforce) says.
/// - **A document accepts another write with the same fence**, so the holder's own writes are not put in order. A write
///   whose future was dropped, or that timed out, may be carried out after the next write of the same holder. If the
///   answer was lost ([`Error::is_ambiguous`]) the write may be repeated. A repeated `$set` is harmless if nothing else
///   was written since. A repeated `$inc` counts twice, unless the filter contains the state from before.
/// - **Nothing else may use the field.** A value in it that is neither a number nor a list with one stops no write,
///   and the first guarded write replaces it with the fence.
///
/// The type `T` must accept the field, so it cannot have serde's `deny_unknown_fields`. If a document cannot be read as
/// `T`, the error is [`Error::Store`], with the error of `bson` as its source. The write has been carried out then.
///
/// # Errors
///
/// [`Error::Fenced`] if the document has seen a newer fence. Nothing was written, and the holder should write nothing
/// more. A missing document is not an error: nothing is matched, or the result is `None`. Otherwise the error with
/// which the server answers, with the driver's error as its source.
///
/// # Cancel safety
///
/// The future of a write may be dropped at any point. The write itself runs to its end in a task of its own, and waits
/// for an answer without a limit; use `tokio::time::timeout` to wait for a shorter time. A write in a session runs in
/// the caller's task, as the driver's own writes do, and is not cancel safe.
pub struct GuardedCollection<T: Send + Sync> {
    documents: Collections<Document>,
    /// Whether the collection can tell a late insert.
    first_look: FirstLook,
    types: PhantomData<fn() -> T>,
    fence: Fence,
}

impl<T: Send + Sync> GuardedCollection<T> {
    /// Guards the documents of this collection with the fence of a lease, perhaps one that another process passed on.
    /// Sends nothing yet.
    pub fn new(collection: &Collection<T>, fence: Fence) -> Self {
        Self {
            documents: Collections::new(collection),
            first_look: FirstLook::default(),
            types: PhantomData,
            fence,
        }
    }

    /// Sets whether a write must be in the server's journal before it is acknowledged. The default is `true`. A server
    /// without a journal refuses that with [`Error::NoJournal`].
    ///
    /// With `false`, a server that is killed may come back without writes that it has acknowledged, and without their
    /// fences.
    pub fn journal(mut self, journal: bool) -> Self {
        self.documents = self.documents.journal(journal);
        self
    }

    /// The fence that each write carries.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Updates one document, by an update document or a pipeline. The update is [stamped](Fence::stamp) with the fence.
    pub fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> GuardedUpdate<'static> {
        self.changed(filter, Ok(WriteBody::Update(self.fence.stamp(update))))
    }

    /// Replaces one document. The fence is added to the replacement, and overwrites a fence that is in it.
    pub fn replace_one(&self, filter: Document, replacement: &T) -> GuardedUpdate<'static>
    where
        T: Serialize,
    {
        let document = bson_compat::document(replacement);
        let replaced = |document| WriteBody::Replace(self.fence.stamp_document(document));
        self.changed(filter, document.map(replaced))
    }

    /// Updates one document, and returns it as it is after the update. `None` if no document was matched.
    pub fn find_one_and_update(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> GuardedFind<'static, T> {
        self.found(filter, Creates::Nothing, Ok(self.fence.stamp(update)))
    }

    /// Records the fence in the document with this `_id`, changes nothing else, and returns the document. `None` if the
    /// document does not exist.
    ///
    /// A holder that is going to write reads the document by this. From then on no earlier holder can write to it. To
    /// claim a document by a field other than its `_id`, use [`find_one_and_update`](Self::find_one_and_update) with an
    /// empty update.
    pub fn claim(&self, id: impl Into<Bson>) -> GuardedFind<'static, T> {
        self.find_one_and_update(by_id(id), Document::new())
    }

    /// As [`claim`](Self::claim), but a missing document is inserted: `first`, with the `_id` of this call instead of
    /// its own. The server reads a dot in the name of a field of `first` as a path, and refuses a name that begins with
    /// `$`: insert a document with such names by [`insert_one`](Self::insert_one).
    ///
    /// ```no_run
    /// # use leasehold::{Error, Fence, fencing::GuardedCollection};
    /// # use mongodb::{Collection, bson::{Document, doc}};
    /// # async fn example(accounts: Collection<Document>, fence: Fence) -> Result<(), Error> {
    /// let accounts = GuardedCollection::new(&accounts, fence);
    /// let account = accounts.claim_or_insert(7, &doc! { "balance": 0_i64 }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim_or_insert(&self, id: impl Into<Bson>, first: &T) -> GuardedFind<'static, T>
    where
        T: Serialize,
    {
        let update = bson_compat::document(first).map(|mut first| {
            first.remove("_id");
            first.remove(Fence::FIELD);
            let update = if first.is_empty() {
                first
            } else {
                doc! { "$setOnInsert": first }
            };
            self.fence.stamp(update)
        });
        self.found(by_id(id), Creates::Upsert, update)
    }

    /// Inserts a document, with the fence in it.
    ///
    /// A missing document has no fence, so a stale holder may insert it. If the document exists and has seen a newer
    /// fence, the error is [`Error::Fenced`]. If it exists otherwise, the error is that of a duplicate key, as without
    /// a guard.
    ///
    /// An id can be there twice in a time series, so no insert would find out who was there: it is refused with
    /// [`Error::Store`], and nothing is sent. To know that, the first insert of each `GuardedCollection` looks at the
    /// collection (`listCollections`). A user who may not list collections is not told.
    pub fn insert_one(&self, document: &T) -> GuardedInsert<'static>
    where
        T: Serialize,
    {
        let document = bson_compat::document(document).map(|document| {
            let mut document = self.fence.stamp_document(document);
            if !document.contains_key("_id") {
                document.insert("_id", ObjectId::new());
            }
            document
        });
        let id = document.as_ref().ok().and_then(|it| it.get("_id"));
        let target = self.target(by_id(id.cloned()), Creates::Insert);
        GuardedInsert {
            write: Pending::new(target, document.map(Insert)),
        }
    }

    /// Removes one document, and its fence with it. A stale holder may then insert the document again: [see
    /// above](GuardedCollection#what-it-guarantees-and-what-it-does-not).
    pub fn delete_one(&self, filter: Document) -> GuardedDelete<'static> {
        let target = self.target(filter, Creates::Nothing);
        GuardedDelete {
            write: Pending::new(target, Ok(Delete)),
        }
    }

    fn changed(
        &self,
        filter: Document,
        change: Result<WriteBody, Error>,
    ) -> GuardedUpdate<'static> {
        let target = self.target(filter, Creates::Nothing);
        GuardedUpdate {
            write: Pending::new(target, change),
        }
    }

    fn found(
        &self,
        filter: Document,
        creates: Creates,
        update: Result<UpdateModifications, Error>,
    ) -> GuardedFind<'static, T> {
        let target = self.target(filter, creates);
        GuardedFind {
            write: Pending::new(target, update.map(FindAndUpdate)),
            read_as: PhantomData,
        }
    }

    fn target(&self, filter: Document, creates: Creates) -> GuardedTarget {
        GuardedTarget {
            documents: self.documents.clone(),
            first_look: self.first_look.clone(),
            fence: self.fence,
            filter,
            creates,
        }
    }
}

/// A filter by `_id`. It has an `$eq`, because an `_id` may be a document, which would otherwise be read as operators.
fn by_id(id: impl Into<Bson>) -> Document {
    doc! { "_id": { "$eq": id.into() } }
}

impl<T: Send + Sync> fmt::Debug for GuardedCollection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is left out, because its options contain the credentials.
        f.debug_struct("GuardedCollection")
            .field(
                "collection",
                &self.documents.reads().namespace().to_string(),
            )
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

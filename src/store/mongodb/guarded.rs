//! The user's own documents, written under a fence.

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
        Change, Delete, Find, GuardedDelete, GuardedFind, GuardedInsert, GuardedUpdate, Insert,
        Update,
    },
    send::{Creates, Target},
};
use super::{concern::DurableCollection, write_down};
use crate::model::{Error, Fence};

/// Writes to the application's own collection that are refused once a later holder has written.
///
/// A lease alone cannot stop a holder that was paused past its expiry and then goes on: nobody but the
/// document itself sees its write come after that of the next holder. So each document keeps the newest
/// fence that it has seen, in the field [`Fence::FIELD`], and each write is one atomic statement that
/// finds the document only if it has seen no newer one, and leaves its own there. A write that comes too
/// late is [`Error::Fenced`]. This works on any deployment, a standalone server too.
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold::{Leases, mongodb::GuardedCollection};
/// # use mongodb::{Collection, bson::{Document, doc}};
/// # async fn example(leases: Leases, accounts: Collection<Document>) -> Result<(), leasehold::Error> {
/// let lease = leases.acquire("account:7", Duration::from_secs(30)).await?;
/// let guarded = GuardedCollection::new(&accounts, lease.fence());
/// // First the fence, then the read.
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
/// **Show the fence before you read:** [`claim`](GuardedCollection::claim) leaves the fence in the
/// document and gives the document back, in one step. After a plain read a holder that was paused may
/// still write, as long as the new one has not, and the new one would compute with what is no longer
/// there. After a claim nobody before it can write any more.
///
/// A document that does not exist keeps no fence. [`claim_or_insert`](GuardedCollection::claim_or_insert) makes
/// it with the claim.
///
/// # What it guarantees, and what not
///
/// - It holds for a document that is written under leases of **one key, exclusive ones**. Those who share
///   a key, or have some of its permits, hold it at the same time with fences of their own, and would
///   fence each other off: do not use it there. [`Lease::upgrade`](crate::Lease::upgrade) gives a new
///   fence.
/// - **[Reentrant](crate::Acquire::reentrant) leases have the fence of their owner.** A process that was
///   restarted under the same name, and enters while a lease of the paused one is live, has its fence too,
///   and does not fence it off. Let the name of the owner be of one run of the process, as it is by
///   default, or do not use `reentrant` here.
/// - **All who write must stamp.** A writer that knows nothing of fences is not stopped, and one that
///   replaces the whole document drops the fence with it. To begin: roll out writers that guard and stamp,
///   until no other is left; from then on it holds. Documents from before are found, and have a fence from
///   the first guarded write on. A new way to write needs the guard from its first day.
/// - **Deleting a document deletes its fence**, and of a document that does not exist there is no fence to
///   compare with: a stale holder may insert it anew. Keep a tombstone instead (an update that marks it as
///   deleted), or write in a transaction with [`Lease::enforce`](crate::Lease::enforce).
/// - A filter by `_id` tells a stale holder every time. With any other filter it may find no document,
///   because the newer holder has changed what the filter asks for, and then it is told that there is
///   none.
/// - A write is acknowledged by a majority, or the standalone server, when it is in its journal, whatever
///   the collection's write concern, as a lock is: one that a single member has confirmed can be rolled back,
///   one that is in no journal is lost with a kill, and the fence with it. To know which of the two it is,
///   the first write asks the server (`hello`). In a transaction the transaction's own write concern counts:
///   set it to a majority and the journal, as [`Lease::enforce`](crate::Lease::enforce) says.
/// - **The fence of the same holder passes again**, so its own writes are not put in order. One whose
///   future was dropped, or that was given up after a time, may land after the next one of the same holder.
///   If the answer was lost ([`Error::is_ambiguous`]) the write may be repeated, and `$set` does not mind
///   that if nothing else was written since; an `$inc` counts twice, unless the filter says from which
///   state.
/// - **The field must be ours.** What is in it and is no number stops nobody, and the first guarded write
///   puts the fence in its place.
///
/// A type that is read must not mind the field, as it would with serde's `deny_unknown_fields`. A document
/// that the type cannot be read from is [`Error::Store`], with the error of `bson` as its source, and the
/// write has been carried out.
///
/// # Errors
///
/// [`Error::Fenced`] if the document has seen a newer fence: nothing was written, and nothing more should
/// be. That there is no document is no error: nothing is matched, or `None`. Otherwise what the server
/// answers, with the driver's error as its source.
///
/// # Cancel safety
///
/// A write runs to its end in a task of its own; dropping its future only stops the waiting. It waits for
/// an answer without a limit: put `tokio::time::timeout` around it. With a session it runs in the caller's
/// task, as the driver's own writes do.
pub struct GuardedCollection<T: Send + Sync> {
    documents: DurableCollection<Document>,
    types: PhantomData<fn() -> T>,
    fence: Fence,
}

impl<T: Send + Sync> GuardedCollection<T> {
    /// The collection under the fence of a lease, or under one that another process handed over.
    pub fn new(collection: &Collection<T>, fence: Fence) -> Self {
        Self {
            documents: DurableCollection::new(collection),
            types: PhantomData,
            fence,
        }
    }

    /// Whether a write is to be in the server's journal before it counts; it is by default. A server without
    /// a journal refuses that with [`Error::NoJournal`]. With `false` a server that is killed may come back
    /// without writes that it has acknowledged, and without their fences.
    pub fn journal(mut self, journal: bool) -> Self {
        self.documents = self.documents.journal(journal);
        self
    }

    /// The fence that every write shows.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Updates one document: by an update document or a pipeline, [stamped](Fence::stamp) with the
    /// fence.
    pub fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> GuardedUpdate<'static> {
        self.changed(filter, Ok(Change::Update(self.fence.stamp(update))))
    }

    /// Replaces one document. The fence is added to the replacement, or overwrites that which is in it.
    pub fn replace_one(&self, filter: Document, replacement: &T) -> GuardedUpdate<'static>
    where
        T: Serialize,
    {
        let document = write_down::document(replacement);
        let replaced = |document| Change::Replace(self.fence.stamp_document(document));
        self.changed(filter, document.map(replaced))
    }

    /// Updates one document, and gives it back as it is then.
    pub fn find_one_and_update(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> GuardedFind<'static, T> {
        let statement = Find {
            target: self.target(filter, Creates::Nothing),
            update: self.fence.stamp(update),
        };
        GuardedFind {
            statement: Ok(statement),
            session: None,
            read_as: PhantomData,
        }
    }

    /// Shows the document with this `_id` the fence, changes nothing else, and gives the document back: the read
    /// of a holder that is going to write. From then on no earlier holder can write it. `None` if there is none.
    ///
    /// A document that is found by something else than its `_id` is claimed by
    /// [`find_one_and_update`](Self::find_one_and_update) with an update that is empty.
    pub fn claim(&self, id: impl Into<Bson>) -> GuardedFind<'static, T> {
        self.find_one_and_update(by_id(id), Document::new())
    }

    /// The same, but for a document that is not there: this one is inserted then, with this `_id`, whatever
    /// its own.
    pub fn claim_or_insert(&self, id: impl Into<Bson>, first: &T) -> GuardedFind<'static, T>
    where
        T: Serialize,
    {
        let statement = write_down::document(first).map(|mut first| {
            first.remove("_id");
            first.remove(Fence::FIELD);
            let update = match first.is_empty() {
                true => first,
                false => doc! { "$setOnInsert": first },
            };
            Find {
                target: self.target(by_id(id), Creates::Upsert),
                update: self.fence.stamp(update),
            }
        });
        GuardedFind {
            statement,
            session: None,
            read_as: PhantomData,
        }
    }

    /// Inserts a document, with the fence in it.
    ///
    /// Of a document that is not there nobody knows a fence, so a stale holder may insert it. One that is
    /// there and has seen a newer fence is [`Error::Fenced`]; any other with the same `_id` is the
    /// duplicate key that it is without a guard.
    pub fn insert_one(&self, document: &T) -> GuardedInsert<'static>
    where
        T: Serialize,
    {
        let statement = write_down::document(document).map(|document| {
            let mut document = self.fence.stamp_document(document);
            if !document.contains_key("_id") {
                document.insert("_id", ObjectId::new());
            }
            let id = document.get("_id").cloned();
            Insert {
                target: self.target(by_id(id), Creates::Insert),
                document,
            }
        });
        GuardedInsert {
            statement,
            session: None,
        }
    }

    /// Removes one document, and with it the fence: see above.
    pub fn delete_one(&self, filter: Document) -> GuardedDelete<'static> {
        let target = self.target(filter, Creates::Nothing);
        GuardedDelete {
            statement: Ok(Delete { target }),
            session: None,
        }
    }

    fn changed(&self, filter: Document, change: Result<Change, Error>) -> GuardedUpdate<'static> {
        let target = self.target(filter, Creates::Nothing);
        GuardedUpdate {
            statement: change.map(|change| Update { target, change }),
            session: None,
        }
    }

    fn target(&self, filter: Document, creates: Creates) -> Target {
        Target {
            documents: self.documents.clone(),
            fence: self.fence,
            filter,
            creates,
        }
    }
}

/// An `_id` may be a document, which would be a filter of its own.
fn by_id(id: impl Into<Bson>) -> Document {
    doc! { "_id": { "$eq": id.into() } }
}

impl<T: Send + Sync> fmt::Debug for GuardedCollection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: its options hold the credentials.
        f.debug_struct("GuardedCollection")
            .field(
                "collection",
                &self.documents.reads().namespace().to_string(),
            )
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

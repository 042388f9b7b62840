//! The guarded writes that the caller awaits.

use std::{future::IntoFuture, marker::PhantomData};

use futures::future::BoxFuture;
use mongodb::{
    ClientSession, Collection,
    bson::{Document, RawDocumentBuf},
    error::Error as DriverError,
    options::{ReturnDocument, UpdateModifications},
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use serde::de::DeserializeOwned;

use super::{
    super::bson_compat,
    send::{Creates, GuardedTarget, GuardedWrite, Pending, send_in},
};
use crate::model::Error;

/// The methods that every guarded write has.
macro_rules! in_sessions {
    ($action:ident $(<$of:ident>)?) => {
        impl<'a $(, $of: Send + Sync)?> $action<'a $(, $of)?> {
            /// Carries out the write in this session, and so in its transaction if the session is in one.
            ///
            /// The error [`Error::TransactionAborted`] then means that the whole transaction can be run again.
            ///
            /// # Cancel safety
            ///
            /// Not cancel safe: the write runs in the caller's own task, because it borrows the session. If the future
            /// is dropped midway, the session can no longer be used.
            pub fn session(mut self, session: impl Into<&'a mut ClientSession>) -> Self {
                self.write.session = Some(session.into());
                self
            }
        }
    };
}

/// The parts of the guarded writes that return the driver's own result.
macro_rules! guarded {
    ($action:ident, $output:ty) => {
        in_sessions!($action);

        impl<'a> IntoFuture for $action<'a> {
            type Output = Result<$output, Error>;
            type IntoFuture = BoxFuture<'a, Self::Output>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.write.carry_out())
            }
        }
    };
}

/// An update or a replacement of one document, made by [`update_one`](crate::fencing::GuardedCollection::update_one) or
/// [`replace_one`](crate::fencing::GuardedCollection::replace_one). Awaiting it sends the write, and gives the driver's
/// `UpdateResult`.
///
/// [`GuardedCollection`](crate::fencing::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedUpdate<'a> {
    pub(super) write: Pending<'a, WriteBody>,
}

impl GuardedUpdate<'_> {
    /// Inserts the document if it does not exist.
    ///
    /// The filter must have a top-level `_id` with the value of the document. Otherwise the error is
    /// [`Error::InvalidUpsert`], and nothing is sent. With the `_id`, the insert of a stale holder conflicts with the
    /// existing document. The holder then gets [`Error::Fenced`], instead of inserting a second document.
    ///
    /// On a sharded collection whose shard key is not `_id`, an `_id` is unique on its shard only. There the filter
    /// must also have the shard key, by equality, and no document may change it.
    ///
    /// In a session nothing is sent twice. If two writers insert the document at the same time, one of them may get the
    /// error of a duplicate key.
    ///
    /// ```no_run
    /// # use leasehold::{Error, Fence, fencing::GuardedCollection};
    /// # use mongodb::{Collection, bson::{Document, doc}};
    /// # async fn example(accounts: Collection<Document>, fence: Fence) -> Result<(), Error> {
    /// GuardedCollection::new(&accounts, fence)
    ///     .update_one(doc! { "_id": 7 }, doc! { "$set": { "balance": 0_i64 } })
    ///     .upsert()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn upsert(mut self) -> Self {
        self.write.target.creates = Creates::Upsert;
        self
    }
}

guarded!(GuardedUpdate, UpdateResult);

pub(super) enum WriteBody {
    Update(UpdateModifications),
    Replace(Document),
}

impl GuardedWrite for WriteBody {
    type Answer = UpdateResult;

    async fn send(
        &self,
        target: &GuardedTarget,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<UpdateResult, DriverError> {
        let (filter, upsert) = (target.guarded(), target.upsert());
        match self {
            Self::Update(update) => {
                let update = documents.update_one(filter, update.clone());
                send_in!(session, update.upsert(upsert))
            }
            Self::Replace(document) => {
                let replacement = documents.replace_one(filter, document);
                send_in!(session, replacement.upsert(upsert))
            }
        }
    }

    fn has_written(answer: &UpdateResult) -> bool {
        answer.matched_count > 0 || answer.upserted_id.is_some()
    }
}

/// A write that updates one document, or only records the fence in it, and returns the document as it is after that.
/// Made by [`claim`](crate::fencing::GuardedCollection::claim),
/// [`claim_or_insert`](crate::fencing::GuardedCollection::claim_or_insert) or
/// [`find_one_and_update`](crate::fencing::GuardedCollection::find_one_and_update). Awaiting it sends the write, and
/// gives `None` if no document was matched.
///
/// [`GuardedCollection`](crate::fencing::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedFind<'a, T: Send + Sync> {
    pub(super) write: Pending<'a, FindAndUpdate>,
    pub(super) read_as: PhantomData<T>,
}

impl<T: Send + Sync> GuardedFind<'_, T> {
    /// Inserts the document if it does not exist, under the conditions of [`GuardedUpdate::upsert`].
    pub fn upsert(mut self) -> Self {
        self.write.target.creates = Creates::Upsert;
        self
    }
}

in_sessions!(GuardedFind<T>);

impl<'a, T: DeserializeOwned + Send + Sync + 'static> IntoFuture for GuardedFind<'a, T> {
    type Output = Result<Option<T>, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let write = self.write;
        Box::pin(async move {
            let found = write.carry_out().await?;
            found.map(|raw| bson_compat::value(&raw)).transpose()
        })
    }
}

pub(super) struct FindAndUpdate(pub(super) UpdateModifications);

/// The driver returns the raw document, which is then read as the application's type. If the driver read it, the error
/// of a document that does not fit the type would look like that of a lost answer.
impl GuardedWrite for FindAndUpdate {
    type Answer = Option<RawDocumentBuf>;

    async fn send(
        &self,
        target: &GuardedTarget,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<Option<RawDocumentBuf>, DriverError> {
        let raw = documents.clone_with_type::<RawDocumentBuf>();
        let find = raw
            .find_one_and_update(target.guarded(), self.0.clone())
            .upsert(target.upsert())
            .return_document(ReturnDocument::After);
        send_in!(session, find)
    }

    fn has_written(answer: &Option<RawDocumentBuf>) -> bool {
        answer.is_some()
    }
}

/// An insert of one document, made by [`insert_one`](crate::fencing::GuardedCollection::insert_one). Awaiting it sends
/// the write, and gives the driver's `InsertOneResult`.
///
/// [`GuardedCollection`](crate::fencing::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedInsert<'a> {
    pub(super) write: Pending<'a, Insert>,
}

guarded!(GuardedInsert, InsertOneResult);

pub(super) struct Insert(pub(super) Document);

impl GuardedWrite for Insert {
    type Answer = InsertOneResult;

    async fn send(
        &self,
        _: &GuardedTarget,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<InsertOneResult, DriverError> {
        send_in!(session, documents.insert_one(&self.0))
    }

    fn has_written(_: &InsertOneResult) -> bool {
        true
    }
}

/// A removal of one document, made by [`delete_one`](crate::fencing::GuardedCollection::delete_one). Awaiting it sends
/// the write, and gives the driver's `DeleteResult`.
///
/// [`GuardedCollection`](crate::fencing::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedDelete<'a> {
    pub(super) write: Pending<'a, Delete>,
}

guarded!(GuardedDelete, DeleteResult);

pub(super) struct Delete;

impl GuardedWrite for Delete {
    type Answer = DeleteResult;

    async fn send(
        &self,
        target: &GuardedTarget,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<DeleteResult, DriverError> {
        send_in!(session, documents.delete_one(target.guarded()))
    }

    fn has_written(answer: &DeleteResult) -> bool {
        answer.deleted_count > 0
    }
}

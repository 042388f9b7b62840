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
    send::{Creates, GuardedTarget, GuardedWrite, carry_out},
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
                self.session = Some(session.into());
                self
            }
        }
    };
}

/// The parts of the guarded writes that return the driver's own result.
macro_rules! guarded {
    ($action:ident, $statement:ty, $output:ty) => {
        in_sessions!($action);

        impl<'a> IntoFuture for $action<'a> {
            type Output = Result<$output, Error>;
            type IntoFuture = BoxFuture<'a, Self::Output>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(carry_out::<$statement>(self.statement, self.session))
            }
        }
    };
}

/// An update or a replacement of one document, made by [`update_one`](crate::mongodb::GuardedCollection::update_one) or
/// [`replace_one`](crate::mongodb::GuardedCollection::replace_one). Awaiting it sends the write, and gives the driver's
/// `UpdateResult`.
///
/// [`GuardedCollection`](crate::mongodb::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedUpdate<'a> {
    pub(super) statement: Result<Update, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
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
    /// # use leasehold::{Error, Fence, mongodb::GuardedCollection};
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
        if let Ok(update) = &mut self.statement {
            update.target.creates = Creates::Upsert;
        }
        self
    }
}

guarded!(GuardedUpdate, Update, UpdateResult);

pub(super) struct Update {
    pub(super) target: GuardedTarget,
    pub(super) change: WriteBody,
}

pub(super) enum WriteBody {
    Update(UpdateModifications),
    Replace(Document),
}

impl GuardedWrite for Update {
    type Answer = UpdateResult;

    fn target(&self) -> &GuardedTarget {
        &self.target
    }

    async fn send(
        &self,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<UpdateResult, DriverError> {
        let (target, filter) = (&self.target, self.target.guarded());
        match &self.change {
            WriteBody::Update(update) => {
                let update = documents.update_one(filter, update.clone());
                let update = update.upsert(target.upsert());
                match session {
                    Some(session) => update.session(session).await,
                    None => update.await,
                }
            }
            WriteBody::Replace(document) => {
                let replacement = documents.replace_one(filter, document);
                let replacement = replacement.upsert(target.upsert());
                match session {
                    Some(session) => replacement.session(session).await,
                    None => replacement.await,
                }
            }
        }
    }

    fn has_written(answer: &UpdateResult) -> bool {
        answer.matched_count > 0 || answer.upserted_id.is_some()
    }
}

/// A write that updates one document, or only records the fence in it, and returns the document as it is after that.
/// Made by [`claim`](crate::mongodb::GuardedCollection::claim),
/// [`claim_or_insert`](crate::mongodb::GuardedCollection::claim_or_insert) or
/// [`find_one_and_update`](crate::mongodb::GuardedCollection::find_one_and_update). Awaiting it sends the write, and
/// gives `None` if no document was matched.
///
/// [`GuardedCollection`](crate::mongodb::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedFind<'a, T: Send + Sync> {
    pub(super) statement: Result<FindAndUpdate, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
    pub(super) read_as: PhantomData<T>,
}

impl<T: Send + Sync> GuardedFind<'_, T> {
    /// Inserts the document if it does not exist, under the conditions of [`GuardedUpdate::upsert`].
    pub fn upsert(mut self) -> Self {
        if let Ok(find) = &mut self.statement {
            find.target.creates = Creates::Upsert;
        }
        self
    }
}

in_sessions!(GuardedFind<T>);

impl<'a, T: DeserializeOwned + Send + Sync + 'static> IntoFuture for GuardedFind<'a, T> {
    type Output = Result<Option<T>, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            statement, session, ..
        } = self;
        Box::pin(async move {
            let found = carry_out(statement, session).await?;
            found.map(|raw| bson_compat::value(&raw)).transpose()
        })
    }
}

pub(super) struct FindAndUpdate {
    pub(super) target: GuardedTarget,
    pub(super) update: UpdateModifications,
}

/// The driver returns the raw document, which is then read as the application's type. If the driver read it, the error
/// of a document that does not fit the type would look like that of a lost answer.
impl GuardedWrite for FindAndUpdate {
    type Answer = Option<RawDocumentBuf>;

    fn target(&self) -> &GuardedTarget {
        &self.target
    }

    async fn send(
        &self,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<Option<RawDocumentBuf>, DriverError> {
        let raw = documents.clone_with_type::<RawDocumentBuf>();
        let find = raw
            .find_one_and_update(self.target.guarded(), self.update.clone())
            .upsert(self.target.upsert())
            .return_document(ReturnDocument::After);
        match session {
            Some(session) => find.session(session).await,
            None => find.await,
        }
    }

    fn has_written(answer: &Option<RawDocumentBuf>) -> bool {
        answer.is_some()
    }
}

/// An insert of one document, made by [`insert_one`](crate::mongodb::GuardedCollection::insert_one). Awaiting it sends
/// the write, and gives the driver's `InsertOneResult`.
///
/// [`GuardedCollection`](crate::mongodb::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedInsert<'a> {
    pub(super) statement: Result<Insert, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

guarded!(GuardedInsert, Insert, InsertOneResult);

pub(super) struct Insert {
    pub(super) target: GuardedTarget,
    pub(super) document: Document,
}

impl GuardedWrite for Insert {
    type Answer = InsertOneResult;

    fn target(&self) -> &GuardedTarget {
        &self.target
    }

    async fn send(
        &self,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<InsertOneResult, DriverError> {
        let insert = documents.insert_one(&self.document);
        match session {
            Some(session) => insert.session(session).await,
            None => insert.await,
        }
    }

    fn has_written(_: &InsertOneResult) -> bool {
        true
    }
}

/// A removal of one document, made by [`delete_one`](crate::mongodb::GuardedCollection::delete_one). Awaiting it sends
/// the write, and gives the driver's `DeleteResult`.
///
/// [`GuardedCollection`](crate::mongodb::GuardedCollection) says which errors there are, and what a dropped future
/// means.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedDelete<'a> {
    pub(super) statement: Result<Delete, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

guarded!(GuardedDelete, Delete, DeleteResult);

pub(super) struct Delete {
    pub(super) target: GuardedTarget,
}

impl GuardedWrite for Delete {
    type Answer = DeleteResult;

    fn target(&self) -> &GuardedTarget {
        &self.target
    }

    async fn send(
        &self,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<DeleteResult, DriverError> {
        let delete = documents.delete_one(self.target.guarded());
        match session {
            Some(session) => delete.session(session).await,
            None => delete.await,
        }
    }

    fn has_written(answer: &DeleteResult) -> bool {
        answer.deleted_count > 0
    }
}

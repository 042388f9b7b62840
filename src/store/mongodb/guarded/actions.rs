//! Guarded writes on their way: what is awaited.

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
    super::write_down,
    send::{Creates, Statement, Target, carry_out},
};
use crate::model::Error;

/// What all guarded writes have in common.
macro_rules! in_sessions {
    ($action:ident $(<$of:ident>)?) => {
        impl<'a $(, $of: Send + Sync)?> $action<'a $(, $of)?> {
            /// Carries it out in this session, and so in its transaction, if it is in one.
            ///
            /// [`Error::TransactionAborted`] then says that the whole transaction can be run again. It
            /// runs in the caller's own task, because the session does: dropping the future midway
            /// leaves the session of no use.
            pub fn session(mut self, session: impl Into<&'a mut ClientSession>) -> Self {
                self.session = Some(session.into());
                self
            }
        }
    };
}

/// What the guarded writes have in common that give back the driver's own result.
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

/// An update or a replacement of one document, made by
/// [`GuardedCollection`](crate::mongodb::GuardedCollection). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedUpdate<'a> {
    pub(super) statement: Result<Update, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

impl GuardedUpdate<'_> {
    /// Inserts the document if there is none.
    ///
    /// The filter must have a top-level `_id` with the value of the document. So a stale holder runs
    /// into the document that is there, and is told [`Error::Fenced`], instead of inserting a second
    /// one beside it. Otherwise it is [`Error::InvalidUpsert`], and nothing is sent.
    ///
    /// On a sharded collection whose shard key is not `_id`, an `_id` is unique on its shard only: there
    /// the filter must have the shard key as well, also by equality, and no document may change it.
    ///
    /// In a session nothing is sent twice: of two that insert the document at the same time, one may be
    /// told of a duplicate key.
    pub fn upsert(mut self) -> Self {
        if let Ok(update) = &mut self.statement {
            update.target.creates = Creates::Upsert;
        }
        self
    }
}

guarded!(GuardedUpdate, Update, UpdateResult);

pub(super) struct Update {
    pub(super) target: Target,
    pub(super) change: Change,
}

pub(super) enum Change {
    Update(UpdateModifications),
    Replace(Document),
}

impl Statement for Update {
    type Answer = UpdateResult;

    fn target(&self) -> &Target {
        &self.target
    }

    async fn send(
        &self,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<UpdateResult, DriverError> {
        let (target, filter) = (&self.target, self.target.guarded());
        match &self.change {
            Change::Update(update) => {
                let update = documents.update_one(filter, update.clone());
                let update = update.upsert(target.upsert());
                match session {
                    Some(session) => update.session(session).await,
                    None => update.await,
                }
            }
            Change::Replace(document) => {
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

/// An update of one document that gives it back as it left it, made by
/// [`GuardedCollection`](crate::mongodb::GuardedCollection). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedFind<'a, T: Send + Sync> {
    pub(super) statement: Result<Find, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
    pub(super) read_as: PhantomData<T>,
}

impl<T: Send + Sync> GuardedFind<'_, T> {
    /// Inserts the document if there is none, as [`GuardedUpdate::upsert`] does.
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
            found.map(|raw| write_down::value(&raw)).transpose()
        })
    }
}

pub(super) struct Find {
    pub(super) target: Target,
    pub(super) update: UpdateModifications,
}

/// The document is read as the type of the application only when it is here. The driver would tell one
/// that cannot be read like an answer that was lost.
impl Statement for Find {
    type Answer = Option<RawDocumentBuf>;

    fn target(&self) -> &Target {
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

/// A new document, made by [`GuardedCollection`](crate::mongodb::GuardedCollection). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedInsert<'a> {
    pub(super) statement: Result<Insert, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

guarded!(GuardedInsert, Insert, InsertOneResult);

pub(super) struct Insert {
    pub(super) target: Target,
    pub(super) document: Document,
}

impl Statement for Insert {
    type Answer = InsertOneResult;

    fn target(&self) -> &Target {
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

/// A removal of one document, made by [`GuardedCollection`](crate::mongodb::GuardedCollection). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct GuardedDelete<'a> {
    pub(super) statement: Result<Delete, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

guarded!(GuardedDelete, Delete, DeleteResult);

pub(super) struct Delete {
    pub(super) target: Target,
}

impl Statement for Delete {
    type Answer = DeleteResult;

    fn target(&self) -> &Target {
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

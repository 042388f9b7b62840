//! Sends one guarded statement, finds the reason if it matches no document, and sends it again after a race.

use std::time::Duration;

use mongodb::{
    ClientSession, Collection,
    bson::{Bson, Document, doc},
    error::Error as DriverError,
};

use super::super::{
    MAX_SENDS,
    concern::Collections,
    error::{DUPLICATE_KEY, STORE, classify_of_any_collection, code},
    fitness::ensure_ids_are_unique,
    look::FirstLook,
    statements::integer,
};
use crate::{
    model::{Error, Fence},
    runtime,
};

/// Sends an action of the driver, in a session if there is one.
macro_rules! send_in {
    ($session:expr, $action:expr) => {
        match $session {
            Some(session) => $action.session(session).await,
            None => $action.await,
        }
    };
}
pub(super) use send_in;

/// A write that matches only documents without a newer fence.
pub(super) trait GuardedWrite: Send + Sync + 'static {
    type Answer: Send + 'static;

    fn send(
        &self,
        target: &GuardedTarget,
        documents: &Collection<Document>,
        session: Option<&mut ClientSession>,
    ) -> impl Future<Output = Result<Self::Answer, DriverError>> + Send;

    /// Whether the answer says that the statement has written a document.
    fn has_written(answer: &Self::Answer) -> bool;
}

/// The documents that a write is meant for, and its fence.
pub(super) struct GuardedTarget {
    pub(super) documents: Collections<Document>,
    pub(super) first_look: FirstLook,
    pub(super) fence: Fence,
    /// The filter of the caller.
    pub(super) filter: Document,
    pub(super) creates: Creates,
}

/// Whether a missing document is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Creates {
    Nothing,
    Upsert,
    Insert,
}

/// A write that was not sent yet.
pub(super) struct Pending<'a, W> {
    pub(super) target: GuardedTarget,
    /// What is written, or why the value of the caller cannot be.
    pub(super) body: Result<W, Error>,
    pub(super) session: Option<&'a mut ClientSession>,
}

impl<W: GuardedWrite> Pending<'_, W> {
    pub(super) fn new(target: GuardedTarget, body: Result<W, Error>) -> Self {
        Self {
            target,
            body,
            session: None,
        }
    }

    /// Carries out the write: in the session of the caller, or to its end in a task of its own.
    pub(super) async fn carry_out(self) -> Result<W::Answer, Error> {
        let (target, body) = (self.target, self.body?);
        if target.upsert() && pinned(&target.filter).is_none() {
            return Err(Error::InvalidUpsert);
        }
        match self.session {
            Some(session) => {
                // The error of a duplicate key would end the transaction, and its reason could no longer be looked up.
                // So the fence is checked before the write.
                if target.creates != Creates::Nothing {
                    target.refuse_if_overtaken(Some(&mut *session)).await?;
                }
                target.write(&body, Some(session)).await
            }
            // The write itself has no time limit. The caller may stop waiting for it.
            None => {
                let work = async move { target.write(&body, None).await };
                let name = || STORE.to_owned();
                runtime::call("a guarded write", Duration::MAX, name, work).await
            }
        }
    }
}

impl GuardedTarget {
    async fn write<W: GuardedWrite>(
        &self,
        write: &W,
        session: Option<&mut ClientSession>,
    ) -> Result<W::Answer, Error> {
        let outcome = self.write_or_find_reason(write, session).await;
        self.documents.answered(outcome)
    }

    async fn write_or_find_reason<W: GuardedWrite>(
        &self,
        write: &W,
        mut session: Option<&mut ClientSession>,
    ) -> Result<W::Answer, Error> {
        if self.creates == Creates::Insert {
            let (look, documents) = (&self.first_look, &self.documents);
            look.ensure_fit(documents, ensure_ids_are_unique).await?;
        }
        let documents = self.documents.durable_writes().await?;
        let in_session = session.is_some();
        let mut sent = 0;
        loop {
            sent += 1;
            let error = match write.send(self, documents, session.as_deref_mut()).await {
                Ok(answer) => {
                    if !W::has_written(&answer) {
                        self.refuse_if_overtaken(session).await?;
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            // A duplicate key means that the document exists, and the guarded filter did not match it. Either the
            // document has seen a newer fence, or it was inserted just now, or another document has the same value in a
            // unique index.
            if self.creates == Creates::Nothing || code(&error) != Some(DUPLICATE_KEY) {
                return Err(classify_of_any_collection(error));
            }
            let again = self.creates == Creates::Upsert && !in_session && sent < MAX_SENDS;
            match self.refuse_if_overtaken(session.as_deref_mut()).await {
                Err(fenced @ Error::Fenced { .. }) => return Err(fenced),
                Ok(()) if again => {}
                // The first error counts. In a transaction, which that error has ended, the read fails as well, with an
                // error after which the transaction would be run again without end.
                _ => return Err(classify_of_any_collection(error)),
            }
        }
    }

    pub(super) fn guarded(&self) -> Document {
        self.fence.guard(self.filter.clone())
    }

    pub(super) fn upsert(&self) -> bool {
        self.creates == Creates::Upsert
    }

    /// Fails if a document that the write is meant for has seen a newer fence.
    async fn refuse_if_overtaken(&self, session: Option<&mut ClientSession>) -> Result<(), Error> {
        let find = self
            .documents
            .reads()
            .find_one(self.fence.overtaken(self.meant()))
            .projection(doc! { "_id": 0, Fence::FIELD: 1 });
        let found = send_in!(session, find);
        match found.map_err(classify_of_any_collection)? {
            None => Ok(()),
            Some(newer) => Err(Error::Fenced {
                fence: self.fence,
                seen: newer.get(Fence::FIELD).and_then(integer).map(Fence::new),
            }),
        }
    }

    /// A filter for the documents that the write is meant for. If the filter of the caller names an `_id`, the rest of
    /// it is left out, because a newer holder may have changed those fields.
    fn meant(&self) -> Document {
        match pinned(&self.filter) {
            Some(id) => doc! { "_id": { "$eq": id.clone() } },
            None => self.filter.clone(),
        }
    }
}

/// The `_id` that a filter compares for equality, if it has exactly one.
fn pinned(filter: &Document) -> Option<&Bson> {
    match filter.get("_id")? {
        Bson::RegularExpression(_) => None,
        Bson::Document(operators) if operators.keys().any(|name| name.starts_with('$')) => {
            operators.get("$eq").filter(|_| operators.len() == 1)
        }
        id => Some(id),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Regex;

    use super::*;

    #[test]
    fn a_filter_pins_an_id_only_by_equality() {
        for pins in [
            doc! { "_id": 7 },
            doc! { "_id": { "$eq": 7 } },
            doc! { "_id": { "a": 1, "b": 2 }, "state": "open" },
            doc! { "_id": Bson::Null },
        ] {
            assert!(pinned(&pins).is_some(), "{pins}");
        }
        let regex: Regex = serde_regex("^a");
        for loose in [
            doc! {},
            doc! { "state": "open" },
            doc! { "_id": { "$in": [7] } },
            doc! { "_id": { "$gte": 7, "$eq": 7 } },
            doc! { "_id": { "$regex": "^a" } },
            doc! { "_id": regex },
            doc! { "$and": [{ "_id": 7 }] },
        ] {
            assert!(pinned(&loose).is_none(), "{loose}");
        }
    }

    /// The two major versions of `bson` construct a `Regex` in different ways, and deserialize it in the same way.
    fn serde_regex(pattern: &str) -> Regex {
        let json = serde_json::json!({
            "$regularExpression": { "pattern": pattern, "options": "" },
        });
        serde_json::from_value(json).unwrap()
    }
}

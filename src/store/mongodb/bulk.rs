//! Many changes by one command, and a look at what they left by a second one.

use std::collections::HashMap;

use mongodb::bson::{Document, RawDocumentBuf, doc};

use super::{MongoStore, dialect, error::sorted};
use crate::model::{Cause, Error, Key};

/// What a command with many changes left.
pub(super) struct Left {
    /// The errors of single changes, by their place among the others.
    pub(super) failed: HashMap<usize, Document>,
    /// The documents that were to be shown, by their key.
    pub(super) documents: HashMap<String, RawDocumentBuf>,
}

/// How many documents a command changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    found: Option<usize>,
    changed: Option<usize>,
    failed: bool,
}

impl Changed {
    /// So many documents were found, and all of them changed.
    pub(super) fn all(number: usize) -> Self {
        Self {
            found: Some(number),
            changed: Some(number),
            failed: false,
        }
    }
}

/// One change among many, of the document of this key.
pub(super) fn statement(key: &Key, update: Vec<Document>, upsert: bool) -> Document {
    let mut statement = doc! { "q": dialect::filter(key), "u": update };
    if upsert {
        statement.insert("upsert", true);
    }
    statement
}

impl MongoStore {
    /// Sends these changes in one command, each of which is carried out for itself, and looks at the
    /// documents of these keys with a second one. The number of changed documents, which is all that the
    /// first one tells, says nothing about the single change.
    pub(super) async fn change_many(
        &self,
        statements: Vec<Document>,
        shown: Vec<&str>,
    ) -> Result<Left, Error> {
        let answer = self.send_all(statements).await?;
        Ok(Left {
            failed: failures(answer),
            documents: self.documents(shown).await.map_err(unread)?,
        })
    }

    /// Sends these changes in one command, and gives how many documents were changed.
    pub(super) async fn send_changes(&self, statements: Vec<Document>) -> Result<Changed, Error> {
        let answer = self.send_all(statements).await?;
        let number = |field| {
            let number = answer.get(field).and_then(dialect::integer);
            number.and_then(|number| usize::try_from(number).ok())
        };
        Ok(Changed {
            found: number("n"),
            changed: number("nModified"),
            failed: answer.contains_key("writeErrors"),
        })
    }

    async fn send_all(&self, statements: Vec<Document>) -> Result<Document, Error> {
        let command = doc! {
            "update": self.locks.reads().name(),
            "updates": statements,
            // A document that cannot be changed does not stop the rest.
            "ordered": false,
            "writeConcern": self.locks.write_concern().await?,
        };
        let locks = self.locks.reads();
        let database = locks.client().database(&locks.namespace().db);
        let answer = database.run_command(command).await.map_err(sorted)?;
        if answer.contains_key("writeConcernError") {
            return Err(Error::Interrupted {
                store: "MongoDB",
                source: Cause::text("the changes were not confirmed by a majority in time"),
            });
        }
        Ok(answer)
    }

    /// The documents of these keys, and the server's time with each.
    pub(super) async fn documents(
        &self,
        keys: Vec<&str>,
    ) -> Result<HashMap<String, RawDocumentBuf>, Error> {
        let mut documents = HashMap::with_capacity(keys.len());
        if keys.is_empty() {
            return Ok(documents);
        }
        // The batch has room for one more than there can be, so that the server sees with the first answer that
        // it has come to the end, and the driver does not ask for a second one.
        let all = u32::try_from(keys.len() + 1).unwrap_or(u32::MAX);
        let mut found = self
            .locks
            .reads()
            .find(doc! { "_id": { "$in": keys } })
            .projection(dialect::projection())
            .batch_size(all)
            .await
            .map_err(sorted)?;
        while found.advance().await.map_err(sorted)? {
            let document = found.current();
            if let Ok(key) = document.get_str("_id") {
                documents.insert(key.to_owned(), document.to_owned());
            }
        }
        Ok(documents)
    }
}

/// The changes were made, whatever kept them from being looked at.
fn unread(error: Error) -> Error {
    Error::Interrupted {
        store: "MongoDB",
        source: Cause::text(format!("the changes were made, and not answered: {error}")),
    }
}

fn failures(mut answer: Document) -> HashMap<usize, Document> {
    let errors = match answer.remove("writeErrors") {
        Some(mongodb::bson::Bson::Array(errors)) => errors,
        _ => Vec::new(),
    };
    errors
        .into_iter()
        .filter_map(|error| {
            let mongodb::bson::Bson::Document(error) = error else {
                return None;
            };
            let index = error.get("index").and_then(dialect::integer)?;
            Some((usize::try_from(index).ok()?, error))
        })
        .collect()
}

//! Sends many changes by one command. A second command reads the documents.

use std::collections::HashMap;

use mongodb::bson::{Document, RawDocumentBuf, doc};

use super::{
    concern::Collections,
    decode,
    error::{classify, interrupted},
    pipelines::Pipelines,
    statements,
};
use crate::model::{Error, Key};

/// The result of a command with many changes.
pub(super) struct BulkResult {
    /// The errors of single changes, by their index in the command.
    pub(super) failed: HashMap<usize, Document>,
    /// The documents that were asked for, by their key.
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
    /// The result if this many documents were found, and all of them changed.
    pub(super) fn all(number: usize) -> Self {
        Self {
            found: Some(number),
            changed: Some(number),
            failed: false,
        }
    }

    /// How many documents were changed, if the answer tells. A statement that fails midway may have changed more than
    /// it says.
    pub(super) fn number(&self) -> Option<usize> {
        self.changed.filter(|_| !self.failed)
    }
}

/// One change among many: of the document of this key.
pub(super) fn statement(key: &Key, update: Vec<Document>, upsert: bool) -> Document {
    let mut statement = doc! { "q": statements::filter(key), "u": update };
    if upsert {
        statement.insert("upsert", true);
    }
    statement
}

impl Pipelines<'_> {
    /// Sends these changes in one command, which carries out each of them by itself. A second command reads the
    /// documents of these keys. The first answer tells which changes failed, but of the others only how many documents
    /// they changed.
    pub(super) async fn change_many(
        self,
        statements: Vec<Document>,
        shown: Vec<&str>,
    ) -> Result<BulkResult, Error> {
        let concern = self.store.locks.write_concern().await?;
        let answer = self.send_all(statements, concern).await?;
        Ok(BulkResult {
            failed: failures(answer),
            documents: self.documents(shown).await.map_err(unread)?,
        })
    }

    /// Sends these changes in one command, and returns how many documents were changed.
    pub(super) async fn send_changes(self, statements: Vec<Document>) -> Result<Changed, Error> {
        let concern = self.store.locks.write_concern().await?;
        self.send_changes_with(statements, concern).await
    }

    /// As [`send_changes`](Self::send_changes), for changes that a failover may undo.
    pub(super) async fn send_undoable_changes(
        self,
        statements: Vec<Document>,
    ) -> Result<Changed, Error> {
        let concern = Collections::<RawDocumentBuf>::undoable_concern();
        self.send_changes_with(statements, concern).await
    }

    async fn send_changes_with(
        self,
        statements: Vec<Document>,
        concern: Document,
    ) -> Result<Changed, Error> {
        let answer = self.send_all(statements, concern).await?;
        let number = |field| {
            let number = answer.get(field).and_then(statements::integer);
            number.and_then(|number| usize::try_from(number).ok())
        };
        Ok(Changed {
            found: number("n"),
            changed: number("nModified"),
            failed: answer.contains_key("writeErrors"),
        })
    }

    async fn send_all(
        self,
        statements: Vec<Document>,
        concern: Document,
    ) -> Result<Document, Error> {
        let clock = self.statement_clock;
        let statements = statements.into_iter().map(|it| clock.statement(it));
        let command = doc! {
            "update": self.store.locks.reads().name(),
            "updates": statements.collect::<Vec<_>>(),
            // A change that fails does not stop the others.
            "ordered": false,
            "writeConcern": concern,
        };
        let database = self.store.locks.database();
        let answer = database.run_command(command).await.map_err(classify)?;
        if answer.contains_key("writeConcernError") {
            return Err(interrupted(
                "the changes were not confirmed by a majority in time",
            ));
        }
        Ok(answer)
    }

    /// The documents of these keys, each with the server's time.
    pub(super) async fn documents(
        self,
        keys: Vec<&str>,
    ) -> Result<HashMap<String, RawDocumentBuf>, Error> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let at_most = keys.len();
        let mut documents = HashMap::new();
        let clock = self.statement_clock;
        // The batch has room for one more than there can be. So the server sees with the first answer that it is at the
        // end, and the driver does not ask for a second one.
        let all = u32::try_from(at_most + 1).unwrap_or(u32::MAX);
        let mut found = self
            .store
            .locks
            .reads()
            .find(statements::of_keys(keys))
            .projection(clock.projection())
            .batch_size(all)
            .await
            .map_err(classify)?;
        while found.advance().await.map_err(classify)? {
            let document = found.current();
            if let Some(key) = decode::id(document) {
                documents.insert(key.to_owned(), document.to_owned());
            }
        }
        Ok(documents)
    }
}

/// The error of a read that failed after the changes were made.
pub(super) fn unread(error: Error) -> Error {
    interrupted(format!("the changes were made, and not answered: {error}"))
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
            let index = error.get("index").and_then(statements::integer)?;
            Some((usize::try_from(index).ok()?, error))
        })
        .collect()
}

//! Sends many changes by one command. A second command reads the documents.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};

use super::{
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

    /// Sends these changes in one command, and returns how many documents were changed, if the answer tells. A
    /// statement that fails midway may have changed more than it says.
    pub(super) async fn send_changes(
        self,
        statements: Vec<Document>,
        concern: Document,
    ) -> Result<Option<usize>, Error> {
        let answer = self.send_all(statements, concern).await?;
        let is_told = !answer.contains_key("writeErrors");
        Ok(count(&answer, "nModified").filter(|_| is_told))
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
}

/// The error of a read that failed after the changes were made.
pub(super) fn unread(error: Error) -> Error {
    interrupted(format!("the changes were made, and not answered: {error}"))
}

fn failures(mut answer: Document) -> HashMap<usize, Document> {
    let Some(Bson::Array(errors)) = answer.remove("writeErrors") else {
        return HashMap::new();
    };
    let failure = |error| match error {
        Bson::Document(error) => Some((count(&error, "index")?, error)),
        _ => None,
    };
    errors.into_iter().filter_map(failure).collect()
}

/// A number of statements or documents.
fn count(answer: &Document, field: &str) -> Option<usize> {
    usize::try_from(statements::integer(answer.get(field)?)?).ok()
}

//! Renewals: one by a command that answers with the document, many by two commands.

use std::collections::HashMap;

use mongodb::bson::{Document, doc};

use super::{
    MongoStore,
    concern::majority,
    decode, dialect,
    error::{sorted, statement_failed},
    timed,
};
use crate::{Cause, Error, RenewAnswer, RenewAnswers, RenewRequest, rules};

impl MongoStore {
    pub(super) async fn renew_one(&self, request: &RenewRequest) -> Result<RenewAnswer, Error> {
        let found = self
            .change(&request.key, dialect::renew(request), false)
            .await?;
        Ok(match found {
            Some((record, now)) => rules::answer_renew(Some(&record), request.lease, now),
            None => RenewAnswer::Expired,
        })
    }

    /// Renews many leases with one command and reads the outcome with a second one. The number of
    /// changed documents would not tell: a renewal may change nothing, see
    /// [`rules::answer_renew`].
    pub(super) async fn renew_batch(
        &self,
        requests: &[RenewRequest],
    ) -> Result<RenewAnswers, Error> {
        let updates: Vec<_> = requests
            .iter()
            .map(
                |request| doc! { "q": dialect::filter(&request.key), "u": dialect::renew(request) },
            )
            .collect();
        let command = doc! {
            "update": self.locks.name(),
            "updates": updates,
            // One document that cannot be changed does not stop the rest.
            "ordered": false,
            "writeConcern": majority(),
        };
        let database = self.locks.client().database(&self.locks.namespace().db);
        let answer = database.run_command(command).await.map_err(sorted)?;
        if answer.contains_key("writeConcernError") {
            return Err(Error::Interrupted {
                store: "MongoDB",
                source: Cause::text("the renewals were not confirmed by a majority in time"),
            });
        }
        let failed = failures(&answer);
        let keys: Vec<_> = requests
            .iter()
            .map(|request| request.key.as_str())
            .collect();
        let mut found = self
            .locks
            .find(doc! { "_id": { "$in": keys } })
            .projection(dialect::projection())
            .await
            .map_err(sorted)?;
        let mut documents = HashMap::new();
        while found.advance().await.map_err(sorted)? {
            let document = found.deserialize_current().map_err(sorted)?;
            if let Ok(key) = document.get_str("_id") {
                documents.insert(key.to_owned(), document);
            }
        }
        Ok(requests
            .iter()
            .enumerate()
            .map(|(index, request)| match failed.get(&index) {
                Some(error) => Err(error.clone()),
                None => renewal(documents.get(request.key.as_str()), request),
            })
            .collect())
    }
}

/// The statements that failed, by their place among the others. What a read shows after one may be
/// the live lease as it was before.
fn failures(answer: &Document) -> HashMap<usize, Error> {
    let errors = answer.get_array("writeErrors").into_iter().flatten();
    errors
        .filter_map(|error| {
            let error = error.as_document()?;
            let index = error.get("index").and_then(dialect::integer)?;
            Some((usize::try_from(index).ok()?, statement_failed(error)))
        })
        .collect()
}

/// The answer to a renewal, from the document as a find shows it.
fn renewal(document: Option<&Document>, request: &RenewRequest) -> Result<RenewAnswer, Error> {
    let Some(document) = document else {
        return Ok(RenewAnswer::Expired);
    };
    let (record, now) = timed(decode::told(document, &request.key)?)?;
    Ok(rules::answer_renew(Some(&record), request.lease, now))
}

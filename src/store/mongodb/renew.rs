//! Renewals: one by a command that answers with the document, many by two commands.

use mongodb::bson::RawDocument;

use super::{
    MongoStore, decode, dialect,
    error::statement_failed,
    many::{Left, statement},
    timed,
};
use crate::{Error, RenewAnswer, RenewAnswers, RenewRequest, rules};

impl MongoStore {
    pub(super) async fn renew_one(&self, request: &RenewRequest) -> Result<RenewAnswer, Error> {
        let found = self
            .change(&request.key, dialect::renew(request, self.retention), false)
            .await?;
        Ok(match found {
            Some((record, now)) => rules::answer_renew(Some(&record), request.lease, now),
            None => RenewAnswer::Expired,
        })
    }

    /// Renews many leases. The documents tell the outcome, see [`rules::answer_renew`].
    pub(super) async fn renew_batch(
        &self,
        requests: &[RenewRequest],
    ) -> Result<RenewAnswers, Error> {
        let statements = requests
            .iter()
            .map(|request| statement(&request.key, dialect::renew(request, self.retention), false))
            .collect();
        let keys = requests.iter().map(|request| request.key.as_str());
        let Left { failed, documents } = self.change_many(statements, keys.collect()).await?;
        Ok(requests
            .iter()
            .enumerate()
            .map(|(index, request)| match failed.get(&index) {
                // What the look shows after it may be the live lease as it was before.
                Some(error) => Err(statement_failed(error)),
                None => {
                    let document = documents.get(request.key.as_str());
                    renewal(document.map(|found| &**found), request)
                }
            })
            .collect())
    }
}

/// The answer to a renewal, from the document as a find shows it.
fn renewal(document: Option<&RawDocument>, request: &RenewRequest) -> Result<RenewAnswer, Error> {
    let Some(document) = document else {
        return Ok(RenewAnswer::Expired);
    };
    let (record, now) = timed(decode::told(document, &request.key)?)?;
    Ok(rules::answer_renew(Some(&record), request.lease, now))
}

//! Permits of a limiter.

use mongodb::bson::RawDocument;

use super::{change::Change, decode::limiter, error::STORE, pipelines::Pipelines, statements};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Cause, Error},
    rules,
};

impl Pipelines<'_> {
    /// Asks a limiter for permits.
    pub(super) async fn permit(self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let change = Change {
            filter: statements::limiter_filter(request),
            update: statements::permit(request),
            upsert: true,
        };
        let decode = |document: &RawDocument| limiter(document, &request.key);
        match self.send(change, decode).await? {
            Some((record, now)) => Ok(rules::answer_permit(&record, request, now)),
            None => Err(Error::Interrupted {
                store: STORE,
                source: Cause::text("an upsert gave back no document"),
            }),
        }
    }
}

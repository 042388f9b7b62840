//! Upgrades and downgrades of a lease.

use super::{pipelines::Pipelines, statements};
use crate::{
    messages::{ConvertAnswer, ConvertRequest},
    model::Error,
    rules,
};

impl Pipelines<'_> {
    /// Changes the access of a lease.
    pub(super) async fn convert(self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let update = statements::convert(request, self.store.retention);
        Ok(match self.change(&request.key, update, false).await? {
            Some((record, now)) => rules::answer_convert(Some(&record), request, now)?,
            None => ConvertAnswer::Expired,
        })
    }
}

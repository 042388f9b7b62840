//! Releases, each by one command.

use mongodb::bson::Document;

use super::{MongoStore, dialect, error::classify};
use crate::{
    messages::{ReleaseAnswer, ReleaseRequest},
    model::Error,
    store::explained,
};

impl MongoStore {
    /// Releases a lease if it is the only one in the document of its key. Returns whether it was.
    pub(super) async fn release_sole(&self, request: &ReleaseRequest) -> Result<bool, Error> {
        self.update(request, dialect::release_sole(request)).await
    }

    /// Releases a lease if it is in the document of its key, beside others or not.
    pub(super) async fn release_beside(
        &self,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        if self
            .update(request, dialect::release(request, self.retention))
            .await?
        {
            return Ok(ReleaseAnswer::Released);
        }
        explained(self.explain_refusal(&request.key).await)?;
        Ok(ReleaseAnswer::NotHeld)
    }

    /// Sends a release, and returns whether it changed the document. A release that finds its lease always
    /// does.
    async fn update(&self, request: &ReleaseRequest, update: Vec<Document>) -> Result<bool, Error> {
        let locks = if request.undoable && !self.durable_releases {
            self.locks.undoable_writes()
        } else {
            self.locks.writes().await?
        };
        let changed = locks
            .update_one(dialect::filter(&request.key), update)
            .await
            .map_err(classify);
        match changed {
            Ok(changed) => Ok(changed.modified_count > 0),
            Err(error) => Err(self.explain_failure(&request.key, error).await),
        }
    }
}

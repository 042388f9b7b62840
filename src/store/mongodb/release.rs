//! Releases: single ones by a command each, many plain ones by one statement for all.
//!
//! That statement matches only documents whose sole holder is one of the leases, each at most once. So if the number of
//! changed documents is that of the leases, each was released. The leases are released before they end, so the number
//! falls short only after an eviction or damage, or if a key has got several holders. Then the documents are read:
//!
//! - The statement leaves the lease in the field `released`. A lease that is there was released.
//! - If the key was granted to another a moment ago, the lease may have been released before, and the error says so.
//! - Any other lease is released by a command of its own.

use chrono::TimeDelta;
use futures::future::join_all;
use mongodb::bson::{Document, RawDocument};

use super::{
    MongoStore,
    bulk::{Changed, unread},
    decode::{self, timed},
    error::{STORE, classify},
    statements,
};
use crate::{
    messages::{ReleaseAnswer, ReleaseRequest},
    model::{Cause, Error},
    rules,
    store::explained,
};

/// How old a grant may be that was made after the statement: longer than the time until the document is read.
const JUST_NOW: TimeDelta = TimeDelta::seconds(5);

impl MongoStore {
    /// Releases a lease if it is the only one in the document of its key. Returns whether it was.
    pub(super) async fn release_sole(&self, request: &ReleaseRequest) -> Result<bool, Error> {
        self.update(request, statements::release_sole(request))
            .await
    }

    /// Releases a lease if it is in the document of its key, beside others or not.
    pub(super) async fn release_beside(
        &self,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        if self
            .update(request, statements::release(request, self.retention))
            .await?
        {
            return Ok(ReleaseAnswer::Released);
        }
        explained(self.explain_refusal(&request.key).await)?;
        Ok(ReleaseAnswer::NotHeld)
    }

    /// Whether a release is one of many that may go by one statement: of an exclusive lease, without a minimum hold,
    /// and one that a failover may undo.
    pub(super) fn is_plain(&self, request: &ReleaseRequest) -> bool {
        request.alone && request.min_hold.is_none() && request.undoable && !self.durable_releases
    }

    /// Releases leases that are [plain](Self::is_plain), by one statement.
    pub(super) async fn release_together(
        &self,
        requests: &[&ReleaseRequest],
    ) -> Result<Vec<Result<ReleaseAnswer, Error>>, Error> {
        let statement = statements::release_together(requests);
        let changed = self.send_undoable_changes(vec![statement]).await?;
        if changed == Changed::all(requests.len()) {
            return Ok(vec![Ok(ReleaseAnswer::Released); requests.len()]);
        }
        let keys = requests.iter().map(|request| request.key.as_str());
        let documents = self.documents(keys.collect()).await.map_err(unread)?;
        let answers =
            requests
                .iter()
                .map(async |request| match documents.get(request.key.as_str()) {
                    None => Ok(ReleaseAnswer::NotHeld),
                    Some(document) => self.released_or_not(request, document).await,
                });
        Ok(join_all(answers).await)
    }

    /// The answer to one of many releases, from the document that they left.
    async fn released_or_not(
        &self,
        request: &ReleaseRequest,
        document: &RawDocument,
    ) -> Result<ReleaseAnswer, Error> {
        let released = decode::shown(document).get_str("released");
        if released.is_ok_and(|lease| lease == request.lease.to_string()) {
            return Ok(ReleaseAnswer::Released);
        }
        let (record, now) = timed(decode::lock(document, &request.key)?)?;
        match rules::inspect(&record, now).holders.as_slice() {
            // The statement may have released the lease, and the key was then granted to another.
            [other] if other.lease != request.lease && now - other.acquired_at < JUST_NOW => {
                let source = Cause::text("the key was granted to another at the same moment");
                Err(Error::Interrupted {
                    store: STORE,
                    source,
                })
            }
            _ => self.release_beside(request).await,
        }
    }

    /// Sends a release, and returns whether it changed the document. A release that finds its lease always
    /// does.
    async fn update(&self, request: &ReleaseRequest, update: Vec<Document>) -> Result<bool, Error> {
        let locks = if request.undoable && !self.durable_releases {
            self.locks.undoable_writes()
        } else {
            self.locks.durable_writes().await?
        };
        let changed = locks
            .update_one(statements::filter(&request.key), update)
            .await
            .map_err(classify);
        match changed {
            Ok(changed) => Ok(changed.modified_count > 0),
            Err(error) => Err(self.explain_failure(&request.key, error).await),
        }
    }
}

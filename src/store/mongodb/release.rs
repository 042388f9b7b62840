//! How releases are sent: a single one by one command, many plain ones by one statement for all. The statements are in
//! `statements/lease.rs`.
//!
//! That statement matches only documents with one of the leases as their sole holder, each document at most once. So if
//! it changed as many documents as there are leases, each lease was released. Otherwise the documents are read: the
//! statement writes the lease into those that it has changed.
//!
//! Others may change a document between the statement and the read. The document then does not always tell whether the
//! lease was released, or was not there any more:
//!
//! - An eviction also leaves the lease in the document, until the next grant.
//! - A holder that was granted the key before the statement ran proves that the lease was not in the document any more.
//! - The server also counts the changed documents. If the releases that the documents show are as many, the undecided
//!   leases were not released. If as many more were changed as there are undecided leases, all of them were.
//!
//! Otherwise the answer is [`Error::Interrupted`]. A retry then gets the answer that the lease is not a holder, and its
//! caller assumes that its own release is the reason, so a release that was carried out is not reported as a loss. As
//! a result, a loss in the last minutes may be reported as a release, if others have changed the document of another
//! release at the same moment.

use std::time::Duration;

use futures::future::join_all;
use mongodb::bson::{RawDocument, doc};
use tokio::time::Instant;

use super::{
    bulk::unread,
    decode::{self, timed},
    error::interrupted,
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{ReleaseAnswer, ReleaseRequest},
    model::{Error, Holder, after},
    rules,
    store::explained,
};

/// How long a change may wait on the server after the server has taken the time that the change writes. It waits for a
/// transaction that has touched the document. The server ends a transaction after `transactionLifetimeLimitSeconds`, 60
/// s by default, and looks for such transactions at half that interval.
const STALL: Duration = Duration::from_secs(120);

/// The result of one release among many.
enum BatchedRelease {
    /// The statement has released it.
    Released,
    /// The lease is still there, in a list of holders, which the statement does not change.
    There,
    /// The statement has not released it: the key was free before, or another lease held it.
    NotHeld,
    /// Unknown: the document may have been changed or removed since.
    Overwritten,
}

impl Pipelines<'_> {
    /// Releases a lease, first by a shorter statement if the lease may be the only one of its key. A release that finds
    /// its lease always changes the document.
    pub(super) async fn release(self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        if request.is_of_a_sole_lease() {
            let update = statements::release_sole(request);
            if self
                .end(&request.key, update, request.is_undoable())
                .await?
            {
                return Ok(ReleaseAnswer::Released);
            }
        }
        self.release_beside(request).await
    }

    /// Releases a lease if it is in the document of its key, as the sole holder or beside others.
    pub(super) async fn release_beside(
        self,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        let update = statements::release(request, self.store.retention);
        if request.done_tick().is_some() {
            // A majority confirms the answer to a repeated request, as it confirms a change: the server waits for that
            // even if it had nothing to change.
            let found = self.change(&request.key, update, false).await?;
            let record = found.map(|(record, _)| record);
            return Ok(rules::answer_release_done(record.as_ref(), request));
        }
        if self
            .end(&request.key, update, request.is_undoable())
            .await?
        {
            return Ok(ReleaseAnswer::Released);
        }
        explained(self.explain_refusal(&request.key).await)?;
        Ok(ReleaseAnswer::NotHeld)
    }

    /// Whether a release may go by one statement with others: it is of an exclusive lease, has no minimum hold, and a
    /// failover may undo it.
    pub(super) fn is_plain(self, request: &ReleaseRequest) -> bool {
        request.likely_sole && request.is_undoable() && !self.store.durable_releases
    }

    /// Releases leases that are [plain](Self::is_plain), by one statement.
    pub(super) async fn release_together(
        self,
        requests: &[&ReleaseRequest],
    ) -> Result<Vec<Result<ReleaseAnswer, Error>>, Error> {
        let statement = statements::release_together(requests);
        let sent = Instant::now();
        let changed = self.send_changes(vec![statement], doc! { "w": 1 }).await?;
        if changed == Some(requests.len()) {
            return Ok(vec![Ok(ReleaseAnswer::Released); requests.len()]);
        }
        let keys = requests.iter().map(|request| request.key.as_str());
        let documents = self.documents(keys.collect()).await.map_err(unread)?;
        // The time in a change that was written after the statement is at most this long ago.
        let since = sent.elapsed() + STALL;
        let outcomes: Vec<_> = requests
            .iter()
            .map(|request| match documents.get(request.key.as_str()) {
                Some(document) => outcome(request, document, since),
                None => Ok(BatchedRelease::Overwritten),
            })
            .collect();
        let count = |is: fn(&Result<BatchedRelease, Error>) -> bool| {
            outcomes.iter().filter(|outcome| is(outcome)).count()
        };
        let released = count(|it| matches!(it, Ok(BatchedRelease::Released)));
        let unknown = count(|it| matches!(it, Ok(BatchedRelease::Overwritten) | Err(_)));
        // How many of the unknown leases were released.
        let hidden = changed.and_then(|changed| changed.checked_sub(released));
        let answers =
            requests
                .iter()
                .zip(outcomes)
                .map(async |(request, outcome)| match outcome? {
                    BatchedRelease::Released => Ok(ReleaseAnswer::Released),
                    BatchedRelease::There => self.release_beside(request).await,
                    BatchedRelease::NotHeld => Ok(ReleaseAnswer::NotHeld),
                    BatchedRelease::Overwritten => match hidden {
                        Some(0) => Ok(ReleaseAnswer::NotHeld),
                        Some(hidden) if hidden == unknown => Ok(ReleaseAnswer::Released),
                        _ => Err(interrupted(
                            "the document was changed again at the same moment",
                        )),
                    },
                });
        Ok(join_all(answers).await)
    }
}

/// The result of one release among many, by the document after the statement. Changes by others since then have a time
/// that is at most `since` ago.
fn outcome(
    request: &ReleaseRequest,
    document: &RawDocument,
    since: Duration,
) -> Result<BatchedRelease, Error> {
    let released = decode::shown(document).get_str("released");
    if released.is_ok_and(|lease| lease == request.lease.to_string()) {
        return Ok(BatchedRelease::Released);
    }
    let (record, now) = timed(decode::lock(document, &request.key)?)?;
    let is_mine = |holder: &Holder| holder.lease == request.lease;
    if record.holders.iter().any(is_mine) {
        return Ok(BatchedRelease::There);
    }
    let evicted = decode::eviction(document, &request.key).map(|record| record.evicted);
    if evicted.is_ok_and(|evicted| evicted.iter().any(is_mine)) {
        return Ok(BatchedRelease::NotHeld);
    }
    // Without holders, this is the time when the last of them left.
    let left = record.expires_at;
    let times = record.holders.iter().map(|holder| holder.acquired_at);
    let unchanged_since = times.min().unwrap_or(left);
    Ok(if after(unchanged_since, since) < now {
        BatchedRelease::NotHeld
    } else {
        BatchedRelease::Overwritten
    })
}

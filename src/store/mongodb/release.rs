//! Releases: single ones by a command each, many plain ones by one statement for all.
//!
//! That statement matches only documents that one of the leases has by itself, each at most once. So if the number of
//! changed documents is that of the leases, each was released. Otherwise the documents are read: the statement leaves
//! the lease in those that it has changed.
//!
//! Others may change a document between the statement and the look at it. Then it does not tell whether the lease was
//! released, or had been evicted before. An eviction leaves the lease too, until the next grant. A holder that has had
//! the key for longer was there instead of the lease. The server also counts the changed documents. If all of them are
//! accounted for, the undecided leases were not released; if as many are missing as leases are undecided, all of these
//! were. Otherwise the answer is [`Error::Interrupted`]. A retry hears that the lease is no holder, and its caller takes
//! its own release for the reason: a release that was carried out is not told as a loss. The price is that a loss of the
//! last minutes may be told as a release, where others have changed the document of another release at the same moment.

use std::time::Duration;

use futures::future::join_all;
use mongodb::bson::{Document, RawDocument};
use tokio::time::Instant;

use super::{
    MongoStore,
    bulk::{Changed, unread},
    decode::{self, timed},
    error::{STORE, classify},
    statements,
};
use crate::{
    messages::{ReleaseAnswer, ReleaseRequest},
    model::{Cause, Error, Holder, after},
    rules,
    store::explained,
};

/// How long a change may wait on the server after it has taken the time that it writes. It waits for a transaction that
/// has touched the document, which the server ends after `transactionLifetimeLimitSeconds`, 60 s by default. It looks for
/// such transactions every half of that time.
const STALL: Duration = Duration::from_secs(120);

/// What became of one of many releases.
enum Outcome {
    /// The statement has released it.
    Released,
    /// The lease is still there: in a list of holders, which the statement leaves alone.
    There,
    /// The statement has not released it: the key was free or another's before.
    NotHeld,
    /// The document may have been changed since, or removed.
    Overwritten,
}

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
        if request.done.is_some() {
            return self.release_done(request).await;
        }
        if self
            .update(request, statements::release(request, self.retention))
            .await?
        {
            return Ok(ReleaseAnswer::Released);
        }
        explained(self.explain_refusal(&request.key).await)?;
        Ok(ReleaseAnswer::NotHeld)
    }

    /// Releases a lease under which a tick was done. The answer to a repeated request is confirmed by a majority, as is a
    /// change: the server waits for that also if it had nothing to change.
    async fn release_done(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let update = statements::release(request, self.retention);
        let found = self.change(&request.key, update, false).await?;
        let record = found.map(|(record, _)| record);
        Ok(rules::answer_release_done(record.as_ref(), request))
    }

    /// Whether a release is one of many that may go by one statement: of an exclusive lease, without a minimum hold,
    /// and one that a failover may undo.
    pub(super) fn is_plain(&self, request: &ReleaseRequest) -> bool {
        request.likely_sole && request.is_undoable() && !self.durable_releases
    }

    /// Releases leases that are [plain](Self::is_plain), by one statement.
    pub(super) async fn release_together(
        &self,
        requests: &[&ReleaseRequest],
    ) -> Result<Vec<Result<ReleaseAnswer, Error>>, Error> {
        let statement = statements::release_together(requests);
        let sent = Instant::now();
        let changed = self.send_undoable_changes(vec![statement]).await?;
        if changed == Changed::all(requests.len()) {
            return Ok(vec![Ok(ReleaseAnswer::Released); requests.len()]);
        }
        let keys = requests.iter().map(|request| request.key.as_str());
        let documents = self.documents(keys.collect()).await.map_err(unread)?;
        // What was written after the statement has a time that is at most this long ago.
        let since = sent.elapsed() + STALL;
        let outcomes: Vec<_> = requests
            .iter()
            .map(|request| {
                let document = documents.get(request.key.as_str());
                document.map_or(Ok(Outcome::Overwritten), |it| outcome(request, it, since))
            })
            .collect();
        let count = |is: fn(&Result<Outcome, Error>) -> bool| {
            outcomes.iter().filter(|outcome| is(outcome)).count()
        };
        let released = count(|it| matches!(it, Ok(Outcome::Released)));
        let unknown = count(|it| matches!(it, Ok(Outcome::Overwritten) | Err(_)));
        // How many of the unknown ones were released.
        let hidden = changed
            .number()
            .and_then(|changed| changed.checked_sub(released));
        let answers =
            requests
                .iter()
                .zip(outcomes)
                .map(async |(request, outcome)| match outcome? {
                    Outcome::Released => Ok(ReleaseAnswer::Released),
                    Outcome::There => self.release_beside(request).await,
                    Outcome::NotHeld => Ok(ReleaseAnswer::NotHeld),
                    Outcome::Overwritten => match hidden {
                        Some(0) => Ok(ReleaseAnswer::NotHeld),
                        Some(hidden) if hidden == unknown => Ok(ReleaseAnswer::Released),
                        _ => Err(Error::Interrupted {
                            store: STORE,
                            source: Cause::text(
                                "the document was changed again at the same moment",
                            ),
                        }),
                    },
                });
        Ok(join_all(answers).await)
    }

    /// Sends a release, and returns whether it changed the document. A release that finds its lease always
    /// does.
    async fn update(&self, request: &ReleaseRequest, update: Vec<Document>) -> Result<bool, Error> {
        let locks = if request.is_undoable() && !self.durable_releases {
            self.locks.undoable_writes()
        } else {
            self.locks.durable_writes().await?
        };
        let update = self.statement_clock().await?.update(update);
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

/// What became of one of many releases, by the document after the statement. What others have written since then has a
/// time that is at most this long ago.
fn outcome(
    request: &ReleaseRequest,
    document: &RawDocument,
    since: Duration,
) -> Result<Outcome, Error> {
    let released = decode::shown(document).get_str("released");
    if released.is_ok_and(|lease| lease == request.lease.to_string()) {
        return Ok(Outcome::Released);
    }
    let (record, now) = timed(decode::lock(document, &request.key)?)?;
    let is_mine = |holder: &Holder| holder.lease == request.lease;
    if record.holders.iter().any(is_mine) {
        return Ok(Outcome::There);
    }
    let evicted = decode::eviction(document, &request.key).map(|record| record.evicted);
    if evicted.is_ok_and(|evicted| evicted.iter().any(is_mine)) {
        return Ok(Outcome::NotHeld);
    }
    // Without holders, this is when the last of them left.
    let left = record.expires_at;
    let times = record.holders.iter().map(|holder| holder.acquired_at);
    let unchanged_since = times.min().unwrap_or(left);
    Ok(if after(unchanged_since, since) < now {
        Outcome::NotHeld
    } else {
        Outcome::Overwritten
    })
}

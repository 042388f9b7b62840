//! The operations on one key.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use mongodb::{bson::Bson, options::ReturnDocument};

use super::{
    Classic, ReadLevel,
    form::{ClassicForm as _, stamped_grant, stamped_release},
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Earlier, Eviction, GiveBackRequest, Grant, PermitAnswer, PermitRequest,
        ReleaseAnswer, ReleaseKind, ReleaseRequest, RenewAnswers, RenewRequest,
    },
    model::{
        Access, Error, Key, LeaseId, LimiterRecord, LockRecord, LockState, PermitsLeft, Quota,
    },
    rules::{self, Decision, Write},
    store::mongodb::{error::classify, statements},
};

/// The most requests of one call that are under way at the same time.
const AT_ONCE: usize = 16;

impl Classic<'_> {
    pub(crate) async fn acquire(self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let is_plain =
            request.access == Access::Exclusive && request.tick.is_none() && !request.likely_held;
        // Who was refused has seen that the key is not free, or that there is a queue.
        if is_plain
            && request.earlier == Earlier::None
            && let Some(grant) = self.acquire_free(request).await?
        {
            return Ok(AcquireAnswer::Granted(grant));
        }
        let writes = AtomicBool::new(false);
        let rule = |record: Option<&LockRecord>, now| {
            let decision = rules::acquire(record, request, now);
            writes.store(!matches!(decision.write, Write::Keep), Ordering::Relaxed);
            decision
        };
        // If no earlier request was granted, the majority need not tell of a grant.
        let level = if request.earlier != Earlier::Unclear && request.tick.is_none() {
            ReadLevel::Primary
        } else {
            ReadLevel::Majority
        };
        let id = || request.key.as_str().into();
        let answer = self
            .decide(level, id(), &request.key, true, &rule)
            .await??;
        let is_granted = matches!(answer, AcquireAnswer::Granted(_));
        if !is_granted || level == ReadLevel::Majority || writes.load(Ordering::Relaxed) {
            return Ok(answer);
        }
        // The lease was granted by a repetition of the request, which a failover may still undo.
        let level = ReadLevel::Majority;
        self.decide(level, id(), &request.key, true, &rule).await?
    }

    /// Takes a free key in one step. `None` if it is not free, or if its document is new.
    async fn acquire_free(self, request: &AcquireRequest) -> Result<Option<Grant>, Error> {
        let (filter, update) = stamped_grant(request);
        let locks = self.0.locks.durable_writes().await?;
        let granted = locks
            .find_one_and_update(filter, update)
            .return_document(ReturnDocument::After)
            .await
            .map_err(classify)?;
        let Some(granted) = granted else {
            return Ok(None);
        };
        // The expiry counts from this date, which the server has stamped.
        let now = granted
            .get_datetime("renewed_at")
            .ok()
            .and_then(statements::utc);
        let record = LockRecord::read(&granted, &request.key, chrono::DateTime::UNIX_EPOCH)?;
        let holder = record.and_then(|record| record.holders.into_iter().next());
        Ok(holder.map(|holder| Grant {
            // A document with a queue is not free in this way.
            is_awaited: false,
            fence: holder.fence,
            acquired_at: holder.acquired_at,
            expires_at: holder.expires_at,
            now: now.unwrap_or(holder.acquired_at),
        }))
    }

    pub(crate) async fn leave(self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        let rule = |record: Option<&LockRecord>, now| rules::leave(record, waiter, now);
        self.change(key, rule).await
    }

    pub(crate) async fn renew(self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let renew = async |request: &RenewRequest| {
            let rule = |record: Option<&LockRecord>, now| rules::renew(record, request, now);
            self.change(&request.key, rule).await
        };
        let renewals: Vec<_> = requests.iter().map(renew).collect();
        Ok(in_order(renewals).await)
    }

    pub(crate) async fn convert(self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let rule = |record: Option<&LockRecord>, now| rules::convert(record, request, now);
        self.change(&request.key, rule).await?
    }

    pub(crate) async fn release(self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let is_plain = matches!(request.kind, ReleaseKind::Plain { .. });
        if is_plain && self.release_stamped(request).await? {
            return Ok(ReleaseAnswer::Released);
        }
        let rule = |record: Option<&LockRecord>, now| rules::release(record, request, now);
        self.change(&request.key, rule).await
    }

    /// Releases a lease in one step. Returns whether it did.
    async fn release_stamped(self, request: &ReleaseRequest) -> Result<bool, Error> {
        let locks = self.0.writes_of_an_end(request.is_undoable()).await?;
        let (filter, update) = stamped_release(&request.key, request.lease);
        let released = locks.update_one(filter, update).await.map_err(classify)?;
        Ok(released.matched_count > 0)
    }

    pub(crate) async fn inspect(self, key: &Key) -> Result<Option<LockState>, Error> {
        let rule = |record: Option<&LockRecord>, now| Decision {
            write: Write::Keep,
            answer: record.map(|record| rules::inspect(record, now)),
        };
        self.change(key, rule).await
    }

    pub(crate) async fn evict(self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.change(key, rules::evict).await?
    }

    pub(crate) async fn remove_expired(self, key: &Key) -> Result<bool, Error> {
        self.remove(key, Duration::ZERO).await
    }

    /// Removes the document of a lock that has been dead for `retention`.
    pub(super) async fn remove(self, key: &Key, retention: Duration) -> Result<bool, Error> {
        let rule = |record: Option<&LockRecord>, now| match record {
            Some(_) => rules::remove_expired(record, retention, now),
            // The document is new, and nothing was decided about it yet.
            None => Decision {
                write: Write::Remove,
                answer: false,
            },
        };
        self.change(key, rule).await
    }

    /// Sends each request by itself, several at a time.
    pub(crate) async fn batch(self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let send = async |request: &BatchRequest| match request {
            BatchRequest::Acquire(request) => self.acquire(request).await.map(BatchAnswer::Acquire),
            BatchRequest::Release(request) => self.release(request).await.map(BatchAnswer::Release),
        };
        let sent: Vec<_> = requests.iter().map(send).collect();
        Ok(in_order(sent).await)
    }

    pub(crate) async fn permit(self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let id = limiter_id(&request.key, &request.quota);
        let rule = |record: Option<&LimiterRecord>, now| rules::permit(record, request, now);
        self.decide(ReadLevel::Majority, id, &request.key, true, rule)
            .await
    }

    pub(crate) async fn give_back(self, request: &GiveBackRequest) -> Result<(), Error> {
        let id = limiter_id(&request.key, &request.quota);
        let rule = |record: Option<&LimiterRecord>, now| rules::give_back(record, request, now);
        self.decide(ReadLevel::Majority, id, &request.key, false, rule)
            .await
    }

    pub(crate) async fn peek(self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        let id = limiter_id(key, quota);
        let rule = |record: Option<&LimiterRecord>, now| Decision {
            write: Write::Keep,
            answer: rules::peek(record, quota, now),
        };
        self.decide(ReadLevel::Majority, id, key, false, rule).await
    }
}

fn limiter_id(key: &Key, quota: &Quota) -> Bson {
    let mut filter = statements::limiter_filter(key, quota);
    filter.remove("_id").unwrap_or(Bson::Null)
}

/// Awaits these futures, several at a time, and returns their results in order. A slow one does not delay those that
/// begin after it.
async fn in_order<T>(work: Vec<impl Future<Output = T>>) -> Vec<T> {
    let numbered = work.into_iter().enumerate();
    let numbered = numbered.map(async |(number, work)| (number, work.await));
    let mut outcomes: Vec<_> = stream::iter(numbered)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

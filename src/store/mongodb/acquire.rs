//! Acquires, each by one command.

use chrono::{DateTime, Utc};
use mongodb::options::ReturnDocument;
use tokio::time::Instant;

use super::{
    decode,
    error::{classify, interrupted, is_race},
    pipelines::Pipelines,
    statements::{self, Form},
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, Earlier, Turn},
    model::{Error, Held, Key, LeaseId, LockRecord},
    rules::{self, Decision, Write},
    store::explained,
};

impl Pipelines<'_> {
    /// Asks for a lease. If that is answered, its key is likely to have a document.
    pub(super) async fn acquire(self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let answer = self.acquire_alone(request).await?;
        self.store.known_keys.lock().insert(&request.key);
        Ok(answer)
    }

    /// Asks for a lease, first by a cheaper command if that may be enough.
    async fn acquire_alone(self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        if request.likely_held
            && let Some(held) = self.read_refusal(request).await
        {
            return Ok(AcquireAnswer::Held(held));
        }
        let form = match (request.earlier, request.turn) {
            (Earlier::Unclear, _) => Form::Full,
            // Only the full statement writes a place.
            (Earlier::Refused, _) if request.is_likely_to_write_place() => Form::Full,
            (Earlier::Refused, Turn::InTurn(_)) => Form::First,
            (Earlier::None, _) | (Earlier::Refused, Turn::Barging | Turn::Behind) => Form::Short,
        };
        if form != Form::Full
            && let Some(answer) = self.acquire_fresh(request, form).await?
        {
            return Ok(answer);
        }
        self.acquire_again(request).await
    }

    /// Reads the document of a key that was held a moment ago, and returns the holders if they refuse the request and
    /// the document would stay as it is. `None` if not, or if that is not known. The caller then sends the acquire.
    ///
    /// A `find` costs the server half of a change that is refused (`held` in `docs/measurements.md`).
    async fn read_refusal(self, request: &AcquireRequest) -> Option<Held> {
        let now = self.store.clock.at(Instant::now())?;
        let locks = self.store.locks.reads();
        let read = locks.find_one(statements::filter(&request.key));
        let document = read.await.ok()??;
        let record = decode::found(&document, &request.key).ok()?.at(now).ok()?;
        match rules::acquire(Some(&record), request, now) {
            Decision {
                write: Write::Keep,
                answer: Ok(AcquireAnswer::Held(held)),
            } => Some(held),
            _ => None,
        }
    }

    /// Asks for a lease that no earlier request was granted. The answer does not contain the server's time, because that
    /// takes a projection, which costs the server a part of each cycle. If the
    /// lease is in the document, it was granted just now, so the time of its grant is the server's time.
    ///
    /// `None` if the answer decides nothing, for example because the key is held and the server's time is not known.
    /// The caller then asks again, for an answer with the time.
    async fn acquire_fresh(
        self,
        request: &AcquireRequest,
        form: Form,
    ) -> Result<Option<AcquireAnswer>, Error> {
        let locks = self.store.locks.durable_writes().await?;
        let sent = Instant::now();
        let update = statements::acquire(request, form, self.store.retention);
        let update = self.statement_clock.update(update);
        let outcome = locks
            .find_one_and_update(statements::filter(&request.key), update)
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await;
        let document = match outcome {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(None),
            Err(race) if is_race(&race, "_id") => return Ok(None),
            Err(error) => return Err(self.explain_failure(&request.key, classify(error)).await),
        };
        let found = decode::found(&document, &request.key)?;
        let granted_at = found.granted_at(request.lease);
        if let Some(granted_at) = granted_at {
            self.store.record_time(granted_at);
        }
        let Some(now) = granted_at.or_else(|| self.store.clock.at(sent)) else {
            return Ok(None);
        };
        answered(&found.at(now)?, request, now)
    }

    /// Removes the place of a process. A failover may undo that, like a release: the place then counts until its time
    /// is over.
    pub(super) async fn leave(self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        if self.end(key, statements::leave(waiter), true).await? {
            return Ok(());
        }
        explained(self.explain_refusal(key).await)
    }

    /// Asks for a lease that an earlier request may have been granted.
    pub(super) async fn acquire_again(
        self,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        let update = statements::acquire(request, Form::Full, self.store.retention);
        match self.change(&request.key, update, true).await? {
            Some((record, now)) => {
                self.store.record_time(now);
                rules::answer_acquire(&record, request, now)
            }
            None => Err(interrupted("an upsert gave back no document")),
        }
    }
}

/// Reads the answer from the document after the request. `None` if the rule would change the document now, so that the
/// request has to be sent again: the last holder has expired meanwhile, or the short form of the statement has refused
/// what the full form grants.
pub(super) fn answered(
    record: &LockRecord,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Result<Option<AcquireAnswer>, Error> {
    let Decision { write, answer } = rules::acquire(Some(record), request, now);
    match write {
        Write::Keep => answer.map(Some),
        Write::Put(_) | Write::Remove => Ok(None),
    }
}

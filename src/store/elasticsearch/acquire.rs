//! Acquires, and the server's time at which each was answered.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    answer::{ChangeOutcome, Effect},
    index_store::IndexStore,
    send::UPSERT_FOUND_NONE,
    statements::ScriptedUpdate,
    transport::Transport,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, Earlier},
    model::{Error, Held, LockRecord},
    rules::{self, Decision, Write},
    store::json,
};

impl<C: Transport> IndexStore<C> {
    /// Reads the document of a key that was held a moment ago, and returns the holders if they refuse the request.
    /// `None` if they do not, or if that is not known. The caller then sends the acquire.
    ///
    /// A get costs the node less than a script that refuses (`search-held` in `docs/measurements.md`).
    pub(super) async fn read_refusal(&self, request: &AcquireRequest) -> Option<Held> {
        let now = self.clock.at(Instant::now())?;
        let index = self.located().await.ok()?;
        let get = self.statements.get(&request.key);
        let found = self.documents(&get, &[&request.key], &index).await.ok()?;
        let document = found.into_iter().next()??;
        let record = json::lock(&document, &request.key).ok()?;
        let record = record.at(now).ok()?;
        match rules::acquire(Some(&record), request, now) {
            Decision {
                write: Write::Keep,
                answer: Ok(AcquireAnswer::Held(held)),
            } => Some(held),
            _ => None,
        }
    }

    /// Prepares an acquire. With it comes a lower bound of the server's time when it is sent, if its refusal does not
    /// contain the time.
    ///
    /// A refusal contains the time only if the answer is filtered, which costs the node more: the bare client had 0.94 to
    /// 0.96 of its cycles with a filter, and 0.86 to 0.92 of its attempts on held keys. So a request that no earlier one
    /// can have been granted is sent without a filter if an earlier answer contained the time a moment ago, and a refusal is
    /// judged by that time. A grant always contains the time at which it was written.
    pub(super) fn prepared_acquire(
        &self,
        request: &AcquireRequest,
    ) -> (ScriptedUpdate, Option<DateTime<Utc>>) {
        let change = self.statements.acquire(request);
        let at = self.clock.at(Instant::now());
        match at.filter(|_| request.earlier != Earlier::Unclear) {
            None => (change, None),
            at => (change.showing(serde_json::json!(true)), at),
        }
    }

    /// Reads the answer to an acquire. `at` is the server's time when it was sent, if that is known.
    pub(super) async fn acquired(
        &self,
        request: &AcquireRequest,
        at: Option<DateTime<Utc>>,
        outcome: Option<ChangeOutcome>,
    ) -> Result<AcquireAnswer, Error> {
        let is_written = matches!(&outcome, Some(outcome) if outcome.effect == Effect::Written);
        let (record, now) = self.judged(request, at, outcome)?;
        let Decision { write, answer } = rules::acquire(Some(&record), request, now);
        let is_confirmed = is_written || !matches!(answer, Ok(AcquireAnswer::Granted(_)));
        if matches!(write, Write::Keep) && is_confirmed {
            return answer;
        }
        // The request is sent again, to the script that knows all rules and whose answer contains the time. There are four
        // reasons. The rule would change the document now: the lean script has refused a process that has to take a
        // place, or it has refused because of places that count but no longer keep a free key, or the estimated time
        // differs from the node's, for example because the last holder expires at about this moment. Or the lease was
        // granted before, beside others. The lean script does not write such a document again, and only what is written
        // is confirmed by the replicas.
        let change = self.statements.acquire_in_full(request);
        let outcome = self.change(&request.key, change).await?;
        let (record, now) = self.judged(request, None, outcome)?;
        rules::answer_acquire(&record, request, now)
    }

    /// The document after the request, and the time at which it was answered.
    ///
    /// # Errors
    ///
    /// Among others [`Error::NotALock`] if no document was created because the clock of the node has no fence for it.
    fn judged(
        &self,
        request: &AcquireRequest,
        at: Option<DateTime<Utc>>,
        outcome: Option<ChangeOutcome>,
    ) -> Result<(LockRecord, DateTime<Utc>), Error> {
        let Some(outcome) = outcome else {
            return Err(self.malformed(UPSERT_FOUND_NONE));
        };
        if outcome.effect == Effect::Absent {
            return Err(rules::no_next_fence(&request.key));
        }
        self.timed_at(&outcome, &request.key, at)
    }
}

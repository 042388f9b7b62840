//! Acquires, and how their answers tell the time.

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio::time::Instant;

use super::{answer::Outcome, dialect::Change, index_store::IndexStore, transport::Transport};
use crate::{
    messages::{AcquireAnswer, AcquireRequest},
    model::{Error, Held},
    rules,
};

/// An acquire on its way.
pub(super) struct Asked {
    pub(super) change: Change,
    /// What the time was there at least, if the answer need not tell it.
    pub(super) at: Option<DateTime<Utc>>,
}

impl<C: Transport> IndexStore<C> {
    /// A refusal tells the time only if the answer is filtered, which costs the node a sixth to a third more
    /// (`search-forms` in `docs/performance.md`). So who asks for the first time goes by the time as it was
    /// told a moment ago. A grant tells when it was written.
    pub(super) fn asked(&self, request: &AcquireRequest) -> Asked {
        let change = self.dialect.acquire(request);
        match self.clock.at(Instant::now()).filter(|_| request.fresh) {
            None => Asked { change, at: None },
            at => Asked {
                change: change.showing(json!(true)),
                at,
            },
        }
    }

    /// Reads the answer to a request that was sent at this time, if that is known.
    pub(super) async fn acquired(
        &self,
        request: &AcquireRequest,
        at: Option<DateTime<Utc>>,
        outcome: Option<Outcome>,
    ) -> Result<AcquireAnswer, Error> {
        match self.judged(request, at, outcome)? {
            // By the clock here the holder in the way has expired, or nearly so, since the answer was made: ask again.
            AcquireAnswer::Held(held) if at.is_some() && held.holders().is_empty() => {
                let change = self.dialect.acquire(request);
                let outcome = self.change(&request.key, change).await?;
                self.judged(request, None, outcome)
            }
            answer => Ok(answer),
        }
    }

    fn judged(
        &self,
        request: &AcquireRequest,
        at: Option<DateTime<Utc>>,
        outcome: Option<Outcome>,
    ) -> Result<AcquireAnswer, Error> {
        let Some(outcome) = outcome else {
            return match request.in_place_of {
                Some(_) => Ok(AcquireAnswer::Held(Held::by_nobody(request.key.clone()))),
                None => Err(self.senseless("an upsert found no document")),
            };
        };
        let (record, now) = outcome.record(&request.key)?;
        if let Some(now) = now {
            self.clock.told(now, Instant::now());
        }
        match now.or(at) {
            Some(now) => Ok(rules::answer_acquire(&record, request.lease, now)),
            None => Err(self.senseless("it tells no time")),
        }
    }
}

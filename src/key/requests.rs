//! How the requests of claims are sent, and how their answers come back.

use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    call::Call,
    effect::{Answer, Effect, Event},
    keys::Keys,
    state::KeyState,
};
use crate::{
    coalescer::HowSent,
    lease_state::{GrantTerms, LeaseState},
    messages::{AcquireAnswer, AcquireRequest, Earlier},
    model::{Error, Key, LeaseId},
    release::ReleaseJob,
    rules,
    runtime::{
        self,
        suspension::{self, SentAt},
    },
    store::Store,
    telemetry,
};

/// A request that is under way. If it is dropped with its runtime, the request has failed.
struct Sent {
    keys: Arc<Keys>,
    message: Arc<AcquireRequest>,
    /// Weak, because the call has this. After the answer it is that of no call.
    call: Weak<Call>,
    /// How long the machine had been suspended in all when it was sent.
    suspended: Duration,
}

impl Keys {
    /// Sends a request, which the caller, or a task, polls.
    pub(super) fn send(&self, call: &Arc<Call>, message: Arc<AcquireRequest>) {
        let Some(keys) = self.this.upgrade() else {
            return;
        };
        let key = message.key.clone();
        let mut sent = Sent {
            keys: keys.clone(),
            message: message.clone(),
            call: Arc::downgrade(call),
            suspended: suspension::total(),
        };
        let asked = self.releaser.coalescer.acquire(message);
        let work = async move {
            let (at, answered) = asked.answer.await;
            sent.answered(at, answered);
        };
        if let Err(withdrawn) = call.begin(work, asked.queued) {
            keys.run(&key, Effect::Withdrawn(call.clone(), withdrawn));
        }
    }

    /// Lets a task of its own poll a call.
    pub(super) fn leave(&self, call: &Call) {
        if let Some(home) = self.lifecycle.home() {
            call.leave(home);
        }
    }

    /// Releases what a claim that nobody wants may have left.
    pub(super) fn settle(&self, claim: &AcquireRequest, maybe_in_flight: bool) {
        let Some(keys) = self.this.upgrade() else {
            return;
        };
        let job = ReleaseJob::of_nobody(claim, maybe_in_flight);
        let done = TellOnDrop(keys, claim.key.clone(), Some(Event::Settled(claim.lease)));
        self.lifecycle
            .spawn(self.releaser.clone().settle(job, done));
    }

    /// Gives up a place. After an error this does not try again, because the place expires soon.
    pub(super) fn leave_place(&self, key: &Key, claim: LeaseId) {
        let Some(keys) = self.this.upgrade() else {
            return;
        };
        let done = TellOnDrop(keys, key.clone(), Some(Event::PlaceLeft(claim)));
        let key = key.clone();
        self.lifecycle.spawn(async move {
            let (keys, of) = (&done.0, key.clone());
            let leaving = |store: Arc<dyn Store>| async move { store.leave(&of, claim).await };
            let left = keys.call("leave", keys.call_timeout(), leaving).await;
            drop(done);
            telemetry::place_given_up(&key, left.as_ref().err());
        });
    }
}

impl Sent {
    /// Applies an answer to the claim.
    fn answered(&mut self, at: Instant, answered: Result<AcquireAnswer, Error>) {
        let Some(call) = mem::take(&mut self.call).upgrade() else {
            return;
        };
        let error = answered.as_ref().err().cloned();
        let counts = self.keys.update(&self.message.key, |state, now, out| {
            // Otherwise it was withdrawn, and this is no answer.
            let counts = state.is_under_way(&call);
            if counts {
                let answer = self.answer(state, &call, at, answered);
                state.step(Event::Answered(call.clone(), answer), now, out);
            }
            counts
        });
        // The subscriber of the application may panic.
        if let (Some(error), Some(true)) = (error, counts) {
            let about = (&self.message.key, self.message.lease);
            telemetry::harmless_in_a_panic(|| {
                telemetry::store_failed("acquire", Some(about), &error);
            });
        }
    }

    /// What this answer means.
    fn answer(
        &self,
        state: &KeyState,
        call: &Arc<Call>,
        at: Instant,
        reply: Result<AcquireAnswer, Error>,
    ) -> Answer {
        let message = &self.message;
        let grant = match reply {
            Ok(AcquireAnswer::Granted(grant)) => grant,
            Ok(AcquireAnswer::Held(held)) => return Answer::Held(held),
            Ok(AcquireAnswer::Done(done)) => {
                let tick = message.tick;
                let error = tick.and_then(|tick| rules::not_due(&done, tick, &message.key));
                // A store that keeps the rules refuses no other request for this reason.
                return Answer::Done(error.unwrap_or(Error::Done(done)));
            }
            Err(error) => return Answer::Failed(error),
        };
        // The store may have read the grant of the other request, which a failover can still undo.
        let is_in_batch = matches!(call.how_sent(), HowSent::InBatch(_));
        if is_in_batch && state.may_be_granted_by_other(message.lease, call) {
            let error = runtime::interrupted("a batch was answered after its request was repeated");
            return Answer::GrantedLate(grant.acquired_at, error);
        }
        let terms = GrantTerms {
            request: message.clone(),
            clock_margin: self.keys.clock_margin,
            asked_once: message.earlier != Earlier::Unclear && state.has_asked_once(message.lease),
        };
        let limit = self.keys.call_timeout().min(message.ttl);
        let sent = SentAt {
            instant: at,
            suspended: self.suspended,
        };
        let Some(lease) = LeaseState::new(terms, &grant, sent) else {
            return Answer::GrantedLate(grant.acquired_at, self.keys.timed_out(limit));
        };
        Answer::Granted(Arc::new(lease), grant.is_awaited)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.call.strong_count() > 0 {
            self.answered(Instant::now(), Err(runtime::ended()));
        }
    }
}

/// Tells a key that something has happened when it is dropped, also with its runtime.
struct TellOnDrop(Arc<Keys>, Key, Option<Event>);

impl Drop for TellOnDrop {
    fn drop(&mut self) {
        if let Some(event) = self.2.take() {
            self.0.step(&self.1, event);
        }
    }
}

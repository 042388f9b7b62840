//! How the driver carries out what the state of a key asks for.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    cell::Refusal,
    effect::{Answer, Effect, Event, Report},
    keys::Keys,
    place::PlaceNews,
    state::KeyState,
};
use crate::{
    model::{Error, Held, Key, LossReason},
    retry::OVERDUE,
    telemetry::{self, StayEndReason, Waiting},
};

impl Keys {
    /// Carries out, while the lock of the keys is held, what must be done before the next change of the key. Returns
    /// whether the rest of the effect is to be [carried out](Self::run) without the lock.
    pub(super) fn note(&self, state: &mut KeyState, effect: &mut Effect) -> bool {
        match effect {
            Effect::Bind(claim) => {
                if let Some(claim) = state.claim_mut(*claim) {
                    claim.at_work = Some(self.lifecycle.at_work.token());
                }
                return false;
            }
            Effect::MayBeGrantedAgain(lease) => {
                lease.set_release_terms(|terms| terms.maybe_in_flight = true);
                return false;
            }
            Effect::Withdraw(call) => {
                let Some(withdrawn) = call.withdraw() else {
                    return false;
                };
                // The call ends with an error, which counts for nothing from now on.
                state.withdrawn(call);
                *effect = Effect::Withdrawn(call.clone(), withdrawn);
            }
            Effect::GiveBack(lease) | Effect::Detach(lease) if !state.waiters.is_empty() => {
                // The key goes to other processes, which learn of the release when a majority has it. Otherwise the
                // waiters of this process would come before them.
                lease.set_release_terms(|terms| terms.is_awaited = true);
            }
            Effect::Report(Report::StayEnded(lease, StayEndReason::WaitedFor, _)) => {
                lease.set_release_terms(|terms| terms.is_awaited = true);
            }
            _ => {}
        }
        true
    }

    /// Carries out an effect.
    pub(super) fn run(&self, key: &Key, effect: Effect) {
        match effect {
            Effect::Send(call, message, by) => {
                match by {
                    Some(cell) => cell.set_call(call.clone()),
                    None => self.leave(&call),
                }
                self.send(&call, message);
            }
            Effect::Withdrawn(request, withdrawn) => {
                self.step(key, Event::Withdrawn(request));
                drop(withdrawn);
            }
            Effect::Spawn(call) => self.leave(&call),
            // Its caller polls it on another runtime.
            Effect::SpawnRelease(_) if self.lifecycle.has_runtime_ended() => {}
            Effect::SpawnRelease(call) => call.leave(),
            Effect::Overdue(request, limit) => {
                let error = self.timed_out(limit);
                let answer = Answer::Overdue(error.clone());
                self.step(key, Event::Answered(request, answer));
                telemetry::store_failed("acquire", None, &error);
            }
            Effect::Keep(lease) => {
                self.renewals.keep(&lease);
                self.look_after();
                self.bound_stays(lease.id());
            }
            Effect::Tell(cell, news) => cell.tell(news),
            Effect::GiveBack(lease) => self.abandon(&lease),
            Effect::Detach(lease) => self.detach(&lease),
            Effect::Settle(claim, maybe_in_flight) => self.settle(&claim, maybe_in_flight),
            Effect::LeavePlace(claim) => self.leave_place(key, claim),
            Effect::Listen => self.listen(),
            Effect::Report(report) => self.report(key, report),
            Effect::Drop(state) => drop(state),
            // They were noted.
            Effect::Bind(_)
            | Effect::MayBeGrantedAgain(_)
            | Effect::Withdraw(_)
            | Effect::Contended => {}
        }
    }

    fn report(&self, key: &Key, report: Report) {
        match report {
            Report::Lost(guards) => telemetry::for_each(guards, |guard| {
                guard.lose(guard.loss(Instant::now()).unwrap_or(LossReason::Expired));
            }),
            Report::Waits(cell, ahead) => cell.begins_to_wait(|| Waiting::begins(key, ahead)),
            Report::Unanswered(claim) => {
                telemetry::store_failed("acquire", Some((key, claim)), &self.timed_out(OVERDUE));
            }
            Report::Place(PlaceNews::Taken { ahead }) => telemetry::place_taken(key, ahead),
            Report::Place(PlaceNews::NoRoom) => telemetry::no_place(key),
            Report::Turn(ended) => {
                telemetry::turn_came(key, ended.ahead, ended.waited);
                if let Some((ahead, waited)) = ended.passed {
                    telemetry::places_passed(key, ahead, waited);
                }
            }
            Report::Stays(lease) => telemetry::stays(lease.fields()),
            Report::StayEnded(lease, why, at_once) => {
                telemetry::stay_ended(lease.fields(), why, at_once);
            }
        }
    }

    /// What a task is told that is refused.
    pub(super) fn end_reason(&self, why: Refusal) -> Result<Held, Error> {
        match why {
            Refusal::Held(held) => Ok(held),
            Refusal::HeldHere(lease) => Ok(lease.refusal(Instant::now())),
            Refusal::Failed(error) => Err(error),
            Refusal::TimedOut => Err(self.timed_out(self.call_timeout())),
            Refusal::Closed => Err(self.lifecycle.why_closed()),
        }
    }

    pub(super) fn timed_out(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.store.name(),
            operation: "acquire",
            limit,
        }
    }
}

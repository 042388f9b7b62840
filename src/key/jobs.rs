//! `Job`: what follows from a change of a key, and is carried out when the lock of the keys is released.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    call::{Call, PolledCall, Withdrawn},
    cell::{Cell, EndReason, Ended, News},
    claim::RequestNo,
    effect::{Answer, Effect, Event, GiveBack, Note, Refusal, Refused, Report},
    keys::{Entry, Keys},
    place::{EndedTurn, PlaceNews},
    waiters::WaiterNo,
};
use crate::{
    lease_state::LeaseState,
    messages::AcquireRequest,
    model::{Error, Key, LeaseId, LossReason},
    telemetry::{self, StayEndReason, Waiting},
};

/// What follows from a change of a key.
pub(super) enum Job {
    Send(Arc<Call>, RequestNo, Arc<AcquireRequest>),
    Withdraw(RequestNo, Withdrawn),
    Spawn(Arc<Call>),
    SpawnRelease(PolledCall),
    Keep(Arc<LeaseState>),
    Tell(Arc<Cell>, News),
    GiveBack(Arc<LeaseState>, GiveBack),
    Settle(Arc<AcquireRequest>, bool),
    LeavePlace(LeaseId),
    Listen,
    Drop(Box<Entry>),
    /// This makes events, which may panic, so it comes last.
    Report(Reported),
}

/// What telemetry is told, and what comes with an event.
pub(super) enum Reported {
    Overdue(RequestNo, Duration),
    Lost(Vec<Arc<LeaseState>>),
    Waits(Arc<Cell>, Option<usize>),
    Unanswered(LeaseId, Duration),
    Place(PlaceNews),
    Turn(EndedTurn),
    Stays(Arc<LeaseState>),
    StayEnded(Arc<LeaseState>, StayEndReason, bool),
}

impl Keys {
    /// What is done for this effect.
    pub(super) fn job(&self, entry: &mut Entry, effect: Effect, now: Instant) -> Option<Job> {
        let stored = |claim| entry.behind(claim).cloned();
        Some(match effect {
            Effect::Send {
                request,
                message,
                by,
            } => Job::Send(self.begin(entry, request, by), request, message),
            Effect::Withdraw(request) => {
                let withdrawn = entry.calls.get(&request)?.withdraw()?;
                entry.calls.remove(&request);
                Job::Withdraw(request, withdrawn)
            }
            Effect::Spawn(request) => Job::Spawn(entry.calls.get(&request)?.clone()),
            Effect::SpawnRelease(lease) => {
                Job::SpawnRelease(entry.claims.get_mut(&lease)?.release.take()?)
            }
            Effect::Keep(claim) => Job::Keep(stored(claim)?),
            Effect::Offer(no) => Job::Tell(entry.cells.get(&no)?.clone(), News::Offered),
            Effect::Refuse(no, refused) => {
                let ended = self.ended(entry, refused, now);
                Job::Tell(entry.cells.remove(&no)?, News::Ended(Box::new(ended)))
            }
            Effect::GiveBack(claim, how) => {
                let lease = stored(claim)?;
                if entry.state.has_waiters() {
                    // The key goes to other processes, which learn of the release when a majority has it. Otherwise the
                    // waiters of this process would come before them.
                    lease.set_release_terms(|terms| terms.is_awaited = true);
                }
                Job::GiveBack(lease, how)
            }
            Effect::Settle {
                claim,
                maybe_in_flight,
            } => Job::Settle(claim, maybe_in_flight),
            Effect::LeavePlace(claim) => Job::LeavePlace(claim),
            Effect::Listen => Job::Listen,
            Effect::Overdue(request, limit) => Job::Report(Reported::Overdue(request, limit)),
            Effect::Report(report) => Job::Report(self.reported(entry, report)?),
            Effect::Forget(claim) => {
                // The lease lives on in its release, or in the guards that outlive it.
                entry.claims.remove(&claim);
                return None;
            }
            Effect::Note(claim, note) => {
                self.note(entry, claim, note);
                return None;
            }
            // The caller deals with it, because it has the other keys.
            Effect::Contended => return None,
        })
    }

    /// The call of a request, which this waiter polls, or else a task of its own.
    fn begin(&self, entry: &mut Entry, request: RequestNo, by: Option<WaiterNo>) -> Arc<Call> {
        let call = Arc::new(Call::default());
        match by.and_then(|no| entry.cells.get(&no)) {
            Some(cell) => cell.set_call(call.clone()),
            None => self.leave(&call),
        }
        entry.calls.insert(request, call.clone());
        call
    }

    /// Notes something of a claim.
    fn note(&self, entry: &mut Entry, claim: LeaseId, note: Note) {
        match note {
            Note::Bound => {
                let token = self.lifecycle.register_operation();
                entry.of(claim).at_work = Some(token);
            }
            Note::Unbound => {
                entry
                    .claims
                    .get_mut(&claim)
                    .and_then(|it| it.at_work.take());
            }
            Note::MayBeGrantedAgain => {
                if let Some(lease) = entry.behind(claim) {
                    lease.set_release_terms(|terms| terms.maybe_in_flight = true);
                }
            }
        }
    }

    /// What telemetry is told by this report.
    fn reported(&self, entry: &Entry, report: Report) -> Option<Reported> {
        let stored = |claim| entry.behind(claim).cloned();
        Some(match report {
            Report::Waits(no, ahead) => Reported::Waits(entry.cells.get(&no)?.clone(), ahead),
            Report::Expired(claim, numbers) => {
                let mut guards = stored(claim)?.guards();
                guards.retain(|guard| numbers.contains(&guard.number()));
                Reported::Lost(guards)
            }
            Report::Unanswered(claim, limit) => Reported::Unanswered(claim, limit),
            Report::Place(news) => Reported::Place(news),
            Report::Turn(ended) => Reported::Turn(ended),
            Report::Stays(claim) => Reported::Stays(stored(claim)?),
            Report::StayEnded {
                claim,
                why,
                at_once,
            } => {
                let lease = stored(claim)?;
                if why == StayEndReason::WaitedFor {
                    lease.set_release_terms(|terms| terms.is_awaited = true);
                }
                Reported::StayEnded(lease, why, at_once)
            }
        })
    }

    fn timed_out(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.store.name(),
            operation: "acquire",
            limit,
        }
    }

    fn ended(&self, entry: &Entry, refused: Refused, now: Instant) -> Ended {
        let timed_out = || EndReason::Failed(self.timed_out(self.call_timeout()));
        let why = match refused.why {
            Refusal::Held(held) => EndReason::Held(held),
            Refusal::HeldHere(claim) => match entry.behind(claim) {
                Some(behind) => EndReason::Held(behind.refusal(now)),
                None => timed_out(),
            },
            Refusal::Failed(error) => EndReason::Failed(error),
            Refusal::TimedOut => timed_out(),
            Refusal::Closed => EndReason::Failed(self.lifecycle.why_closed()),
        };
        Ended {
            why,
            ahead: refused.ahead,
            was_behind: refused.was_behind,
        }
    }

    /// Carries out a job.
    pub(super) fn run(&self, key: &Key, job: Job) {
        match job {
            Job::Send(call, request, message) => self.send(&call, request, message),
            Job::Withdraw(request, withdrawn) => {
                self.step(key, Event::Withdrawn(request));
                drop(withdrawn);
            }
            Job::Spawn(call) => self.leave(&call),
            // Its caller polls it on another runtime.
            Job::SpawnRelease(_) if self.lifecycle.has_runtime_ended() => {}
            Job::SpawnRelease(call) => call.leave(),
            Job::Keep(lease) => {
                self.renewals.keep(&lease);
                self.look_after();
                self.bound_stays(lease.id());
            }
            Job::Tell(cell, news) => cell.tell(news),
            Job::GiveBack(lease, GiveBack::Release) => self.abandon(&lease),
            Job::GiveBack(lease, GiveBack::Detach) => self.detach(&lease),
            Job::Settle(claim, maybe_in_flight) => self.settle(&claim, maybe_in_flight),
            Job::LeavePlace(claim) => self.leave_place(key, claim),
            Job::Listen => self.listen(),
            Job::Drop(entry) => drop(entry),
            Job::Report(reported) => self.report(key, reported),
        }
    }

    fn report(&self, key: &Key, reported: Reported) {
        match reported {
            Reported::Overdue(request, limit) => {
                let error = self.timed_out(limit);
                let answer = Answer::Overdue(error.clone());
                self.step(key, Event::Answered(request, answer));
                telemetry::store_failed("acquire", None, &error);
            }
            Reported::Lost(guards) => telemetry::for_each(guards, |guard| {
                guard.lose(guard.loss(Instant::now()).unwrap_or(LossReason::Expired));
            }),
            Reported::Waits(cell, ahead) => cell.begins_to_wait(|| Waiting::begins(key, ahead)),
            Reported::Unanswered(claim, limit) => {
                telemetry::store_failed("acquire", Some((key, claim)), &self.timed_out(limit));
            }
            Reported::Place(PlaceNews::Taken { ahead }) => telemetry::place_taken(key, ahead),
            Reported::Place(PlaceNews::NoRoom) => telemetry::no_place(key),
            Reported::Turn(ended) => {
                telemetry::turn_came(key, ended.ahead, ended.waited);
                if let Some((ahead, waited)) = ended.passed {
                    telemetry::places_passed(key, ahead, waited);
                }
            }
            Reported::Stays(lease) => telemetry::stays(lease.fields()),
            Reported::StayEnded(lease, why, at_once) => {
                telemetry::stay_ended(lease.fields(), why, at_once);
            }
        }
    }
}

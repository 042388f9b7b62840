//! `Job`: what follows from a change of a key, and is carried out when the lock of the keys is released.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    call::Call,
    cell::{Cell, EndReason, Ended, News},
    claim::RequestNo,
    effect::{Answer, Effect, Event, GiveBack, Refusal, Refused, Report},
    keys::{Entry, Keys},
    place::{EndedTurn, PlaceNews},
};
use crate::{
    lease_state::LeaseState,
    messages::AcquireRequest,
    model::{Error, Key, LeaseId, LossReason, WaiterId},
    release::ReleaseJob,
    telemetry::{self, StayEndReason, Waiting},
};

/// What follows from a change of a key.
pub(super) enum Job {
    Send(Arc<Call>, RequestNo, Arc<AcquireRequest>, bool),
    Withdraw(RequestNo, Arc<Call>),
    Spawn(Arc<Call>),
    Overdue(RequestNo, Error),
    Keep(Arc<LeaseState>),
    Tell(Arc<Cell>, News),
    GiveBack(Arc<LeaseState>, GiveBack),
    Settle(ReleaseJob),
    LeavePlace(LeaseId, WaiterId),
    Listen,
    Drop(Box<Entry>),
    Lose(Vec<Arc<LeaseState>>),
    Waits(Arc<Cell>, Option<usize>),
    ReportUnanswered(Error),
    ReportPlace(PlaceNews),
    ReportTurn(EndedTurn),
    ReportStays(Arc<LeaseState>),
    ReportStayEnded(Arc<LeaseState>, StayEndReason, bool),
}

impl Job {
    /// Whether it makes events, and changes nothing else that another job depends on.
    pub(super) fn is_report(&self) -> bool {
        match self {
            Self::Lose(_)
            | Self::Overdue(..)
            | Self::Waits(..)
            | Self::ReportUnanswered(_)
            | Self::ReportPlace(_)
            | Self::ReportTurn(_)
            | Self::ReportStays(_)
            | Self::ReportStayEnded(..) => true,
            Self::Send(..)
            | Self::Withdraw(..)
            | Self::Spawn(_)
            | Self::Keep(_)
            | Self::Tell(..)
            | Self::GiveBack(..)
            | Self::Settle(_)
            | Self::LeavePlace(..)
            | Self::Listen
            | Self::Drop(_) => false,
        }
    }
}

impl Keys {
    /// What is done for this effect.
    pub(super) fn job(&self, entry: &mut Entry, effect: Effect, now: Instant) -> Option<Job> {
        let stored = |claim: &LeaseId| entry.leases.get(claim).map(|it| it.lease().clone());
        Some(match effect {
            Effect::Send {
                request,
                message,
                repeats,
                by,
            } => {
                let call = Arc::new(Call::default());
                match by.and_then(|no| entry.cells.get(&no)) {
                    Some(cell) => cell.set_call(call.clone()),
                    None => self.leave(&call),
                }
                entry.calls.insert(request, call.clone());
                Job::Send(call, request, message, repeats)
            }
            Effect::Withdraw(request) => Job::Withdraw(request, entry.calls.get(&request)?.clone()),
            Effect::Spawn(request) => Job::Spawn(entry.calls.get(&request)?.clone()),
            Effect::Overdue(request, limit) => Job::Overdue(request, self.timed_out(limit)),
            Effect::Report(Report::Unanswered(limit)) => {
                Job::ReportUnanswered(self.timed_out(limit))
            }
            Effect::Keep(claim) => Job::Keep(stored(&claim)?),
            Effect::MayBeGrantedAgain(claim) => {
                stored(&claim)?.set_maybe_in_flight();
                return None;
            }
            Effect::Offer(no) => Job::Tell(entry.cells.get(&no)?.clone(), News::Offered),
            Effect::Refuse(no, refused) => {
                let ended = self.ended(entry, refused, now);
                Job::Tell(entry.cells.remove(&no)?, News::Ended(ended))
            }
            Effect::Waits(no, ahead) => {
                let cell = entry.cells.get(&no)?;
                if cell.is_counted() {
                    return None;
                }
                Job::Waits(cell.clone(), ahead)
            }
            Effect::GiveBack(claim, how) => {
                let lease = stored(&claim)?;
                if entry.state.has_waiters() {
                    // The key goes to other processes, which learn of the release when a majority has it. Otherwise the
                    // waiters of this process would come before them.
                    lease.set_awaited();
                }
                Job::GiveBack(lease, how)
            }
            Effect::Settle {
                claim,
                maybe_in_flight,
            } => Job::Settle(ReleaseJob::of_nobody(&claim, maybe_in_flight)),
            Effect::LeavePlace(claim, place) => Job::LeavePlace(claim, place),
            Effect::Bind(claim) => {
                let token = self.lifecycle.register_operation();
                entry.at_work.insert(claim, token);
                return None;
            }
            Effect::Unbind(claim) => {
                entry.at_work.remove(&claim);
                return None;
            }
            Effect::Expired(claim, numbers) => {
                let mut guards = stored(&claim)?.guards();
                guards.retain(|guard| numbers.contains(&guard.number()));
                Job::Lose(guards)
            }
            Effect::Forget(claim) => {
                // The lease lives on in its release, or in the guards that outlive it.
                entry.leases.remove(&claim);
                return None;
            }
            Effect::Listen => Job::Listen,
            Effect::Report(Report::Place(news)) => Job::ReportPlace(news),
            Effect::Report(Report::Turn(ended)) => Job::ReportTurn(ended),
            Effect::Report(Report::Stays(claim)) => Job::ReportStays(stored(&claim)?),
            Effect::Report(Report::StayEnded {
                claim,
                why,
                at_once,
            }) => {
                let lease = stored(&claim)?;
                if why == StayEndReason::WaitedFor {
                    lease.set_awaited();
                }
                Job::ReportStayEnded(lease, why, at_once)
            }
            // The caller deals with it, because it has the other keys.
            Effect::Contended => return None,
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
        let timed_out = || EndReason::Failed(self.timed_out(self.call_timeout));
        let why = match refused.why {
            Refusal::Held(held) => EndReason::Held(held),
            Refusal::HeldHere(claim) => match entry.leases.get(&claim) {
                Some(behind) => EndReason::Held(behind.lease().refusal(now)),
                None => timed_out(),
            },
            Refusal::Failed(error) => EndReason::Failed(error),
            Refusal::TimedOut => timed_out(),
            Refusal::Closed => EndReason::Failed(Error::Closed),
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
            Job::Send(call, request, message, repeats) => {
                self.send(&call, request, message, repeats);
            }
            Job::Withdraw(request, call) => {
                if call.withdraw() {
                    self.step(key, Event::Withdrawn(request));
                }
            }
            Job::Spawn(call) => self.leave(&call),
            Job::Overdue(request, error) => {
                let answer = Answer::Failed(error.clone());
                self.step(
                    key,
                    Event::Answered {
                        request,
                        answer,
                        is_last: false,
                    },
                );
                telemetry::store_failed("acquire", None, &error);
            }
            Job::Keep(lease) => {
                // This fails without a runtime, on which the request was.
                let _ = self.renewals.keep(&lease);
                self.look_after();
                self.bound_stays(lease.id());
            }
            Job::Tell(cell, news) => cell.tell(news),
            Job::GiveBack(lease, GiveBack::Release) => self.abandon(&lease),
            Job::GiveBack(lease, GiveBack::Detach) => self.detach(&lease),
            Job::Settle(job) => self.settle(job),
            Job::LeavePlace(claim, place) => self.leave_place(key, claim, place),
            Job::Listen => self.listen(),
            Job::Drop(entry) => drop(entry),
            Job::Lose(guards) => telemetry::for_each(guards, |guard| {
                guard.lose(guard.loss(Instant::now()).unwrap_or(LossReason::Expired));
            }),
            Job::Waits(cell, ahead) => cell.begins_to_wait(|| Waiting::begins(key, ahead)),
            Job::ReportUnanswered(error) => telemetry::store_failed("acquire", None, &error),
            Job::ReportPlace(PlaceNews::Taken { ahead }) => telemetry::place_taken(key, ahead),
            Job::ReportPlace(PlaceNews::NoRoom) => telemetry::no_place(key),
            Job::ReportTurn(ended) => {
                telemetry::turn_came(key, ended.ahead, ended.waited);
                if let Some((ahead, waited)) = ended.passed {
                    telemetry::places_passed(key, ahead, waited);
                }
            }
            Job::ReportStays(lease) => telemetry::stays(lease.fields()),
            Job::ReportStayEnded(lease, why, at_once) => {
                telemetry::stay_ended(lease.fields(), why, at_once);
            }
        }
    }
}

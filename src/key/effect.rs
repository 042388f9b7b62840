//! What happens to a key, and what the state of the key has its driver do.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    claim::RequestNo,
    holding::Grant,
    place::{EndedTurn, PlaceNews},
    waiters::WaiterNo,
    want::Want,
};
use crate::{
    lease_state::LeaseNumber,
    messages::{AcquireRequest, DoneTick},
    model::{Error, Fence, Held, LeaseId},
    telemetry::StayEndReason,
};

/// What happens to a key.
#[derive(Debug)]
pub(crate) enum Event {
    /// A task wants the key.
    Enter(WaiterNo, Want),
    /// A task does not want it any more.
    Leave(WaiterNo),
    /// A request was answered, or counts as failed.
    Answered(RequestNo, Answer),
    /// A request was withdrawn before it was sent.
    Withdrawn(RequestNo),
    /// The release of a lease was answered, or given up.
    Released(LeaseId),
    /// The release of what a claim may have left was answered, or given up.
    Settled(LeaseId),
    /// The request that gives up the place of a claim was answered, or has failed.
    PlaceLeft(LeaseId),
    /// The store reported that the key became free, and which processes come next, if it names them.
    Freed(Option<Vec<LeaseId>>),
    /// The key may have become free unnoticed.
    MayBeFree,
    /// The key is free, or can be shared, by something that this process has done.
    FreedHere,
    /// Leases of this process serve no further tasks: all, or the one with this id.
    StopServing(Option<LeaseId>, StayEndReason),
    /// The handle closes.
    Close,
    /// A time has come.
    Timer,
}

/// The answer to a request for a lease.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted(Grant),
    /// A grant, at this time of the server, that was answered so late that its holder cannot count on it.
    GrantedLate(DateTime<Utc>, Error),
    Held(Held),
    /// What the task wanted the key for is done.
    Done(Error),
    Failed(Error),
    /// It counts as failed, because no answer came in time. One may still come.
    Overdue(Error),
}

/// What the driver does. It does so after it has released the lock of the keys.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Sends a request. If `by` is there, the task of that waiter polls it, and otherwise a task of its own.
    Send {
        request: RequestNo,
        message: Arc<AcquireRequest>,
        by: Option<WaiterNo>,
    },
    /// Withdraws a request, if it was not sent yet.
    Withdraw(RequestNo),
    /// Lets a task of its own poll a request.
    Spawn(RequestNo),
    /// Lets a task of its own poll a release.
    SpawnRelease(LeaseId),
    /// A request was not answered within this time. The driver answers it with an error, which names the store.
    Overdue(RequestNo, Duration),
    /// Keeps a lease alive.
    Keep(LeaseId),
    /// Wakes a waiter, which takes the guard that it is offered.
    Offer(WaiterNo),
    /// Ends the wait of a task.
    Refuse(WaiterNo, Refused),
    /// Releases a lease, or gives it up without a release.
    GiveBack(LeaseId, GiveBack),
    /// Releases what a claim without a holder may have left.
    Settle {
        claim: Arc<AcquireRequest>,
        maybe_in_flight: bool,
    },
    /// Gives up a place.
    LeavePlace(LeaseId),
    /// The claim is gone.
    Forget(LeaseId),
    /// The key does not stay with this process for a while.
    Contended,
    /// Waiters need the reports of the store.
    Listen,
    Note(LeaseId, Note),
    Report(Report),
}

/// What the driver notes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A close waits for it from now on.
    Bound,
    /// A close does not wait for it any more.
    Unbound,
    /// A request for its lease may be carried out after the release, which is then to be repeated.
    MayBeGrantedAgain,
}

/// What becomes of a lease that goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveBack {
    Release,
    Detach,
}

/// How a wait ends without a guard.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    /// How many waiting processes came first when a request was first refused.
    pub(crate) ahead: Option<usize>,
    /// Whether others were served before this one until the end, so that no request was sent for it.
    pub(crate) was_behind: bool,
}

#[derive(Debug)]
pub(crate) enum Refusal {
    Held(Held),
    /// Tasks of this process have the key, under this claim.
    HeldHere(LeaseId),
    Failed(Error),
    /// No answer came in time.
    TimedOut,
    Closed,
}

/// What telemetry is told.
#[derive(Debug)]
pub(crate) enum Report {
    Place(PlaceNews),
    /// A task has to wait, behind this many processes if that is known.
    Waits(WaiterNo, Option<usize>),
    /// Guards have outlived their ttl.
    Expired(LeaseId, Vec<LeaseNumber>),
    /// A request was not answered within this time, and is repeated.
    Unanswered(LeaseId, Duration),
    Turn(EndedTurn),
    Stays(LeaseId),
    StayEnded {
        claim: LeaseId,
        why: StayEndReason,
        at_once: bool,
    },
}

/// What a waiter gets that takes what it is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) claim: LeaseId,
    pub(crate) fence: Fence,
    /// Whether it is the first guard under the claim.
    pub(crate) is_first: bool,
    pub(crate) ahead: Option<usize>,
}

/// How a guard is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    Released,
    /// The release writes this tick as done.
    Done(DoneTick),
    /// The lease is not released after it.
    Detached,
    /// As [`Detached`](Departure::Detached), for the process that gets the ticket of the lease. But if other guards are
    /// under the lease, it is theirs, and this one is released.
    Ticketed,
}

/// What came of a guard that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lease may go back"]
pub(crate) struct Departed {
    /// Whether the guard was still there. It is gone if it had outlived its ttl, and the key may have been granted
    /// again.
    pub(crate) was_there: bool,
    /// Whether the lease is not released, as the caller asked.
    pub(crate) detaches: bool,
}

/// A lease that a ticket continues.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) grant: Grant,
}

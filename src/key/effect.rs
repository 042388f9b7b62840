//! What happens to a key, and what the state of the key has its driver do.

use std::{any::Any, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    call::{Call, PolledCall, Work},
    cell::{Cell, News, WaiterNo},
    place::{EndedTurn, PlaceNews},
    waiters::Want,
};
use crate::{
    lease_state::{Ended, LeaseState},
    messages::{AcquireRequest, DoneTick},
    model::{Error, Held, LeaseId},
    telemetry::StayEndReason,
};

/// What happens to a key.
pub(crate) enum Event {
    /// A task wants the key.
    Enter(Arc<Cell>, Want),
    /// A task does not want it any more.
    Leave(WaiterNo),
    /// A request was answered, or counts as failed.
    Answered(Arc<Call>, Answer),
    /// A request was withdrawn before it was sent.
    Withdrawn(Arc<Call>),
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
pub(crate) enum Answer {
    /// A grant, and whether other processes wait.
    Granted(Arc<LeaseState>, bool),
    /// A grant, at this time of the server, that was answered so late that its holder cannot count on it: its ttl is
    /// over, or it is that of a batch, and the request was repeated meanwhile.
    GrantedLate(DateTime<Utc>, Error),
    Held(Held),
    /// What the task wanted the key for is done.
    Done(Error),
    Failed(Error),
    /// It counts as failed, because no answer came in time. One may still come.
    Overdue(Error),
}

pub(crate) type Effects = Vec<Effect>;

/// What the driver does, after it has released the lock of the keys.
pub(crate) enum Effect {
    /// Sends a request by this call, which the task of this waiter polls, and a task of its own if there is none.
    Send(Arc<Call>, Arc<AcquireRequest>, Option<Arc<Cell>>),
    /// A request was withdrawn before it was sent. What is left of it is dropped when the state knows.
    Withdrawn(Arc<Call>, Work),
    /// Lets a task of its own poll a request.
    Spawn(Arc<Call>),
    /// Lets a task of its own poll a release.
    SpawnRelease(PolledCall),
    /// A request was not answered within this time. The driver answers it with an error, which names the store.
    Overdue(Arc<Call>, Duration),
    /// Keeps a lease alive.
    Keep(Arc<LeaseState>),
    /// Wakes a waiter, which takes the guard that it is offered, or ends its wait.
    Tell(Arc<Cell>, News),
    /// Releases a lease.
    GiveBack(Arc<LeaseState>),
    /// Gives a lease up without a release.
    Detach(Arc<LeaseState>),
    /// Releases what a claim without a holder may have left, and whether a request may still be carried out after it.
    Settle(Arc<AcquireRequest>, bool),
    /// Gives up a place.
    LeavePlace(LeaseId),
    /// Waiters need the reports of the store.
    Listen,
    Report(Report),
    /// Drops the state of a key that nobody wants.
    Drop(Box<dyn Any + Send>),
}

/// What telemetry is told.
pub(crate) enum Report {
    Place(PlaceNews),
    /// A task has to wait, behind this many processes if that is known.
    Waits(Arc<Cell>, Option<usize>),
    /// Guards are lost: they have outlived their ttl, or their handle closes.
    Lost(Vec<Arc<LeaseState>>),
    /// A lease has ended, and its release has begun.
    Ended(Arc<LeaseState>, Ended),
    /// A request was not answered within a second, and is repeated.
    Unanswered(LeaseId),
    Turn(EndedTurn),
    Stays(Arc<LeaseState>),
    /// A lease does not stay any more, for this reason, and whether it goes back at once.
    StayEnded(Arc<LeaseState>, StayEndReason, bool),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the lease may go back"]
pub(crate) struct Departed {
    /// Whether the guard was still there. It is gone if it had outlived its ttl, and the key may have been granted
    /// again.
    pub(crate) was_there: bool,
    /// Whether the lease is not released, as the caller asked.
    pub(crate) detaches: bool,
}

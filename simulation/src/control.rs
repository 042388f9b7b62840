//! What can be made wrong on purpose, so that each judge is seen to find something.

use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Error, Fence, Holder,
    store::{AcquireAnswer, AcquireRequest, LastDone, LeaseId, LockRecord},
};

use crate::{judge::Judge, server::State};

/// A store or a client that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The store grants a key although it is held.
    GrantsTwice,
    /// The store says that it has renewed a lease, and does not.
    DoesNotRenew,
    /// Each grant has the same fence.
    FencesDoNotRise,
    /// The task of a lost lease never hears that it is lost.
    TellsNobody,
    /// A task that should wait in turn goes to the front.
    GoesToTheFront,
    /// The store does not look at the places.
    IgnoresPlaces,
    /// A request that would be granted is refused after a while.
    RefusesFreeKeys,
    /// The store says that it has released a lease, and does not.
    DoesNotRelease,
    /// The store lets places count for a minute, and carries out no request that gives one up.
    KeepsPlaces,
    /// The store grants permits without counting them.
    ForgetsPermits,
    /// The store forgets which tick is done.
    ForgetsTicks,
    /// A task that should wait for some time waits for ever.
    WaitsForEver,
    /// A task asks again and again, and does not pause.
    NeverPauses,
    /// A request is dropped after a moment.
    DropsRequests,
    /// A task goes on after the close of its client.
    LeavesATask,
    /// The work of a task panics although it should not.
    Panics,
}

impl Control {
    /// All of them, each with the judges that may find it first.
    pub const ALL: [(Self, &'static [Judge]); 16] = [
        (Self::GrantsTwice, &[Judge::Exclusion]),
        (Self::DoesNotRenew, &[Judge::InDocument]),
        (Self::FencesDoNotRise, &[Judge::Fences]),
        (Self::TellsNobody, &[Judge::Told]),
        (Self::GoesToTheFront, &[Judge::QueueOfProcess]),
        (Self::IgnoresPlaces, &[Judge::QueueOfProcesses]),
        (Self::RefusesFreeKeys, &[Judge::Sleeps]),
        (Self::DoesNotRelease, &[Judge::Kept]),
        (Self::KeepsPlaces, &[Judge::Place]),
        (Self::ForgetsPermits, &[Judge::Quota]),
        (Self::ForgetsTicks, &[Judge::Tick]),
        (Self::WaitsForEver, &[Judge::Bound]),
        (Self::NeverPauses, &[Judge::Flood]),
        (Self::DropsRequests, &[Judge::Dropped]),
        (Self::LeavesATask, &[Judge::Leftover]),
        (Self::Panics, &[Judge::Panicked]),
    ];

    /// Carries out an acquire in the wrong way.
    pub(crate) fn acquire(
        self,
        state: &mut State,
        request: &AcquireRequest,
        now: DateTime<Utc>,
        right: impl FnOnce(&mut State) -> Result<AcquireAnswer, Error>,
    ) -> Result<AcquireAnswer, Error> {
        let key = &request.key;
        match self {
            Self::GrantsTwice if state.version.is_multiple_of(3) => {
                let Some(record) = state.records.get_mut(key) else {
                    return right(state);
                };
                let others = std::mem::take(&mut record.holders);
                let answer = right(state);
                if let Some(record) = state.records.get_mut(key) {
                    let new = std::mem::replace(&mut record.holders, others);
                    record.holders.extend(new);
                }
                answer
            }
            Self::FencesDoNotRise => {
                let mut answer = right(state);
                let one = Fence::new(1);
                if let Ok(AcquireAnswer::Granted(grant)) = &mut answer {
                    grant.fence = one;
                }
                if let Some(record) = state.records.get_mut(key) {
                    record.fence = one;
                    record.holders.iter_mut().for_each(|it| it.fence = one);
                }
                answer
            }
            Self::IgnoresPlaces => {
                let places = state
                    .records
                    .get_mut(key)
                    .map(|it| std::mem::take(&mut it.waiters));
                let answer = right(state);
                if let (Some(record), Some(mut places)) = (state.records.get_mut(key), places) {
                    places.retain(|it| Some(it.waiter) != request.turn.waiter());
                    places.append(&mut record.waiters);
                    record.waiters = places;
                }
                answer
            }
            Self::RefusesFreeKeys if state.requests > 20 => {
                let soon = now + TimeDelta::seconds(1);
                let somebody = Holder::exclusive(
                    LeaseId::random(),
                    "somebody".into(),
                    Fence::new(1),
                    now,
                    soon,
                );
                let held = LockRecord::new(key.clone(), Fence::new(1), vec![somebody], soon);
                let record = state.records.insert(key.clone(), held);
                let answer = right(state);
                match record {
                    Some(record) => state.records.insert(key.clone(), record),
                    None => state.records.remove(key),
                };
                answer
            }
            Self::ForgetsTicks => {
                if let Some(record) = state.records.get_mut(key) {
                    record.done = LastDone::Nothing;
                }
                right(state)
            }
            Self::KeepsPlaces => {
                let answer = right(state);
                if let Some(record) = state.records.get_mut(key) {
                    let long = now + TimeDelta::seconds(60);
                    record.waiters.iter_mut().for_each(|it| it.until = long);
                }
                answer
            }
            _ => right(state),
        }
    }
}

//! What can be made wrong on purpose, so that each judge is seen to find something.

use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Error, Fence, Holder, Key,
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
        let before = state.records.get(key).cloned();
        let is_third = state.version.is_multiple_of(3);
        let refuses = self == Self::RefusesFreeKeys && state.requests > 20;
        match (self, state.records.get_mut(key)) {
            (Self::GrantsTwice, Some(record)) if is_third => record.holders.clear(),
            (Self::IgnoresPlaces, Some(record)) => record.waiters.clear(),
            (Self::ForgetsTicks, Some(record)) => record.done = LastDone::Nothing,
            _ if refuses => drop(state.records.insert(key.clone(), held(key, now))),
            _ => {}
        }
        let mut answer = right(state);
        if refuses {
            match before {
                Some(before) => state.records.insert(key.clone(), before),
                None => state.records.remove(key),
            };
            return answer;
        }
        if let (Self::FencesDoNotRise, Ok(AcquireAnswer::Granted(grant))) = (self, &mut answer) {
            grant.fence = Fence::new(1);
        }
        match (self, state.records.get_mut(key), before) {
            (Self::GrantsTwice, Some(record), Some(before)) if is_third => {
                let new = std::mem::replace(&mut record.holders, before.holders);
                record.holders.extend(new);
            }
            (Self::FencesDoNotRise, Some(record), _) => {
                record.fence = Fence::new(1);
                let holders = record.holders.iter_mut();
                holders.for_each(|it| it.fence = Fence::new(1));
            }
            (Self::IgnoresPlaces, Some(record), Some(before)) => {
                let new = std::mem::replace(&mut record.waiters, before.waiters);
                let waiter = request.turn.waiter();
                record.waiters.retain(|it| Some(it.waiter) != waiter);
                record.waiters.extend(new);
            }
            (Self::KeepsPlaces, Some(record), _) => {
                let long = now + TimeDelta::seconds(60);
                record.waiters.iter_mut().for_each(|it| it.until = long);
            }
            _ => {}
        }
        answer
    }
}

/// A document in which somebody has the key for a while.
fn held(key: &Key, now: DateTime<Utc>) -> LockRecord {
    let (fence, soon) = (Fence::new(1), now + TimeDelta::seconds(1));
    let lease = LeaseId::random();
    let holder = Holder::exclusive(lease, "somebody".into(), fence, now, soon);
    LockRecord::new(key.clone(), fence, vec![holder], soon)
}

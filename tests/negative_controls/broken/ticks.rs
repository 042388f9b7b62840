//! The faults in ticks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{
    Error,
    jobs::{Done, Tick},
    rules::{Decision, Write},
    store::{
        AcquireAnswer, AcquireRequest, LastDone, LeaseId, LockRecord, ReleaseAnswer, ReleaseKind,
        ReleaseRequest,
    },
};
use tokio::time::sleep;

use super::{BrokenStore, Fault};

impl BrokenStore {
    /// Changes what an acquire for a tick reads in the document.
    pub(super) fn misread_done(&self, request: &AcquireRequest, record: Option<&mut LockRecord>) {
        let (Some(record), Some(tick)) = (record, request.tick) else {
            return;
        };
        let now = self.now();
        let is_held = record.live_holders(now).next().is_some();
        let LastDone::Tick(done) = &mut record.done else {
            return;
        };
        let is_unseen = match self.fault {
            Fault::OlderTicksPass => tick < done.tick,
            Fault::TicksOfOtherKindsPass => tick.kind() != done.tick.kind(),
            Fault::TicksAreWaitedFor => is_held,
            _ => false,
        };
        if is_unseen {
            record.done = LastDone::Nothing;
        } else if self.is(Fault::TicksAreNumbers) {
            done.tick = Tick::stored(tick.kind(), done.tick.number());
        }
    }

    /// Changes what the acquire leaves in `done`.
    pub(super) fn leave_done_wrongly(
        &self,
        request: &AcquireRequest,
        before: LastDone,
        decision: &mut Decision<Result<AcquireAnswer, Error>>,
    ) {
        let Write::Put(record) = &mut decision.write else {
            return;
        };
        record.done = match (self.fault, request.tick, &decision.answer) {
            (Fault::GrantsForgetTicks, _, Ok(AcquireAnswer::Granted(_))) => LastDone::Nothing,
            (Fault::GrantsAreDone, Some(tick), Ok(AcquireAnswer::Granted(_))) => {
                let by = (request.lease, request.owner.clone());
                let now = self.now();
                LastDone::Tick(Done::new(tick, by, now, now + request.ttl))
            }
            _ => before,
        };
    }

    /// Reads whether the tick is done, and does not check that again when it writes.
    pub(super) async fn look_at_the_tick_first(&self, request: &mut AcquireRequest) {
        let record = self.record(&request.key);
        if let (Some(tick), Some(LastDone::Tick(done))) = (request.tick, record.map(|it| it.done))
            && done.tick >= tick
        {
            return;
        }
        sleep(Duration::from_secs(1)).await;
        request.tick = None;
    }

    /// Changes what is decided about a release with a tick that was done.
    pub(super) fn complete_wrongly(
        &self,
        request: &ReleaseRequest,
        record: Option<&LockRecord>,
        now: DateTime<Utc>,
        decision: &mut Decision<ReleaseAnswer>,
    ) {
        let Some(record) = record else { return };
        let ReleaseKind::Done(done) = request.kind else {
            if let (Fault::ReleasesForgetTicks, Write::Put(left)) =
                (self.fault, &mut decision.write)
            {
                left.done = LastDone::Nothing;
            }
            return;
        };
        match (self.fault, &mut decision.write) {
            (Fault::LostLeasesAreDone, Write::Keep) => {
                let mut record = record.clone();
                let by = (request.lease, "who lost it".into());
                record.done = LastDone::Tick(Done::new(done.tick, by, now, now + done.kept_for));
                decision.write = Write::Put(record);
            }
            (Fault::NothingIsDone, Write::Put(left)) => left.done = record.done.clone(),
            (Fault::NobodyKnowsWhoDidIt, Write::Put(left)) => {
                if let LastDone::Tick(done) = &mut left.done {
                    done.lease = LeaseId::random();
                }
            }
            _ => {}
        }
    }
}

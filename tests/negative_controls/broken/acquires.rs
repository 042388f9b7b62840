//! The faults in acquires.

use std::{num::NonZeroU16, time::Duration};

use leasehold::{
    Error, Fence, Mode,
    limits::MAX_HOLDERS,
    rules::{self, Decision, Write},
    store::{Access, AcquireAnswer, AcquireRequest, LeaseId, OwnLeases},
};

use super::{BrokenStore, Fault};

impl BrokenStore {
    pub(super) async fn acquire_wrongly(
        &self,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        let mut before = self.record(&request.key);
        if let Some(before) = before.as_mut().filter(|_| self.is(Fault::DeadReadersBlock)) {
            for reader in before
                .holders
                .iter_mut()
                .filter(|it| it.mode == Mode::Shared)
            {
                reader.expires_at += Duration::from_secs(3600);
            }
        }
        if self.is(Fault::NotAtomic) {
            tokio::task::yield_now().await;
        }
        let mut request = request.clone();
        if self.is(Fault::TickIsLookedAtFirst) {
            self.look_at_the_tick_first(&mut request).await;
            before = self.record(&request.key);
        }
        if self.is(Fault::ForgetsLease) {
            request.lease = LeaseId::random();
        }
        if self.is(Fault::FencesOneByOne) {
            request.fences = NonZeroU16::MIN;
        }
        if let Access::Permits(permits) = request.access
            && self.is(Fault::PermitsWithoutCount)
        {
            request = request.permits(permits.n(), i64::MAX)?;
        }
        // One holder too many is let in, as if another one had left.
        let full = before
            .as_mut()
            .filter(|before| before.holders.len() == MAX_HOLDERS);
        let hidden = match full {
            Some(full) if self.is(Fault::HoldersWithoutBound) => full.holders.pop(),
            _ => None,
        };
        if matches!(request.own_leases, OwnLeases::TakenOver(_)) {
            match self.fault {
                Fault::TakeOversEnterAgain => request = request.reentrant(),
                Fault::TakeOversWait => request.own_leases = OwnLeases::Conflict,
                Fault::TakeOversOfAnybody => {
                    let holders = before.iter().flat_map(|before| &before.holders);
                    let all: Vec<_> = holders.map(|holder| holder.lease).collect();
                    request = request.take_over(all);
                }
                _ => {}
            }
        }
        self.misread_turn(&mut request, before.as_mut());
        let done = before.as_ref().map(|before| before.done.clone());
        self.misread_done(&request, before.as_mut());
        let mut decision = rules::acquire(before.as_ref(), &request, self.now());
        if let Some(before) = self.record(&request.key) {
            self.decide_turn_wrongly(&request, &before, &mut decision);
        }
        self.leave_done_wrongly(&request, done.unwrap_or_default(), &mut decision);
        if let (Some(hidden), Write::Put(record)) = (hidden, &mut decision.write) {
            record.holders.push(hidden);
        }
        let refused = matches!(decision.answer, Ok(AcquireAnswer::Held(_)));
        match (&mut decision, before) {
            (
                Decision {
                    write: write @ Write::Keep,
                    ..
                },
                Some(mut record),
            ) if refused => {
                if self.is(Fault::LosersExtend) {
                    for holder in &mut record.holders {
                        holder.expires_at += request.ttl;
                    }
                    *write = Write::Put(record);
                } else if self.is(Fault::LosersWrite) {
                    record.fence = Fence::new(record.fence.get() + 1);
                    *write = Write::Put(record);
                }
            }
            (
                Decision {
                    write: Write::Put(record),
                    answer: Ok(AcquireAnswer::Granted(grant)),
                },
                before,
            ) => {
                let fence = match (self.fault, before) {
                    (Fault::NoFence, _) => Some(Fence::new(1)),
                    (Fault::FenceRestarts, before) => before
                        .filter(|before| !before.holders.is_empty())
                        .map(|before| Fence::new(before.fence.get() + 1))
                        .or(Some(Fence::new(1))),
                    _ => None,
                };
                if let Some(fence) = fence {
                    (record.fence, record.holders[0].fence, grant.fence) = (fence, fence, fence);
                }
                if self.is(Fault::ExpiresEarly) {
                    record.expires_at = grant.acquired_at + request.ttl / 2;
                    record.holders[0].expires_at = record.expires_at;
                }
            }
            _ => {}
        }
        self.write(&request.key, decision.write);
        if let Ok(AcquireAnswer::Granted(grant)) = &decision.answer {
            self.fences.lock().insert(request.lease, grant.fence);
        }
        decision.answer
    }
}

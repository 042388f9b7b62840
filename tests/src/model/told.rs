//! The answers of a store, without what may differ from another store.

use std::time::Duration;

use leasehold::{
    Fence, Held, Holder, Key, Mode, Place,
    jobs::{Done, Tick},
    store::{AcquireAnswer, AcquireRequest, Grant, LeaseId, RenewAnswer},
};

use super::Side;

/// The holders of a key, without what may differ.
pub(super) type Holders = Vec<Entry>;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    lease: LeaseId,
    owner: String,
    mode: Mode,
    permits: i64,
    fence: usize,
    minutes: u64,
    note: Option<String>,
}

/// An answer, without what may differ.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Granted {
        fence: usize,
        minutes: u64,
    },
    /// Held by these, with this number of processes ahead, and whether a free key is kept for them.
    Held(Holders, usize, bool),
    Lost(String),
    Released(String),
    Evicted(Option<(usize, Vec<LeaseId>)>),
    Removed(bool),
    Done(DoneTick),
    OtherTickKind,
    OtherFence,
    State(Option<(usize, Holders, Vec<Waits>, Option<DoneTick>)>),
    All(Vec<Told>),
    Nothing,
}

impl Told {
    /// Whether this answer may have freed a key that is free now.
    pub(super) fn may_free(&self) -> bool {
        match self {
            Self::Granted { .. } | Self::Released(_) | Self::Evicted(_) => true,
            Self::All(all) => all.iter().any(Self::may_free),
            _ => false,
        }
    }
}

/// A place, without what may differ.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waits {
    waiter: LeaseId,
    owner: String,
    mode: Mode,
    permits: i64,
}

pub(super) fn waits(place: &Place) -> Waits {
    Waits {
        waiter: place.waiter,
        owner: place.owner.to_string(),
        mode: place.mode,
        permits: place.permits,
    }
}

/// What is done, without what may differ: the tick, who did it, and for how many minutes it is remembered.
pub(super) type DoneTick = (Tick, String, LeaseId, u64);

pub(super) fn done_tick(done: &Done) -> Result<DoneTick, String> {
    let kept_for = (done.until - done.at).to_std();
    let kept_for = kept_for.map_err(|_| format!("{done:?} is forgotten before it is done"))?;
    Ok((
        done.tick,
        done.by.to_string(),
        done.lease,
        minutes(kept_for),
    ))
}

impl Side {
    pub(super) fn acquired(
        &mut self,
        request: &AcquireRequest,
        answer: &AcquireAnswer,
    ) -> Result<Told, String> {
        let key = &request.key;
        match answer {
            AcquireAnswer::Granted(grant) => {
                self.takes_its_fences(request, grant.fence)?;
                self.granted(key, grant)
            }
            AcquireAnswer::Held(held) => self.held(key, held),
            AcquireAnswer::Done(done) => Ok(Told::Done(done_tick(done)?)),
        }
    }

    pub(super) fn held(&mut self, key: &Key, held: &Held) -> Result<Told, String> {
        let holders = self.holders(key, held.holders())?;
        Ok(Told::Held(
            holders,
            held.ahead(),
            !held.binds_for().is_zero(),
        ))
    }

    pub(super) fn granted(&mut self, key: &Key, grant: &Grant) -> Result<Told, String> {
        Ok(Told::Granted {
            fence: self.fence(key, grant.fence)?,
            minutes: minutes(grant.expires_in()),
        })
    }

    pub(super) fn renewed(
        &mut self,
        key: &Key,
        answer: &Result<RenewAnswer, leasehold::Error>,
    ) -> Result<Told, String> {
        match answer.as_ref().map_err(|error| format!("{error:?}"))? {
            RenewAnswer::Renewed(grant) => self.granted(key, grant),
            lost => Ok(Told::Lost(format!("{lost:?}"))),
        }
    }

    pub(super) fn holders(&mut self, key: &Key, holders: &[Holder]) -> Result<Holders, String> {
        let entry = |holder: &Holder| {
            let lifetime = (holder.expires_at - holder.acquired_at).to_std();
            let lifetime = lifetime.map_err(|_| format!("{holder:?} ends before it begins"))?;
            Ok(Entry {
                lease: holder.lease,
                owner: holder.owner.to_string(),
                mode: holder.mode,
                permits: holder.permits,
                fence: self.fence(key, holder.fence)?,
                minutes: minutes(lifetime),
                note: holder.note.as_ref().map(ToString::to_string),
            })
        };
        holders.iter().map(entry).collect()
    }

    /// Checks that a new fence leaves room for those that the request takes. All earlier grants were seen.
    pub(super) fn takes_its_fences(
        &self,
        request: &AcquireRequest,
        fence: Fence,
    ) -> Result<(), String> {
        let seen = self.fences.get(&request.key).map_or(&[][..], Vec::as_slice);
        match seen.last() {
            Some(last)
                if !seen.contains(&fence)
                    && fence.get() < last.get() + i64::from(request.fences.get()) =>
            {
                let fences = request.fences;
                Err(format!(
                    "a grant of {fences} fences has {fence} after {last}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The number of a fence among those of its key. A new fence must be greater than all before.
    pub(super) fn fence(&mut self, key: &Key, fence: Fence) -> Result<usize, String> {
        let seen = self.fences.entry(key.clone()).or_default();
        if let Some(number) = seen.iter().position(|earlier| *earlier == fence) {
            return Ok(number);
        }
        if seen.last().is_some_and(|last| fence < *last) {
            return Err(format!("the fence {fence} comes after {seen:?}"));
        }
        seen.push(fence);
        Ok(seen.len() - 1)
    }
}

/// The duration in units of ten minutes. That is close enough for two clocks, however slow the machine is.
pub(super) fn minutes(duration: Duration) -> u64 {
    (duration.as_secs() + 300) / 600
}

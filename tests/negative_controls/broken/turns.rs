//! The faults in the queue of the processes.

use std::time::Duration;

use leasehold::{
    Error, Place,
    limits::{MAX_PLACE_TIME, MAX_PLACES},
    rules::{self, Decision, Write},
    store::{Access, AcquireAnswer, AcquireRequest, InTurn, LeaseId, LockRecord, OwnLeases, Turn},
};

use super::{BrokenStore, Fault};

type Acquired = Decision<Result<AcquireAnswer, Error>>;

impl BrokenStore {
    /// Changes the request and the document before anything is decided.
    pub(super) fn misread_turn(
        &self,
        request: &mut AcquireRequest,
        record: Option<&mut LockRecord>,
    ) {
        let now = self.now();
        let barges = match self.fault {
            Fault::ReadersPassWriters => request.access == Access::Shared,
            Fault::SmallPermitsPass => matches!(request.access, Access::Permits(_)),
            _ => false,
        };
        if barges {
            request.turn = Turn::Barging;
        }
        if self.is(Fault::NobodyBarges) && request.turn == Turn::Barging {
            request.turn = Turn::Behind;
        }
        let Some(record) = record else { return };
        match self.fault {
            Fault::DeadPlacesBlock => {
                for place in &mut record.waiters {
                    place.until = now + MAX_PLACE_TIME;
                }
            }
            Fault::PlacesBindForEver if record.live_holders(now).next().is_none() => {
                record.expires_at = now;
            }
            Fault::PlacesBindFromTheLastExpiry if record.live_holders(now).next().is_none() => {
                let last = record.holders.iter().map(|holder| holder.expires_at).max();
                record.expires_at = last.unwrap_or(record.expires_at);
            }
            Fault::PlacesWithoutBound => record.waiters.truncate(MAX_PLACES - 1),
            _ => {}
        }
    }

    /// Changes what is decided about the document.
    pub(super) fn decide_turn_wrongly(
        &self,
        request: &AcquireRequest,
        before: &LockRecord,
        decision: &mut Acquired,
    ) {
        let now = self.now();
        let waiter = request.turn.waiter();
        let is_mine = |place: &&Place| Some(place.waiter) == waiter;
        let mine = before.waiters.iter().find(is_mine);
        let granted = matches!(decision.answer, Ok(AcquireAnswer::Granted(_)));
        let passes = request.turn == Turn::Barging;
        if self.is(Fault::OwnersQueueBehindThemselves) && request.is_reentrant() && granted {
            // The decision is made as if nobody had the key, and as if the request came from
            // another owner.
            let mut others = LockRecord::new(before.key.clone(), before.fence, Vec::new(), now);
            others.waiters = before.waiters.clone();
            let mut other = request.clone();
            other.own_leases = OwnLeases::Conflict;
            let refused = rules::acquire(Some(&others), &other, now);
            if matches!(refused.answer, Ok(AcquireAnswer::Held(_))) {
                *decision = refused;
                decision.write = Write::Keep;
            }
            return;
        }
        if let Ok(AcquireAnswer::Held(held)) = &mut decision.answer {
            let (ahead, binds_for) = (held.ahead(), held.binds_for());
            let told = match self.fault {
                Fault::CountsOneMoreAhead => (ahead + 1, binds_for),
                Fault::HidesForHowLongPlacesBind => (ahead, Duration::ZERO),
                _ => (ahead, binds_for),
            };
            if told != (ahead, binds_for) {
                *held = held.clone().behind(told.0, told.1);
            }
        }
        match (self.fault, &mut decision.write) {
            (Fault::ForgetsPlaces, Write::Put(record)) => record.waiters.clear(),
            (Fault::PlacesWithoutOwner, Write::Put(record)) => {
                for place in &mut record.waiters {
                    place.owner = "".into();
                }
            }
            (Fault::PlacesAreShortened | Fault::PlacesCountForAnyTime, Write::Put(record))
                if !granted =>
            {
                let places = record.waiters.iter_mut();
                for mine in places.filter(|place| is_mine(&&**place)) {
                    if let Turn::InTurn(InTurn { counts_for, .. }) = request.turn {
                        let shortens = now + counts_for < mine.until;
                        if shortens == self.is(Fault::PlacesAreShortened) {
                            mine.until = now + counts_for;
                        }
                    }
                }
            }
            (Fault::PassedPlacesStay, Write::Put(record)) if granted => {
                record.waiters = before.waiters.clone();
                record.waiters.retain(|place| !is_mine(&place));
            }
            (Fault::PlaceStaysAfterItsGrant, Write::Put(record)) if granted => {
                record.waiters.splice(0..0, mine.cloned());
            }
            (Fault::WhoPassesEndsTheQueue, Write::Put(record)) if granted && passes => {
                record.waiters.clear();
            }
            (Fault::PlacesWithoutBound, Write::Put(record)) => {
                let hidden = before.waiters.iter().skip(MAX_PLACES - 1);
                let last = record.waiters.len().min(MAX_PLACES - 1);
                record.waiters.splice(last..last, hidden.cloned());
            }
            (Fault::PlacesEndWhateverIsAsked, write @ Write::Put(_))
                if !granted && mine.is_some() =>
            {
                *write = Write::Keep;
            }
            (Fault::WhoAsksAgainComesLast, Write::Put(record)) if !granted => {
                record.waiters.sort_by_key(|place| is_mine(&place));
            }
            (Fault::PlacesAreForAllKeys, Write::Put(record)) if !granted => {
                for other in self.records.lock().values_mut() {
                    other.waiters = record.waiters.clone();
                }
            }
            (Fault::TriesTakePlaces, write @ Write::Keep)
                if !granted && request.turn == Turn::Behind =>
            {
                let mut record = before.clone();
                let until = now + Duration::from_secs(30);
                let (access, owner) = (request.access, request.owner.clone());
                let access = (access.mode(), access.permits());
                let waiter = LeaseId::random();
                record
                    .waiters
                    .push(Place::new(waiter, owner, access, now, until));
                *write = Write::Put(record);
            }
            _ => {}
        }
    }
}

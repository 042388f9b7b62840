//! The work that is due: the batches to send, and the split of a batch without an answer.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Batch, Due, RenewalState, Schedule,
    under_way::{BatchId, InFlightBatch, NextBatch, has_slot},
};
use crate::{
    lease_state::{LeaseNumber, timing},
    messages::MAX_RENEWALS,
};

/// The number of parts into which a batch without an answer is split. A batch of [`MAX_RENEWALS`] is split into single
/// leases in three steps, for which there is time before the deadline.
const PARTS: usize = 10;

impl<T: Clone> Schedule<T> {
    /// Takes the work that is due now, and counts its batches as sent now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Due<T> {
        let mut due = Due {
            batches: Vec::new(),
            overdue: self.split_overdue(now),
            expired: Vec::new(),
        };
        while let Some((at, id)) = self.planned.first().copied()
            && at <= now
        {
            self.set_state(id, RenewalState::Ready, at);
        }
        let passed = |(at, id): (Instant, LeaseNumber)| (at <= now).then_some(id);
        while let Some(id) = self.ready.first().and_then(passed) {
            due.expired.extend(self.remove(id));
        }
        self.expire_repeats(now, &mut due.expired);
        while let Some(batch) = self.take_next_batch(now) {
            due.batches.push(batch);
        }
        due
    }

    /// Splits the batches that were not answered in time, and returns their leases.
    fn split_overdue(&mut self, now: Instant) -> Vec<T> {
        let mut overdue = Vec::new();
        let late = |(id, batch): (&BatchId, &InFlightBatch)| {
            (!batch.is_overdue && batch.overdue_at() <= now).then_some(*id)
        };
        let late: Vec<_> = self.under_way.iter().filter_map(late).collect();
        for id in late {
            let Some(batch) = self.under_way.get_mut(&id) else {
                continue;
            };
            batch.is_overdue = true;
            let leases = std::mem::take(&mut batch.leases);
            self.window.unanswered(leases.len(), batch.sent, now);
            let mut again = Vec::with_capacity(leases.len());
            for lease in leases {
                if let Some(entry) = self.leases.get_mut(&lease)
                    && entry.state == RenewalState::Sent(id)
                {
                    entry.state = RenewalState::Repeat;
                    overdue.push(entry.lease.clone());
                    again.push(lease);
                }
            }
            let part = again.len().div_ceil(PARTS).max(1);
            self.repeats.extend(again.chunks(part).map(<[_]>::to_vec));
        }
        // A batch on a connection that broke unnoticed must not count as under way for ever.
        self.under_way
            .retain(|_, batch| !batch.is_overdue || now < batch.forgotten_at());
        overdue
    }

    /// Removes leases from the parts that are to be sent once more: those that were answered or removed since, and
    /// those whose deadline has passed. The latter are added to `expired`.
    fn expire_repeats(&mut self, now: Instant, expired: &mut Vec<T>) {
        for mut part in std::mem::take(&mut self.repeats) {
            part.retain(|id| match self.leases.get(id) {
                Some(entry) if entry.state == RenewalState::Repeat && entry.deadline <= now => {
                    expired.extend(self.remove(*id));
                    false
                }
                Some(entry) => entry.state == RenewalState::Repeat,
                None => false,
            });
            if !part.is_empty() {
                self.repeats.push_back(part);
            }
        }
    }

    /// Takes the next batch, if there is one and it may be sent.
    fn take_next_batch(&mut self, now: Instant) -> Option<Batch<T>> {
        if let Some(place) = self.next_repeat(now)
            && let Some(part) = self.repeats.remove(place)
        {
            return Some(self.send(part, true, now));
        }
        let ttl = self.next_first(now)?;
        let together = self.ready_together(ttl, now);
        (!together.is_empty()).then(|| self.send(together, false, now))
    }

    /// Whether a batch of leases that are ready may be sent.
    pub(super) fn may_send_first(&self, now: Instant) -> bool {
        // If there is no slot for a ttl, there is none for a longer one.
        let shortest = self.ready.shortest_ttl();
        shortest.is_some_and(|ttl| self.has_slot(false, ttl, now))
    }

    /// The ttl of the leases that are sent next: the nearest deadline first, among those for which one more batch may
    /// be sent.
    fn next_first(&self, now: Instant) -> Option<Duration> {
        if !self.may_send_first(now) {
            return None;
        }
        let mut refused = Duration::MAX;
        let ready = self.ready_in_order(now);
        let mut ttls = ready.filter_map(|id| Some(self.leases.get(&id)?.ttl));
        ttls.find(|ttl| {
            let has_slot = *ttl < refused && self.has_slot(false, *ttl, now);
            if !has_slot {
                refused = refused.min(*ttl);
            }
            has_slot
        })
    }

    /// The place in the list of the part that is sent once more next: the one with the nearest deadline, by the first
    /// of its leases that is still kept alive, among those for which one more may be sent.
    pub(super) fn next_repeat(&self, now: Instant) -> Option<usize> {
        let (mut accepted, mut refused) = (Duration::ZERO, Duration::MAX);
        let mut next = None;
        for (place, part) in self.repeats.iter().enumerate() {
            let Some(entry) = part.iter().find_map(|id| self.leases.get(id)) else {
                continue;
            };
            let (ttl, deadline) = (entry.ttl, entry.deadline);
            if ttl > accepted {
                if ttl >= refused || !self.has_slot(true, ttl, now) {
                    refused = refused.min(ttl);
                    continue;
                }
                accepted = ttl;
            }
            if next.is_none_or(|(nearest, _)| deadline < nearest) {
                next = Some((deadline, place));
            }
        }
        next.map(|(_, place)| place)
    }

    /// The shortest ttl of the leases that are due and wait.
    pub(super) fn shortest_waiting(&self) -> Option<Duration> {
        let entry = |part: &Vec<LeaseNumber>| part.iter().find_map(|id| self.leases.get(id));
        let repeats = self
            .repeats
            .iter()
            .filter_map(|part| Some(entry(part)?.ttl));
        repeats.chain(self.ready.shortest_ttl()).min()
    }

    fn has_slot(&self, is_repeat: bool, ttl: Duration, now: Instant) -> bool {
        let next = NextBatch { is_repeat, ttl };
        has_slot(&self.under_way, next, self.window.max_batches(), now)
    }

    /// The leases that are ready, the nearest deadline first, and last those for which an answer would come too late.
    fn ready_in_order(&self, now: Instant) -> impl Iterator<Item = LeaseNumber> {
        let answered = now + self.window.expected();
        let is_too_late = move |(deadline, _): &(Instant, LeaseNumber)| *deadline <= answered;
        let in_time = self.ready.iter().skip_while(is_too_late);
        let too_late = self.ready.iter().take_while(is_too_late);
        in_time.chain(too_late).map(|(_, id)| id)
    }

    /// The leases for one batch: those with a similar ttl that are ready, and then those that will be due soon, if
    /// there is room. The answer to a batch has to come in time for its shortest ttl.
    fn ready_together(&self, ttl: Duration, now: Instant) -> Vec<LeaseNumber> {
        let size = self.window.size();
        let goes_along = |id: &LeaseNumber, soon: Option<Instant>| {
            self.leases.get(id).is_some_and(|entry| {
                let alike = entry.ttl / 2 <= ttl && ttl / 2 <= entry.ttl;
                let is_soon = |due| {
                    let is_planned = entry.state == RenewalState::Planned && entry.errors == 0;
                    is_planned && due <= now + timing::max_advance(entry.ttl)
                };
                alike && soon.is_none_or(is_soon)
            })
        };
        let ready = self.ready_in_order(now);
        let mut together: Vec<_> = ready.filter(|id| goes_along(id, None)).take(size).collect();
        if together.is_empty() {
            return together;
        }
        let room = size - together.len();
        let planned = self.planned.iter().take(2 * MAX_RENEWALS);
        let soon = planned.filter(|(due, id)| goes_along(id, Some(*due)));
        together.extend(soon.take(room).map(|(_, id)| *id));
        together
    }

    fn send(&mut self, leases: Vec<LeaseNumber>, is_repeat: bool, now: Instant) -> Batch<T> {
        self.last_batch.0 += 1;
        let id = self.last_batch;
        let mut batch = Batch {
            id,
            leases: Vec::with_capacity(leases.len()),
            lag: Duration::ZERO,
        };
        let mut shortest = None;
        for lease in &leases {
            if let Some(entry) = self.leases.get(lease) {
                batch.leases.push((*lease, entry.lease.clone()));
                batch.lag = batch.lag.max(now.saturating_duration_since(entry.due));
                shortest = Some(shortest.map_or(entry.ttl, |ttl: Duration| ttl.min(entry.ttl)));
            }
            self.set_state(*lease, RenewalState::Sent(id), now);
        }
        let under_way = InFlightBatch {
            leases,
            sent: now,
            ttl: shortest.unwrap_or_default(),
            is_repeat,
            is_overdue: false,
            overtaken: 0,
        };
        self.under_way.insert(id, under_way);
        batch
    }
}

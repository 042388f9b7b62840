//! The work that is due: the batches to send, and the split of a batch without an answer.

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::{Batch, Due, InFlightBatch, RenewalState, Schedule, ScheduledLease};
use crate::{
    lease_state::{LeaseNumber, timing},
    messages::MAX_RENEWALS,
};

/// The number of parts into which a batch without an answer is split. A batch of [`MAX_RENEWALS`] is split into single
/// leases in three steps, for which there is time before the deadline.
const PARTS: usize = 10;

/// The greatest number of parts of split batches that may be under way. It is more than one because several leases may
/// hang in the server, and the parts without such a lease must still be sent.
pub(super) const REPEATS: usize = 4;
/// The greatest number of batches under way, including those that were not answered in time. Each uses a connection.
pub(super) const MOST_UNANSWERED: usize = 24;
/// If this many batches that were sent later have ended, the earlier batch hangs, and the store is not slow.
const OVERTAKEN: u32 = 2;

impl<T: Clone> Schedule<T> {
    /// Takes the work that is due now, the batches last, and counts them as sent now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Due<T>> {
        let mut due = self.split_overdue(now);
        while let Some((at, id)) = self.planned.first().copied()
            && at <= now
        {
            self.set_state(id, RenewalState::Ready, at);
        }
        while let Some((deadline, id)) = self.ready.first().copied()
            && deadline <= now
        {
            due.extend(self.remove(id).map(Due::Expired));
        }
        self.expire_repeats(now, &mut due);
        while let Some(batch) = self.take_next_batch(now) {
            due.push(Due::Send(batch));
        }
        due
    }

    /// Splits the batches that were not answered in time, and returns their leases.
    fn split_overdue(&mut self, now: Instant) -> Vec<Due<T>> {
        let mut overdue = Vec::new();
        for (id, batch) in &mut self.under_way {
            if batch.is_overdue || now < batch.overdue_at() {
                continue;
            }
            batch.is_overdue = true;
            let mut again = mem::take(&mut batch.leases);
            self.window.unanswered(again.len(), batch.sent, now);
            again.retain(|lease| match self.leases.get_mut(lease) {
                Some(entry) if entry.state == RenewalState::Sent(*id) => {
                    entry.state = RenewalState::Repeat;
                    overdue.push(Due::Overdue(entry.lease.clone()));
                    true
                }
                _ => false,
            });
            let part = again.len().div_ceil(PARTS).max(1);
            self.repeats.extend(again.chunks(part).map(<[_]>::to_vec));
        }
        // A batch on a connection that broke unnoticed must not count as under way for ever.
        self.under_way
            .retain(|_, batch| !batch.is_overdue || now < batch.changes_at());
        overdue
    }

    /// Removes leases from the parts that are to be sent once more: those that were answered or removed since, and
    /// those whose deadline has passed. The latter are added to `due`.
    fn expire_repeats(&mut self, now: Instant, due: &mut Vec<Due<T>>) {
        let mut repeats = mem::take(&mut self.repeats);
        for part in &mut repeats {
            part.retain(|id| match self.leases.get(id) {
                Some(entry) if entry.state == RenewalState::Repeat && entry.deadline <= now => {
                    due.extend(self.remove(*id).map(Due::Expired));
                    false
                }
                Some(entry) => entry.state == RenewalState::Repeat,
                None => false,
            });
        }
        repeats.retain(|part| !part.is_empty());
        self.repeats = repeats;
    }

    /// Takes the next batch, if there is one and it may be sent.
    fn take_next_batch(&mut self, now: Instant) -> Option<Batch<T>> {
        if let Some(place) = self.next_repeat(now) {
            let part = self.repeats.remove(place)?;
            return Some(self.send(part, true, now));
        }
        let together = self.ready_together(self.next_first(now)?, now);
        Some(self.send(together, false, now))
    }

    /// The ttl of the leases that are sent next: the nearest deadline first, among those for which one more batch may
    /// be sent.
    pub(super) fn next_first(&self, now: Instant) -> Option<Duration> {
        let longest = self.longest_first_wait(now)?;
        let ready = self.ready_in_order(now);
        let mut ttls = ready.filter_map(|id| Some(self.leases.get(&id)?.ttl));
        ttls.find(|ttl| timing::response_timeout(*ttl) <= longest)
    }

    /// The [longest wait](Self::longest_wait) for a first batch, if one of the leases that are ready may be sent in it. This
    /// is asked after each change, so it does not look at each of them.
    pub(super) fn longest_first_wait(&self, now: Instant) -> Option<Duration> {
        let longest = self.longest_wait(false, now)?;
        // If there is no slot for the shortest ttl, there is none for a longer one.
        let (shortest, _) = self.ready_by_ttl.first()?;
        (timing::response_timeout(*shortest) <= longest).then_some(longest)
    }

    /// The place in the list of the part that is sent once more next: the one with the nearest deadline among those for
    /// which one more may be sent.
    pub(super) fn next_repeat(&self, now: Instant) -> Option<usize> {
        let longest = self.longest_wait(true, now)?;
        let may_be_sent = |ttl| timing::response_timeout(ttl) <= longest;
        let parts = self.parts().filter(|(_, entry)| may_be_sent(entry.ttl));
        let (place, _) = parts.min_by_key(|(_, entry)| entry.deadline)?;
        Some(place)
    }

    /// For how long the leases of a batch may wait for [an answer](timing::response_timeout) at most, so that the batch
    /// may be sent now: batches that are older than that hang for them. `None` if no batch may be sent. Repeats are
    /// counted separately, so that repeats that hang do not delay first batches, and first batches do not delay repeats.
    fn longest_wait(&self, is_repeat: bool, now: Instant) -> Option<Duration> {
        if self.under_way.len() >= MOST_UNANSWERED {
            return None;
        }
        let newest_first = self.under_way.values().rev();
        let at_work = newest_first
            .filter(|batch| batch.is_repeat == is_repeat && batch.overtaken < OVERTAKEN);
        let most_young = if is_repeat {
            REPEATS
        } else if at_work.clone().count() < self.window.max_batches() {
            return Some(Duration::MAX);
        } else {
            // If all the others hang, one may still be sent, to find out whether the store answers again.
            1
        };
        let mut young = at_work.filter(|batch| !batch.is_overdue && now < batch.overdue_at());
        let hangs = young.nth(most_young - 1).map(|batch| batch.sent);
        Some(hangs.map_or(Duration::MAX, |sent| now.saturating_duration_since(sent)))
    }

    /// The places of the parts that are to be sent once more, each with the first of its leases that is still kept
    /// alive.
    fn parts(&self) -> impl Iterator<Item = (usize, &ScheduledLease<T>)> {
        let first = |part: &Vec<_>| part.iter().find_map(|id| self.leases.get(id));
        let parts = self.repeats.iter().enumerate();
        parts.filter_map(move |(place, part)| Some((place, first(part)?)))
    }

    /// The shortest ttl of the leases that are due and wait.
    pub(super) fn shortest_waiting(&self) -> Option<Duration> {
        let repeats = self.parts().map(|(_, entry)| entry.ttl);
        let ready = self.ready_by_ttl.first().map(|(ttl, _)| *ttl);
        repeats.chain(ready).min()
    }

    /// The leases that are ready, the nearest deadline first, and last those for which an answer would come too late.
    fn ready_in_order(&self, now: Instant) -> impl Iterator<Item = LeaseNumber> {
        let answered = now + self.window.expected();
        let is_too_late = move |(deadline, _): &&(Instant, LeaseNumber)| *deadline <= answered;
        let in_time = self.ready.iter().skip_while(is_too_late);
        let too_late = self.ready.iter().take_while(is_too_late);
        in_time.chain(too_late).map(|(_, id)| *id)
    }

    /// The leases for one batch: those with a similar ttl that are ready, and then those that will be due soon, if
    /// there is room. The answer to a batch has to come in time for its shortest ttl.
    fn ready_together(&self, ttl: Duration, now: Instant) -> Vec<LeaseNumber> {
        let alike = |id: &LeaseNumber| {
            let entry = self.leases.get(id)?;
            (entry.ttl / 2 <= ttl && ttl / 2 <= entry.ttl).then_some(entry)
        };
        let is_soon = |due: Instant, entry: &ScheduledLease<T>| {
            let is_planned = entry.state == RenewalState::Planned && entry.errors == 0;
            is_planned && due <= now + timing::max_advance(entry.ttl)
        };
        let ready = self.ready_in_order(now).filter(|id| alike(id).is_some());
        let planned = self.planned.iter().take(2 * MAX_RENEWALS);
        let soon = planned.filter(|(due, id)| alike(id).is_some_and(|entry| is_soon(*due, entry)));
        let together = ready.chain(soon.map(|(_, id)| *id));
        together.take(self.window.size()).collect()
    }

    fn send(&mut self, leases: Vec<LeaseNumber>, is_repeat: bool, now: Instant) -> Batch<T> {
        self.last_batch += 1;
        let id = self.last_batch;
        let entries = || leases.iter().filter_map(|id| self.leases.get_key_value(id));
        let first = entries().map(|(_, entry)| entry.due).min().unwrap_or(now);
        let shortest = entries().map(|(_, entry)| entry.ttl).min();
        let batched = entries().map(|(id, entry)| (*id, entry.lease.clone()));
        let batch = Batch {
            id,
            leases: batched.collect(),
            lag: now.saturating_duration_since(first),
        };
        for lease in &leases {
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

//! The judges that look at the documents now and then: whether a task waits for a key that no task has, whether a
//! document keeps a lease without a guard, and whether it keeps a place of a client that does not wait.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{Fence, Place, store::LockRecord};
use tokio::time::Instant;

use super::{Inner, Ledger, Wait};
use crate::{
    course::Course,
    judge::Judge,
    server::{State, describe},
};

/// A place that is given up by a request which is lost counts for so long.
const LONGEST_PLACE: Duration = Duration::from_secs(4);

impl Ledger {
    /// Looks for keys that nobody has although somebody waits, for leases that nobody has, and for places of clients
    /// that do not wait. Called now and then.
    pub fn look(&self) {
        let guards = self.guards();
        let mut state = self.server.state();
        let mut inner = self.inner.borrow_mut();
        for guard in &guards {
            inner.of_key(&guard.key).prolong_stays();
        }
        let course = &self.server.course;
        for key in &course.keys {
            let has_guard = guards.iter().any(|it| it.key == *key);
            let record = state.records.get(key).cloned();
            let record = record.unwrap_or_else(|| {
                LockRecord::new(key.clone(), Fence::new(0), Vec::new(), state.now())
            });
            let of_key = inner.key(course, &state, &record, has_guard);
            let of_places = inner.places(course, &state, &record);
            for (judge, text) in of_key.into_iter().chain(of_places) {
                state.accuse(judge, text);
            }
        }
    }
}

impl Inner {
    /// This finds a task that waits for a key which no task has, and a document that keeps a lease for no task.
    fn key(
        &mut self,
        course: &Course,
        state: &State,
        record: &LockRecord,
        has_guard: bool,
    ) -> Option<(Judge, String)> {
        let (now, server_now, key) = (Instant::now(), state.now(), &record.key);
        let is_held = record.live_holders(server_now).next().is_some();
        let may_have = has_guard || self.may_have(course, record, server_now);
        let waiting = self.waits.values().filter(|it| it.keys.contains(key));
        let of_key = self.keys.entry(key.clone()).or_default();
        of_key.excuses.retain(|it| it.until > now);
        let is_excused = !of_key.excuses.is_empty();
        let binds = is_held && of_key.excuses.iter().any(|it| it.binds_others);
        let free = since(&mut of_key.free, !(may_have || binds));
        let is_asked = waiting.clone().next().is_some();
        let is_kept = free.is_some() && is_held && !is_asked && !is_excused;
        // The client may take so long to grant a key that no task has, or to release a lease that no task has.
        let may_fail = !course.faults.is_empty() || course.kills;
        let bound = Duration::from_secs(if may_fail { 16 } else { 4 });
        let bound = bound + Duration::from_millis(course.way) * 6;
        if let Some(since) = since(&mut of_key.kept, is_kept)
            && now > since.max(state.trouble) + bound
        {
            let text = format!("for nobody: {}", describe(record, server_now));
            return Some((Judge::Kept, text));
        }
        // A key that stays is not given up for those who take no place.
        let may_get = |it: &&Wait| {
            let takes_place = it.is_in_turn || !is_excused;
            it.keys.len() == 1 && takes_place && !self.gone.contains_key(&it.client)
        };
        let polled = waiting.filter(may_get);
        let asked = polled.filter_map(|it| Some(it.began.max(it.polled_since?)));
        let asked = asked.min()?;
        (now > free?.max(asked).max(state.trouble) + bound).then(|| {
            let (waited, record) = (now - asked, describe(record, server_now));
            let text = format!("nobody has {key}, and a task has waited for {waited:?}: {record}");
            (Judge::Sleeps, text)
        })
    }

    /// Whether a client may have a key although no task has a guard. What a killed client sent may still arrive. A task
    /// that is not polled may have the key without knowing, and one that waits for another key too: a set takes one after
    /// the other.
    fn may_have(&self, course: &Course, record: &LockRecord, server_now: DateTime<Utc>) -> bool {
        let holds = |client| {
            let owner = course.owner_of(client);
            record
                .live_holders(server_now)
                .any(|it| *it.owner == *owner)
        };
        let has_place = |client| {
            let owner = course.owner_of(client);
            record.live_places(server_now).any(|it| *it.owner == *owner)
        };
        let is_killed = |(&client, &is_killed): (&usize, &bool)| {
            is_killed && (holds(client) || has_place(client))
        };
        let may_know_nothing = |it: &Wait| {
            let waits_for_another = it.keys.last() != Some(&record.key);
            let is_so = it.polled_since.is_none() || waits_for_another;
            is_so && it.keys.contains(&record.key) && holds(it.client)
        };
        self.gone.iter().any(is_killed) || self.waits.values().any(may_know_nothing)
    }

    /// What is wrong if a client has more places for a key than tasks that wait for it, or leaves one to expire. It has
    /// one for its line, and one for each owner that enters again.
    fn places(
        &mut self,
        course: &Course,
        state: &State,
        record: &LockRecord,
    ) -> Option<(Judge, String)> {
        let (now, server_now) = (Instant::now(), state.now());
        let calm = state.trouble + LONGEST_PLACE;
        // A client may take so long to give up a place that no task needs.
        let bound = Duration::from_millis(200) + Duration::from_millis(course.way) * 6;
        let mut found = None;
        for client in 0..=course.clients {
            if self.gone.contains_key(&client) {
                continue;
            }
            let is_of = |it: &&Place| state.waiters.get(&it.waiter) == Some(&client);
            let mut places = record.waiters.iter().filter(is_of);
            let live = places.clone().filter(|it| it.until > server_now).count();
            let is_of = |it: &&Wait| it.client == client && it.keys.contains(&record.key);
            let waits = self.waits.values().filter(is_of).count();
            let surplus = &mut self.of_client(client, &record.key).surplus;
            if let Some(since) = since(surplus, live > waits)
                && now > since.max(calm) + bound
            {
                found = Some(format!(
                    "of client {client} too few tasks wait: {:?}",
                    record.waiters
                ));
            }
            let is_expired = |it: &&Place| {
                let ago = (server_now - it.until).to_std();
                ago.is_ok_and(|ago| ago > bound && now - ago > calm)
            };
            // The clock of a server that steps tells nothing about how long ago that was.
            if let Some(place) = places.find(is_expired)
                && !course.steps_clock
            {
                found = Some(format!("client {client} left {place:?} to expire"));
            }
        }
        found.map(|text| (Judge::Place, text))
    }
}

/// Since when something has been so without a break.
fn since(begin: &mut Option<Instant>, is_so: bool) -> Option<Instant> {
    *begin = is_so.then(|| begin.unwrap_or_else(Instant::now));
    *begin
}

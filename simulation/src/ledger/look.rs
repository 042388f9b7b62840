//! The judges that look at the documents now and then: whether a task waits for a key that no task has, whether a
//! document keeps a lease without a guard, and whether it keeps a place of a client that does not wait.

use std::{collections::BTreeMap, rc::Weak, time::Duration};

use leasehold::{Holder, Key, Place};
use tokio::time::Instant;

use super::{Excuse, Inner, Ledger, Wait, prolong_stays};
use crate::{course::Course, judge::Judge, server::describe};

/// A place that is given up by a request which is lost counts for so long.
const LONGEST_PLACE: Duration = Duration::from_secs(4);

impl Ledger {
    /// Looks for keys that nobody has although somebody waits, for leases that nobody has, and for places of clients
    /// that do not wait. Called now and then.
    pub fn look(&self) {
        let now = Instant::now();
        let state = self.server.state();
        let (calm, server_now) = (state.trouble, state.now());
        let bounds = Bounds::of(&self.course);
        let mut inner = self.inner.borrow_mut();
        let Inner {
            guards,
            waits,
            excuses,
            free,
            kept,
            surplus,
            gone,
            killed,
            ..
        } = &mut *inner;
        for guard in guards.iter().filter_map(Weak::upgrade) {
            prolong_stays(excuses, guard.key());
        }
        excuses.retain(|it| it.until > now);
        let mut found = None;
        for key in self
            .course
            .key_names()
            .iter()
            .filter_map(|it| Key::new(it).ok())
        {
            let has_guard = guards
                .iter()
                .filter_map(Weak::upgrade)
                .any(|it| *it.key() == key);
            let record = state.records.get(&key);
            let of_key = |it: &&Excuse| it.key == key;
            let is_killed = record.is_some_and(|it| {
                let places = it.live_places(server_now).map(|it| &*it.owner);
                let mut owners = it
                    .live_holders(server_now)
                    .map(|it| &*it.owner)
                    .chain(places);
                owners.any(|it| killed.contains(it))
            });
            let is_held = record.is_some_and(|it| it.live_holders(server_now).next().is_some());
            let others_wait = excuses.iter().filter(of_key).any(|it| it.binds_others);
            let binds = is_killed || (is_held && others_wait);
            let is_excused = excuses.iter().any(|it| it.key == key);
            let waiting = || waits.values().filter(|it| it.keys.contains(&key));
            // A task that is not polled may have it without knowing, and one that waits for another key too.
            let may_have = |it: &Wait| {
                let is_holder = |holder: &Holder| *holder.owner == *self.course.owner_of(it.client);
                let holds = record.is_some_and(|it| it.live_holders(server_now).any(is_holder));
                // A set takes its keys one after the other.
                holds && (it.polled_since.is_none() || it.keys.last() != Some(&key))
            };
            if has_guard || binds || waiting().any(may_have) {
                free.remove(&key);
            } else {
                free.entry(key.clone()).or_insert(now);
            }
            if let Some(&since) = free.get(&key) {
                let polled =
                    waiting().filter(|it| it.keys.len() == 1 && !gone.contains(&it.client));
                // A key that stays is not given up for those who take no place.
                let polled = polled.filter(|it| it.is_in_turn || !is_excused);
                let longest = polled
                    .filter_map(|it| Some(it.began.max(it.polled_since?)))
                    .min();
                if let Some(began) = longest
                    && now > since.max(began).max(calm) + bounds.sleeps
                {
                    let text = format!(
                        "nobody has {key}, and a task has waited for {:?}: {}",
                        now - began,
                        record.map_or_else(String::new, |it| describe(it, server_now))
                    );
                    found = found.or(Some((Judge::Sleeps, text)));
                }
            }
            let holder = record.and_then(|it| it.live_holders(server_now).next());
            match holder.filter(|_| free.contains_key(&key) && waiting().next().is_none()) {
                Some(holder) if !is_excused => {
                    let since = *kept.entry(key.clone()).or_insert(now);
                    if now > since.max(calm) + bounds.kept {
                        let text = format!("{key} is kept for nobody: {holder:?}");
                        found = found.or(Some((Judge::Kept, text)));
                    }
                }
                _ => drop(kept.remove(&key)),
            }
            // A client has a place for its line, and one for each owner that enters again.
            let mut places = BTreeMap::<usize, Vec<&Place>>::new();
            for place in record.into_iter().flat_map(|it| &it.waiters) {
                if let Some(&client) = state.waiters.get(&place.waiter)
                    && !gone.contains(&client)
                {
                    places.entry(client).or_default().push(place);
                }
            }
            surplus.retain(|(client, of), _| *of != key || places.contains_key(client));
            for (client, places) in places {
                let live = places.iter().filter(|it| it.until > server_now);
                let id = (client, key.clone());
                if live.count() <= waiting().filter(|it| it.client == client).count() {
                    surplus.remove(&id);
                } else {
                    let since = *surplus.entry(id).or_insert(now);
                    if now > since.max(calm + LONGEST_PLACE) + bounds.place {
                        let text = format!("nobody of client {client} waits in one of {places:?}");
                        found = found.or(Some((Judge::Place, text)));
                    }
                }
                let expired = |it: &&&Place| {
                    let ago = (server_now - it.until).to_std();
                    ago.is_ok_and(|ago| ago > bounds.place && now - ago > calm + LONGEST_PLACE)
                };
                // The clock of a server that steps tells nothing about how long ago that was.
                if let Some(place) = places.iter().find(expired)
                    && !self.course.steps_clock
                {
                    let text = format!("client {client} left {place:?} to expire");
                    found = found.or(Some((Judge::Place, text)));
                }
            }
        }
        drop((inner, state));
        if let Some((judge, text)) = found {
            self.server.accuse(judge, || text);
        }
    }
}

/// How long something may last that should end soon.
struct Bounds {
    sleeps: Duration,
    kept: Duration,
    place: Duration,
}

impl Bounds {
    fn of(course: &Course) -> Self {
        let ways = Duration::from_millis(course.way) * 6;
        let failed = if course.faults.any() || course.kills {
            Duration::from_secs(12)
        } else {
            Duration::ZERO
        };
        Self {
            sleeps: Duration::from_secs(4) + ways + failed,
            kept: Duration::from_secs(4) + ways + failed,
            place: Duration::from_millis(200) + ways,
        }
    }
}

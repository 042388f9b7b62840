//! The judges that look at the documents now and then: whether a task waits for a key that no task has, whether a
//! document keeps a lease without a guard, and whether it keeps a place of a client that does not wait.

use std::{collections::BTreeMap, time::Duration};

use leasehold::Place;
use tokio::time::Instant;

use super::{Ledger, Wait, prolong_stays};
use crate::{course::Course, judge::Judge, server::describe, task::keys};

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
        let all_guards = self.guards();
        let mut borrowed = self.inner.borrow_mut();
        let inner = &mut *borrowed;
        for guard in &all_guards {
            prolong_stays(&mut inner.excuses, guard.key());
        }
        inner.excuses.retain(|it| it.until > now);
        let mut found = None;
        for key in keys(self.course.key_names()) {
            let has_guard = all_guards.iter().any(|it| *it.key() == key);
            let record = state.records.get(&key);
            let holders = || {
                record
                    .into_iter()
                    .flat_map(|it| it.live_holders(server_now))
            };
            let places = record.into_iter().flat_map(|it| it.live_places(server_now));
            let mut owners = holders()
                .map(|it| &it.owner)
                .chain(places.map(|it| &it.owner));
            let is_killed = owners.any(|it| inner.killed.contains(&**it));
            let excused = || inner.excuses.iter().filter(|it| it.key == key);
            let others_wait = excused().any(|it| it.binds_others);
            let binds = is_killed || (holders().next().is_some() && others_wait);
            let is_excused = excused().next().is_some();
            let waiting = || inner.waits.values().filter(|it| it.keys.contains(&key));
            // A task that is not polled may have it without knowing, and one that waits for another key too.
            let may_have = |it: &Wait| {
                let owner = self.course.owner_of(it.client);
                let holds = holders().any(|it| *it.owner == *owner);
                // A set takes its keys one after the other.
                holds && (it.polled_since.is_none() || it.keys.last() != Some(&key))
            };
            if has_guard || binds || waiting().any(may_have) {
                inner.free.remove(&key);
            } else {
                inner.free.entry(key.clone()).or_insert(now);
            }
            if let Some(&since) = inner.free.get(&key) {
                let polled =
                    waiting().filter(|it| it.keys.len() == 1 && !inner.gone.contains(&it.client));
                // A key that stays is not given up for those who take no place.
                let polled = polled.filter(|it| it.is_in_turn || !is_excused);
                let longest = polled
                    .filter_map(|it| Some(it.began.max(it.polled_since?)))
                    .min();
                if let Some(began) = longest
                    && now > since.max(began).max(calm) + bounds.key
                {
                    let text = format!(
                        "nobody has {key}, and a task has waited for {:?}: {}",
                        now - began,
                        record.map_or_else(String::new, |it| describe(it, server_now))
                    );
                    found = found.or(Some((Judge::Sleeps, text)));
                }
            }
            let is_unused = inner.free.contains_key(&key) && waiting().next().is_none();
            match holders().next() {
                Some(holder) if is_unused && !is_excused => {
                    let since = *inner.kept.entry(key.clone()).or_insert(now);
                    if now > since.max(calm) + bounds.key {
                        let text = format!("{key} is kept for nobody: {holder:?}");
                        found = found.or(Some((Judge::Kept, text)));
                    }
                }
                _ => drop(inner.kept.remove(&key)),
            }
            // A client has a place for its line, and one for each owner that enters again.
            let mut places = BTreeMap::<usize, Vec<&Place>>::new();
            for place in record.into_iter().flat_map(|it| &it.waiters) {
                if let Some(&client) = state.waiters.get(&place.waiter)
                    && !inner.gone.contains(&client)
                {
                    places.entry(client).or_default().push(place);
                }
            }
            inner
                .surplus
                .retain(|(client, of), _| *of != key || places.contains_key(client));
            for (client, places) in places {
                let live = places.iter().filter(|it| it.until > server_now);
                let id = (client, key.clone());
                if live.count() <= waiting().filter(|it| it.client == client).count() {
                    inner.surplus.remove(&id);
                } else {
                    let since = *inner.surplus.entry(id).or_insert(now);
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
        drop((borrowed, state));
        if let Some((judge, text)) = found {
            self.server.accuse(judge, || text);
        }
    }
}

/// How long something may last that should end soon.
struct Bounds {
    /// Before a key that nobody has is granted, or a lease that nobody has is released.
    key: Duration,
    /// Before a place that nobody needs is given up.
    place: Duration,
}

impl Bounds {
    fn of(course: &Course) -> Self {
        let ways = Duration::from_millis(course.way) * 6;
        let may_fail = course.faults.any() || course.kills;
        let failed = Duration::from_secs(if may_fail { 12 } else { 0 });
        Self {
            key: Duration::from_secs(4) + ways + failed,
            place: Duration::from_millis(200) + ways,
        }
    }
}

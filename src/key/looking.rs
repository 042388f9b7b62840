//! What this process learns from the store without a request for a lease.
//!
//! - A task looks twice a second at the leases that stay with this process, and learns which keys other processes wait
//!   for, and which leases are gone. A store that reports awaited keys is listened to as well.
//! - A listener for the keys that become free runs while this process has followers, or waiters that need it.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt;
use tokio::time::{Instant, sleep};

use super::{
    effect::Event,
    followers::Follower,
    holding::Holding,
    keys::{KeyMap, Keys},
};
use crate::{
    lease_state::LeaseState,
    messages::{LookRequest, MAX_RENEWALS, renewal_left_out},
    model::{Key, LeaseId},
    runtime::{
        listener::{Listener, ListenerSlot, Opening, listen},
        suspension::SentAt,
    },
    store::{FreedKey, Store},
    telemetry::{KeyStream, StayEndReason},
};

/// How often the task looks. Another process waits for this long at most until it is seen, and an answer more.
const INTERVAL: Duration = Duration::from_millis(500);
/// After this many looks in a row have failed, for this long, the leases do not stay: nobody would see who waits.
const FAILURES: u32 = 3;
const FAILING: Duration = Duration::from_secs(3);

/// The most keys that stay. If there are more, the key that was not used for the longest time goes back first.
const MAX_KEYS: usize = 4_096;

impl Keys {
    /// Follows a key until the follower is dropped.
    pub(crate) fn follow(&self, key: &Key) -> Follower {
        self.streams.followers.follow(key)
    }

    /// Starts the listener, unless it runs already or the store cannot report freed keys. The waiter or the follower
    /// that needs it must be there already, so that a listener which ends meanwhile finds it.
    pub(crate) fn listen(&self) {
        self.start(&self.streams.freed, FreedListener(self.this.clone()));
    }

    /// Starts a listener, unless one has the slot already or the store has no such stream.
    pub(super) fn start(&self, slot: &ListenerSlot, listener: impl Listener + 'static) {
        if let Some(permit) = slot.permit() {
            let closing = self.lifecycle.closing.clone();
            // Without a runtime the permit is dropped here, so that a later need can start a listener.
            self.lifecycle.spawn(listen(listener, permit, closing));
        }
    }

    /// Sees to it that the leases that stay are looked at.
    pub(super) fn look_after(&self) {
        let has_look_task = std::mem::replace(&mut self.map.lock().has_look_task, true);
        if !has_look_task {
            self.lifecycle.spawn(look_until_over(self.this.clone()));
        }
        self.start(&self.streams.awaited, AwaitedListener(self.this.clone()));
    }

    /// The leases that stay, and those that did and are in use. If there are none, the task that looks at them ends.
    fn looked_at(&self) -> Vec<Arc<LeaseState>> {
        let mut map = self.map.lock();
        let all = map.leases_that(|it| it.is_looked_at);
        map.has_look_task = !all.is_empty();
        all
    }

    /// The leases that stay.
    fn staying(&self) -> Vec<Arc<LeaseState>> {
        self.map.lock().leases_that(Holding::stays)
    }

    /// Another process waits for this key.
    fn recall(&self, key: &Key) {
        self.update(key, |state, now, out| {
            let stays = state.held().any(Holding::stays);
            // The look does not tell whose place it has seen.
            if stays && !state.may_have_place() {
                (state.facts.may_stay, state.facts.is_contended) = (false, true);
                let event = Event::StopServing(None, StayEndReason::WaitedFor);
                state.step(event, now, out);
            }
        });
    }

    /// Sends the leases back that have not been used for the longest time, if too many stay.
    pub(super) fn bound_stays(&self, newest: LeaseId) {
        let map = self.map.lock();
        let held = || map.states.values().flat_map(|state| state.held());
        let staying = || held().filter(|it| it.stays());
        if staying().count() <= MAX_KEYS {
            return;
        }
        let others = staying().filter(|it| it.lease.id() != newest);
        let idle = others.filter_map(|it| Some((it.unused_since()?, &it.lease)));
        let oldest = idle.min_by_key(|(since, lease)| (*since, lease.key(), lease.id()));
        // If all keys are in use, the new one stays only until it is not used any more.
        let chosen = oldest.map(|(_, lease)| lease).or_else(|| {
            let mut all = staying().map(|it| &it.lease);
            all.find(|lease| lease.id() == newest)
        });
        let chosen = chosen.cloned();
        drop(map);
        if let Some(lease) = chosen {
            let event = Event::StopServing(Some(lease.id()), StayEndReason::TooMany);
            self.step(lease.key(), event);
        }
    }
}

impl KeyMap {
    fn leases_that(&self, is_wanted: impl Fn(&Holding) -> bool) -> Vec<Arc<LeaseState>> {
        let held = self.states.values().flat_map(|state| state.held());
        let wanted = held.filter(|it| is_wanted(it));
        wanted.map(|it| it.lease.clone()).collect()
    }
}

/// Looks at the leases that stay until there are none. A subscriber of the application that panics in an event does not
/// end it.
async fn look_until_over(keys: Weak<Keys>) {
    let look = || AssertUnwindSafe(look_on(&keys)).catch_unwind();
    while look().await.is_err() {}
}

async fn look_on(keys: &Weak<Keys>) {
    let mut failures = 0;
    let mut answered = Instant::now();
    loop {
        sleep(INTERVAL).await;
        let Some(keys) = keys.upgrade() else {
            return;
        };
        let staying = keys.looked_at();
        if staying.is_empty() {
            return;
        }
        staying.iter().for_each(|lease| lease.check_guards());
        let asked = Instant::now();
        if look(&keys, &staying).await {
            (failures, answered) = (0, asked);
        } else {
            failures += 1;
        }
        if failures >= FAILURES && answered.elapsed() >= FAILING {
            (failures, answered) = (0, asked);
            for lease in keys.staying() {
                let event = Event::StopServing(Some(lease.id()), StayEndReason::NotTold);
                keys.step(lease.key(), event);
            }
        }
    }
}

/// Looks at these leases. Returns whether the store has answered for all of them.
async fn look(keys: &Keys, staying: &[Arc<LeaseState>]) -> bool {
    let mut are_answered = true;
    for some in staying.chunks(MAX_RENEWALS) {
        let request = |lease: &Arc<LeaseState>| LookRequest::new(lease.key().clone(), lease.id());
        let requests: Vec<_> = some.iter().map(request).collect();
        let look = |store: Arc<dyn Store>| async move { store.look(&requests).await };
        let answers = keys.call("look", keys.call_timeout(), look).await;
        let Some(answers) = answers.ok().filter(|it| it.len() == some.len()) else {
            are_answered = false;
            continue;
        };
        let mut gone = Vec::new();
        for (lease, answer) in some.iter().zip(answers) {
            if answer.is_waited_for {
                keys.recall(lease.key());
            }
            if !answer.is_held && !lease.has_ended() {
                gone.push(lease.clone());
            }
        }
        renew(keys, gone).await;
    }
    are_answered
}

/// Renews leases that a look did not find: the answer tells whether, and why, they are gone.
async fn renew(keys: &Keys, leases: Vec<Arc<LeaseState>>) {
    if leases.is_empty() {
        return;
    }
    let renewed = leases.clone();
    let renewing = |store: Arc<dyn Store>| async move {
        let requests: Vec<_> = renewed.iter().map(|it| it.begin_renewal()).collect();
        let sent = SentAt::now();
        let mut answers = store.renew(&requests).await?.into_iter();
        for lease in renewed {
            let answer = answers.next().unwrap_or_else(|| Err(renewal_left_out()));
            // A loss is the outcome, and the guards learn of it.
            let _ = lease.apply_renewal(sent, answer);
        }
        Ok(())
    };
    let _ = keys.call("renew", keys.call_timeout(), renewing).await;
    for lease in leases {
        if lease.loss(Instant::now()).is_none() {
            continue;
        }
        let event = Event::StopServing(Some(lease.id()), StayEndReason::Evicted);
        keys.step(lease.key(), event);
    }
}

/// Sends back the leases of the keys that the store reports.
struct AwaitedListener(Weak<Keys>);

impl Listener for AwaitedListener {
    type Key = Key;
    const STREAM: KeyStream = KeyStream::Awaited;
    const OPERATION: &'static str = "awaited";

    fn open(&self) -> Option<(String, Opening<Key>)> {
        let store = self.0.upgrade()?.store.clone();
        let name = store.name();
        Some((name, async move { store.awaited().await }.boxed()))
    }

    fn is_needed(&self) -> bool {
        let keys = self.0.upgrade();
        keys.is_some_and(|keys| !keys.staying().is_empty())
    }

    fn receive(&self, awaited: Vec<Key>) {
        if let Some(keys) = self.0.upgrade() {
            awaited.iter().for_each(|key| keys.recall(key));
        }
    }
}

/// Wakes the waiters and the followers of the keys that the store reports.
struct FreedListener(Weak<Keys>);

impl Listener for FreedListener {
    type Key = FreedKey;
    const STREAM: KeyStream = KeyStream::Freed;
    const OPERATION: &'static str = "wake-ups";

    fn open(&self) -> Option<(String, Opening<FreedKey>)> {
        let store = self.0.upgrade()?.store.clone();
        let name = store.name();
        Some((name, async move { store.freed().await }.boxed()))
    }

    fn is_needed(&self) -> bool {
        self.0.upgrade().is_some_and(|keys| {
            let map = keys.map.lock();
            let waiters_need = map.states.values().any(|state| state.needs_reports());
            drop(map);
            waiters_need || !keys.streams.followers.is_empty()
        })
    }

    /// The first waiter of each key asks once, and each follower reads its key once.
    fn missed(&self) {
        // A waiter that has no need of reports may pause for longer all the same while there are some.
        if let Some(keys) = self.0.upgrade() {
            let all: Vec<_> = keys.map.lock().states.keys().cloned().collect();
            all.iter().for_each(|key| keys.step(key, Event::MayBeFree));
            keys.streams.followers.tell_all();
        }
    }

    fn receive(&self, freed: Vec<FreedKey>) {
        let Some(keys) = self.0.upgrade() else {
            return;
        };
        for FreedKey { key, next } in freed {
            keys.step(&key, Event::Freed(next));
            keys.streams.followers.tell(&key);
        }
    }
}

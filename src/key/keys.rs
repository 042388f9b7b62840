//! `Keys`: the keys that this process wants or holds. `changes.rs` has how they change.
//!
//! Invariant: a call that was sent is never dropped. The task that waits for its answer polls it, or a task of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    claim::Claim,
    effect::Event,
    followers::Followers,
    recent_keys::RecentKeys,
    state::{Facts, KeyState},
};
use crate::{
    coalescer::Coalescer,
    model::{Error, Key, LeaseId},
    release::Releaser,
    renewal::RenewalTask,
    runtime::{self, lifecycle::Lifecycle, listener::ListenerSlot, timers::Timers},
    store::Store,
    telemetry,
};

/// The keys of a handle, and what all of its operations need.
pub(crate) struct Keys {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock_margin: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) renewals: Arc<RenewalTask>,
    pub(crate) releaser: Releaser,
    pub(super) map: Mutex<KeyMap>,
    pub(super) streams: Streams,
    pub(super) timers: Timers,
    pub(super) this: Weak<Keys>,
}

/// The streams of the store, and who listens to them.
#[derive(Default)]
pub(super) struct Streams {
    /// The keys that other processes free.
    pub(super) freed: ListenerSlot,
    /// The keys that other processes wait for.
    pub(super) awaited: ListenerSlot,
    pub(super) followers: Followers,
}

#[derive(Default)]
pub(super) struct KeyMap {
    /// Each in a box, because a map moves its neighbours when a key comes or goes.
    pub(super) states: BTreeMap<Key, Box<KeyState>>,
    /// When the next time comes for each key that has one.
    pub(super) times: BTreeSet<(Instant, Key)>,
    /// The keys that do not stay here for a while, because another process waited for them.
    pub(super) contended: RecentKeys,
    /// Whether a task looks at the leases that stay.
    pub(super) has_look_task: bool,
}

impl Keys {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        clock_margin: Duration,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let told = this.clone();
            let released = move |key: &Key, lease: LeaseId| {
                if let Some(keys) = told.upgrade() {
                    keys.step(key, Event::Released(lease));
                    keys.streams.followers.tell(key);
                }
            };
            let ended = this.clone();
            let lifecycle = Lifecycle::new(move || {
                if let Some(keys) = ended.upgrade() {
                    keys.end_with_runtime();
                }
            });
            let renewals = RenewalTask::new(store.clone());
            let coalescer = Coalescer::new(store.clone(), renewals.late(), lifecycle.clone());
            let releaser = Releaser {
                coalescer,
                call_timeout,
                on_released: Arc::new(released),
            };
            Self {
                renewals,
                store,
                clock_margin,
                lifecycle,
                releaser,
                map: Mutex::default(),
                streams: Streams::default(),
                timers: Timers::default(),
                this: this.clone(),
            }
        })
    }

    /// Begins to use the handle, and starts what runs in the background, unless it runs. Fails outside of a tokio
    /// runtime, and if the handle is closing, or its runtime has ended.
    pub(crate) fn begin_use(&self) -> Result<(), Error> {
        self.lifecycle.enter()?;
        self.renewals.ensure_running(&self.lifecycle);
        let this = self.this.clone();
        let look = move || this.upgrade().map(|keys| keys.pass_time());
        self.timers.ensure_running(&self.lifecycle, look);
        Ok(())
    }

    /// Makes one call to the store, in a task that outlives this future, and waits until the limit.
    pub(crate) async fn call<T, F>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl FnOnce(Arc<dyn Store>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (store, named) = (self.store.clone(), self.store.clone());
        runtime::call(operation, limit, move || named.name(), work(store)).await
    }

    /// How long one call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.releaser.call_timeout
    }

    /// Whether tasks of this process wait for the key.
    pub(crate) fn has_waiters(&self, key: &Key) -> bool {
        let map = self.map.lock();
        let state = map.states.get(key);
        state.is_some_and(|state| !state.waiters.is_empty())
    }

    /// Whether this process has a lease of the key under this id, or asks for one.
    pub(crate) fn has_lease(&self, key: &Key, lease: LeaseId) -> bool {
        let map = self.map.lock();
        let state = map.states.get(key);
        state.is_some_and(|state| state.claim(lease).is_some())
    }
}

#[cfg(test)]
impl Keys {
    /// Whether nothing of any key is left in memory.
    pub(crate) fn is_empty(&self) -> bool {
        let map = self.map.lock();
        map.states.is_empty() && map.times.is_empty()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // What stays is not used by anybody any more.
        let states = std::mem::take(&mut self.map.lock().states);
        let leases = states.values().flat_map(|state| state.leases());
        telemetry::for_each(leases, |lease| self.abandon(lease));
        self.timers.end();
    }
}

impl KeyState {
    /// Tells the state what its leases have left. `suspended` is how long the machine was suspended in all.
    pub(super) fn refresh(&mut self, facts: Facts, now: Instant, suspended: Duration) {
        self.facts = facts;
        for holding in self.claims.iter_mut().filter_map(Claim::holding_mut) {
            holding.deadline = now + holding.lease.remaining_after(now, suspended);
        }
    }
}

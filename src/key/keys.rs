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
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    call::{Call, PolledCall},
    cell::Cell,
    claim::RequestNo,
    effect::Event,
    followers::Followers,
    recent_keys::RecentKeys,
    state::{Effects, Facts, KeyState},
    waiters::WaiterNo,
};
use crate::{
    coalescer::Coalescer,
    lease_state::LeaseState,
    model::{Error, Key, LeaseId},
    release::Releaser,
    renewal::RenewalHandle,
    runtime::{lifecycle::Lifecycle, listener::ListenerSlot, timers::Timers},
    store::Store,
    telemetry,
};

/// The keys of a handle, and what all of its operations need.
pub(crate) struct Keys {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock_margin: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) renewals: RenewalHandle,
    pub(crate) releaser: Releaser,
    pub(super) map: Mutex<KeyMap>,
    pub(super) streams: Streams,
    pub(super) timers: Timers,
    pub(super) this: Weak<Keys>,
}

/// The streams of the store, and who listens to them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The keys that other processes free.
    pub(super) freed: ListenerSlot,
    /// The keys that other processes wait for.
    pub(super) awaited: ListenerSlot,
    pub(super) followers: Arc<Followers>,
}

#[derive(Default)]
pub(super) struct KeyMap {
    /// Each in a box, because a map moves its neighbours when a key comes or goes.
    pub(super) entries: BTreeMap<Key, Box<Entry>>,
    /// When the next time comes for each key that has one.
    pub(super) times: BTreeSet<(Instant, Key)>,
    /// The keys that do not stay here for a while, because another process waited for them.
    pub(super) contended: RecentKeys,
    pub(super) next_request: u64,
    /// Whether a task looks at the leases that stay.
    pub(super) has_look_task: bool,
    /// The memory for the effects of the next change. It is empty between two changes.
    pub(super) effects: Effects,
}

/// A key, and what belongs to its waiters, claims and requests.
pub(super) struct Entry {
    pub(super) state: KeyState,
    pub(super) claims: BTreeMap<LeaseId, OfClaim>,
    pub(super) cells: BTreeMap<WaiterNo, Arc<Cell>>,
    pub(super) calls: BTreeMap<RequestNo, Arc<Call>>,
    pub(super) time: Option<Instant>,
}

/// What belongs to a claim.
#[derive(Default)]
pub(super) struct OfClaim {
    pub(super) lease: Option<Arc<LeaseState>>,
    /// The release, if its caller polls it.
    pub(super) release: Option<PolledCall>,
    /// Makes a close wait for the claim.
    pub(super) at_work: Option<TaskTrackerToken>,
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
            let renewals = RenewalHandle::new(store.clone());
            let coalescer = Coalescer::new(store.clone(), renewals.late(), lifecycle.clone());
            let releaser = Releaser::new(coalescer, call_timeout, Arc::new(released));
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

    /// How long one call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.releaser.call_timeout()
    }

    /// Whether tasks of this process wait for the key.
    pub(crate) fn has_waiters(&self, key: &Key) -> bool {
        let map = self.map.lock();
        map.entries
            .get(key)
            .is_some_and(|entry| entry.state.has_waiters())
    }
}

#[cfg(test)]
impl Keys {
    /// Whether nothing of any key is left in memory.
    pub(crate) fn is_empty(&self) -> bool {
        let map = self.map.lock();
        map.entries.is_empty() && map.times.is_empty()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // What stays is not used by anybody any more.
        let entries = std::mem::take(&mut self.map.lock().entries);
        let leases = entries.values().flat_map(|entry| entry.leases());
        telemetry::for_each(leases, |lease| self.abandon(lease));
        self.timers.end();
    }
}

impl Entry {
    pub(super) fn new(state: KeyState) -> Self {
        Self {
            state,
            claims: BTreeMap::new(),
            cells: BTreeMap::new(),
            calls: BTreeMap::new(),
            time: None,
        }
    }

    pub(super) fn of(&mut self, claim: LeaseId) -> &mut OfClaim {
        self.claims.entry(claim).or_default()
    }

    /// The lease of a claim.
    pub(super) fn behind(&self, claim: LeaseId) -> Option<&Arc<LeaseState>> {
        self.claims.get(&claim)?.lease.as_ref()
    }

    /// The leases of this process.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<LeaseState>> {
        self.claims.values().filter_map(|it| it.lease.as_ref())
    }

    /// Lets the caller poll the release of this lease by this call, unless another task depends on it.
    pub(super) fn poll_release(&mut self, lease: LeaseId, call: &PolledCall) {
        if self.state.poll_release_here(lease) {
            self.of(lease).release = Some(call.clone());
        } else {
            call.leave();
        }
    }

    /// Tells the state what its leases have left. `suspended` is how long the machine was suspended in all.
    pub(super) fn refresh(&mut self, facts: Facts, now: Instant, suspended: Duration) {
        self.state.set_facts(facts);
        for request in self.state.looked_at_requests(now) {
            if let Some(call) = self.calls.get(&request.number) {
                request.how = call.how_sent();
            }
        }
        for (claim, holding) in self.state.holdings() {
            let Some(behind) = self.claims.get(&claim).and_then(|it| it.lease.as_ref()) else {
                continue;
            };
            let guards = behind.guards();
            let expiry = |number| {
                let mut guards = guards.iter();
                let guard = guards.find(|guard| guard.number() == number)?;
                Some(now + guard.own_remaining(now))
            };
            holding.refresh(now + behind.remaining_after(now, suspended), expiry);
        }
    }
}

//! What is so in every state, and of every grant.

use leasehold::{
    Fence, Mode,
    jobs::Tick,
    rules,
    store::{AcquireRequest, LockRecord, Turn},
};
use stateright::Property;

use super::{server::Call, state::*, steps::Setting};

pub const EXCLUSION: &str = "leases in which clients believe are compatible";
pub const FENCES: &str = "fences rise in the order of grants";
pub const ORDER: &str = "nobody passes a place that keeps the key";
pub const ONCE: &str = "no tick is granted or done after it is done";
pub const DEAD: &str = "whoever is gone keeps the key for a bounded time";
pub const FREE: &str = "a free key is granted to the first in the queue";
pub const PLACES: &str = "a place is of a client that waits";

pub fn all() -> Vec<Property<Setting>> {
    vec![
        Property::always(EXCLUSION, exclusion),
        Property::always(FENCES, |_, it: &State| it.violated != Some(FENCES)),
        Property::always(ORDER, |_, it: &State| it.violated != Some(ORDER)),
        Property::always(ONCE, |_, it: &State| it.violated != Some(ONCE)),
        Property::always(DEAD, |setting, it| {
            is_granted(setting, it, stranger(), TTL + MARGIN + 1)
        }),
        Property::always(FREE, free),
        Property::always(PLACES, |_, it: &State| {
            let mut places = it.document.live_places(at(0));
            places.all(|place| it.clients[whose(place.waiter)].waits)
        }),
    ]
}

impl State {
    fn violates(&mut self, property: &'static str, is_so: bool) {
        self.violated = self.violated.or(is_so.then_some(property));
    }
}

/// This is the fence of a new grant, an upgrade or an eviction.
pub fn rising(state: &mut State, fence: Option<Fence>) {
    state.violates(FENCES, fence <= state.newest);
    state.newest = state.newest.max(fence);
}

/// This client is told that its tick is done: first by the release of a live lease, and then again.
pub fn done(state: &mut State, tick: Tick, client: usize, is_live: bool) {
    let known = state.done.replace((tick, client));
    let is_again = is_live && known.is_some_and(|it| it.0 >= tick);
    state.violates(ONCE, is_again || !is_live && known != state.done);
}

/// This call found this document, and has granted a lease with this fence.
pub fn grant(state: &mut State, found: &LockRecord, call: &Call, fence: Option<Fence>) {
    let (before, terms) = (rules::inspect(found, call.now), &call.terms);
    let own = before.holders.iter().find(|it| is_own(&it.owner, terms));
    // The places keep a free key for a tick. If it is free from a time on that is further ahead, the clock stepped back.
    let (tick, free_for) = (at(1) - at(0), call.now - found.expires_at);
    let is_kept = !before.is_free() || (-tick..tick).contains(&free_for);
    let (mine, mode) = (terms.turn.waiter(), terms.access.mode());
    let places = before.waiters.iter();
    let ahead = places.take_while(|it| Some(it.waiter) != mine);
    let mut others = ahead.filter(|it| !is_own(&it.owner, terms));
    let is_behind = others.any(|it| it.mode != mode || mode == Mode::Exclusive);
    let may_pass = own.is_some() || terms.turn == Turn::Barging;
    state.violates(ORDER, is_kept && is_behind && !may_pass);
    let done = state.done.map(|it| it.0);
    state.violates(ONCE, terms.tick.is_some() && terms.tick <= done);
    match own {
        // An owner that enters again has the fence of its other lease.
        Some(own) => state.violates(FENCES, Some(own.fence) != fence),
        None => rising(state, fence),
    }
}

fn is_own(owner: &str, terms: &AcquireRequest) -> bool {
    terms.is_reentrant() && *owner == *terms.owner
}

/// Pairs are enough: if the clients have too many permits, two of them have.
fn exclusion(setting: &Setting, state: &State) -> bool {
    let mode = |client: usize| Some(state.clients[client].lease?.1?.mode);
    let pairs = [(0, 1), (0, 2), (1, 2)];
    pairs.iter().all(|(one, other)| {
        let (terms, others) = (&setting.requests[*one], &setting.requests[*other]);
        let taken = terms.access.permits() + others.access.permits();
        match (mode(*one), mode(*other)) {
            (None, _) | (_, None) | (Some(Mode::Shared), Some(Mode::Shared)) => true,
            (Some(Mode::Permits), Some(Mode::Permits)) => taken <= terms.access.capacity(),
            _ => terms.is_reentrant() && is_own(&others.owner, terms),
        }
    })
}

fn stranger() -> AcquireRequest {
    exclusive(lease(CLIENTS), "stranger")
}

fn is_granted(setting: &Setting, state: &State, terms: AcquireRequest, time: i64) -> bool {
    let (ask, now) = (Ask::Acquire, at(time));
    setting.carry_out(state, &Call { ask, terms, now }).1
}

/// If nobody holds the key, the first in the queue is granted it, or a stranger if nobody waits.
fn free(setting: &Setting, state: &State) -> bool {
    let now = rules::inspect(&state.document, at(0));
    let first = now.waiters.first();
    let mut terms = first.map_or_else(stranger, |it| setting.requests[whose(it.waiter)].clone());
    (terms.lease, terms.tick) = (stranger().lease, None);
    !now.is_free() || is_granted(setting, state, terms, 0)
}

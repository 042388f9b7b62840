//! What is so in every state, and of every grant.

use chrono::{DateTime, Utc};
use leasehold::{
    Fence, Mode,
    store::{AcquireAnswer, AcquireRequest, Turn},
};
use stateright::Property;

use super::{
    server::{Answer, Call},
    state::{KEY, MARGIN, State, TICK, TTL, at, strange, whose},
    steps::Setting,
};

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
            let mut live = it.document.iter().flat_map(|it| it.live_places(at(0)));
            live.all(|place| it.clients[whose(place.waiter)].waits)
        }),
    ]
}

/// What a new grant, or an upgrade, violates.
pub fn grant(
    state: &State,
    request: Option<&AcquireRequest>,
    fence: Fence,
    time: DateTime<Utc>,
) -> Option<&'static str> {
    let is_rising = Some(fence) > state.newest;
    let Some(request) = request else {
        return (!is_rising).then_some(FENCES);
    };
    let is_own = |owner: &str| request.reentrant && *request.owner == *owner;
    let before = state.document.as_ref();
    let live = || before.into_iter().flat_map(|it| it.live_holders(time));
    // An owner that enters again has the fence of its other lease.
    let own = live().filter(|it| is_own(&it.owner));
    let own = own.map(|it| it.fence).max();
    if !own.map_or(is_rising, |own| own == fence) {
        return Some(FENCES);
    }
    if request.tick.is_some() && request.tick <= state.done.map(|it| it.0) {
        return Some(ONCE);
    }
    // The places keep a free key for a tick. If it is free from a time on that is further ahead, the clock stepped back.
    let (before, tick) = (before?, at(1) - at(0));
    let free_for = time - before.expires_at;
    let is_kept = live().next().is_some() || -tick <= free_for && free_for < tick;
    let mine = request.turn.waiter();
    let ahead = before
        .live_places(time)
        .take_while(|it| Some(it.waiter) != mine);
    let mut passed = ahead.filter(|it| {
        let is_beside = matches!(
            (it.mode, request.access.mode()),
            (Mode::Shared, Mode::Shared) | (Mode::Permits, Mode::Permits)
        );
        !is_own(&it.owner) && !is_beside
    });
    let may_pass = own.is_some() || request.turn == Turn::Barging;
    (is_kept && !may_pass && passed.next().is_some()).then_some(ORDER)
}

fn exclusion(setting: &Setting, state: &State) -> bool {
    let held = state.clients.iter().zip(&setting.requests);
    let held = held.filter_map(|(client, request)| Some((client.lease?.1?.mode, request)));
    let held: Vec<_> = held.collect();
    let taken: i64 = held.iter().map(|it| it.1.access.permits()).sum();
    let pairs = held.iter().enumerate();
    let mut pairs = pairs.flat_map(|(index, one)| held[..index].iter().map(move |it| (one, it)));
    pairs.all(
        |((mode, one), (other_mode, other))| match (mode, other_mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits, Mode::Permits) => taken <= one.access.capacity(),
            _ => one.reentrant && other.reentrant && one.owner == other.owner,
        },
    )
}

fn stranger() -> AcquireRequest {
    AcquireRequest::exclusive(KEY.clone(), strange(), "stranger".into(), TICK)
}

fn is_granted(setting: &Setting, state: &State, request: AcquireRequest, time: i64) -> bool {
    let (_, answer) = setting.carry_out(state, Call::Acquire(request), at(time));
    matches!(answer, Answer::Acquire(AcquireAnswer::Granted(_)))
}

/// If nobody holds the key, the first in the queue is granted it, or a stranger if nobody waits.
fn free(setting: &Setting, state: &State) -> bool {
    let Some(document) = &state.document else {
        return true;
    };
    let mut request = stranger();
    if let Some(first) = document.live_places(at(0)).next() {
        request = setting.requests[whose(first.waiter)].clone();
        (request.lease, request.tick) = (strange(), None);
    }
    document.live_holders(at(0)).next().is_some() || is_granted(setting, state, request, 0)
}

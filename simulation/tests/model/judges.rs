//! What is so in every state, and of every grant.

use chrono::{DateTime, Utc};
use leasehold::{
    Mode,
    store::{AcquireRequest, Grant, LockRecord, Turn},
};
use stateright::Property;

use super::{
    server::{Answer, Call, carry_out},
    state::{CLIENTS, KEY, MARGIN, STRANGE, State, TICK, TTL, at, lease, number},
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
            is_granted(setting, it, stranger(), at(TTL + MARGIN + 1))
        }),
        Property::always(FREE, free),
        Property::always(PLACES, |_, it: &State| {
            let mut live = it
                .document
                .iter()
                .flat_map(|it| &it.places)
                .filter(|it| it.1 > 0);
            live.all(|place| it.clients[place.0].waits)
        }),
    ]
}

/// What a new grant, or an upgrade, violates.
pub fn grant(
    state: &State,
    before: Option<&LockRecord>,
    call: &Call,
    grant: Grant,
    time: DateTime<Utc>,
) -> Option<&'static str> {
    let is_rising = Some(number(grant.fence)) > state.newest;
    let Call::Acquire(request) = call else {
        return (!is_rising).then_some(FENCES);
    };
    let is_own = |owner: &str| request.reentrant && *request.owner == *owner;
    let live = || before.into_iter().flat_map(|it| it.live_holders(time));
    // An owner that enters again has the fence of its other lease.
    let own = live()
        .filter(|it| is_own(&it.owner))
        .map(|it| it.fence)
        .max();
    if !own.map_or(is_rising, |own| own == grant.fence) {
        return Some(FENCES);
    }
    let (tick, done) = (
        request.tick.map(|it| it.number()),
        state.done.map(|it| it.0),
    );
    if tick.is_some() && tick <= done {
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
    let held = |client: usize| state.clients[client].lease.and_then(|it| it.1);
    let all = || (0..CLIENTS).filter(|client| held(*client).is_some());
    let taken: i64 = all()
        .map(|client| setting.requests[client].access.permits())
        .sum();
    let is_beside = |one: usize, other: usize| {
        let is_own = setting.requests[one].reentrant
            && setting.requests[one].owner == setting.requests[other].owner;
        match (held(one).map(|it| it.mode), held(other).map(|it| it.mode)) {
            (Some(Mode::Shared), Some(Mode::Shared)) => true,
            (Some(Mode::Permits), Some(Mode::Permits)) => {
                taken <= setting.requests[one].access.capacity()
            }
            _ => is_own,
        }
    };
    all().all(|one| all().all(|other| one == other || is_beside(one, other)))
}

fn stranger() -> AcquireRequest {
    AcquireRequest::exclusive(KEY.clone(), lease(STRANGE), "stranger".into(), TICK)
}

fn is_granted(
    setting: &Setting,
    state: &State,
    request: AcquireRequest,
    time: DateTime<Utc>,
) -> bool {
    let record = state.document.as_ref().map(|it| it.record(setting));
    let (_, answer) = carry_out(setting.fault, record.as_ref(), Call::Acquire(request), time);
    matches!(answer, Answer::Granted(_))
}

/// If nobody holds the key, the first in the queue is granted it, or a stranger if nobody waits.
fn free(setting: &Setting, state: &State) -> bool {
    let Some(document) = &state.document else {
        return true;
    };
    let mut request = stranger();
    if let Some((first, _)) = document.places.iter().find(|it| it.1 > 0) {
        request = setting.requests[*first].clone();
        (request.lease, request.tick) = (lease(STRANGE), None);
    }
    document.holders.iter().any(|it| it.expires > 0) || is_granted(setting, state, request, at(0))
}

//! The random commands: which there are, and how often each of them comes.

use std::time::Duration;

use leasehold::{Mode, store::AcquireRequest};
use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any, prop_oneof},
};

pub(super) const KEYS: usize = 3;
pub(super) const LEASES: usize = 5;
pub(super) const TTL: Duration = Duration::from_secs(600);

/// A step; the numbers are those of a key and a lease.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire(usize, usize, Claim),
    /// The first lease in the place of the second.
    InPlaceOf(usize, usize, usize, Claim),
    /// For each key a lease that is asked for, or released.
    Batch(Vec<(usize, Option<Claim>)>),
    /// For so long that it expires before the step ends.
    AcquireBriefly(usize, usize, Claim),
    Renew(usize, usize, Duration),
    Convert(usize, usize, Mode),
    RenewAll(usize, Duration),
    /// Whatever it says of whether it is alone.
    Release(usize, usize, bool),
    /// Released early, and held on for as long as this.
    ReleaseHolding(usize, usize, Duration),
    Evict(usize),
    RemoveExpired(usize),
    /// Nothing is as old as that.
    PurgeOld,
    /// As often as it takes: a store may keep what is dead for a moment.
    PurgeDead,
    Inspect(usize),
}

/// What an acquire asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    Exclusive,
    Shared,
    Permits(i64, i64),
    ExclusiveAgain,
    SharedAgain,
    PermitsAgain(i64, i64),
    Noted,
}

fn claim() -> impl Strategy<Value = Claim> {
    let permits = || (1..4_i64, 2..5_i64);
    prop_oneof![
        4 => Just(Claim::Exclusive),
        4 => Just(Claim::Shared),
        4 => permits().prop_map(|(count, of)| Claim::Permits(count, of)),
        2 => Just(Claim::ExclusiveAgain),
        2 => Just(Claim::SharedAgain),
        2 => permits().prop_map(|(count, of)| Claim::PermitsAgain(count, of)),
        1 => Just(Claim::Noted),
    ]
}

impl Claim {
    pub(super) fn request(self, request: AcquireRequest) -> AcquireRequest {
        match self {
            Self::Exclusive => request,
            Self::Shared => request.shared(),
            Self::Permits(count, of) => request.permits(count, of),
            Self::ExclusiveAgain => request.reentrant(),
            Self::SharedAgain => request.shared().reentrant(),
            Self::PermitsAgain(count, of) => request.permits(count, of).reentrant(),
            Self::Noted => request.note("$note \"of\" {somebody}"),
        }
    }
}

/// For how long a lease is renewed: some for less than they have left.
fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(TTL), Just(TTL * 2)]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let both = || (0..KEYS, 0..LEASES);
    prop_oneof![
        9 => (both(), claim()).prop_map(|((key, lease), claim)| Step::Acquire(key, lease, claim)),
        4 => (both(), 0..LEASES, claim())
            .prop_map(|((key, lease), from, claim)| Step::InPlaceOf(key, lease, from, claim)),
        2 => vec((0..LEASES, option::of(claim())), KEYS).prop_map(Step::Batch),
        4 => (both(), claim())
            .prop_map(|((key, lease), claim)| Step::AcquireBriefly(key, lease, claim)),
        3 => (both(), ttl()).prop_map(|((key, lease), ttl)| Step::Renew(key, lease, ttl)),
        1 => (0..LEASES, ttl()).prop_map(|(lease, ttl)| Step::RenewAll(lease, ttl)),
        3 => (both(), prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)])
            .prop_map(|((key, lease), mode)| Step::Convert(key, lease, mode)),
        4 => (both(), any::<bool>())
            .prop_map(|((key, lease), alone)| Step::Release(key, lease, alone)),
        2 => (both(), prop_oneof![Just(Duration::ZERO), Just(TTL * 2)])
            .prop_map(|((key, lease), time)| Step::ReleaseHolding(key, lease, time)),
        1 => (0..KEYS).prop_map(Step::Evict),
        2 => (0..KEYS).prop_map(Step::RemoveExpired),
        1 => prop_oneof![Just(Step::PurgeOld), Just(Step::PurgeDead)],
        2 => (0..KEYS).prop_map(Step::Inspect),
    ]
}

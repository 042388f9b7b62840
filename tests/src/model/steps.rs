//! The random commands, and how often each of them comes.

use std::time::Duration;

use leasehold::{
    Mode,
    jobs::Tick,
    store::{AcquireRequest, LeaseId, Turn},
};
use proptest::{
    collection::vec,
    option,
    prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof},
};

pub(super) const LEASES: usize = 5;
pub(super) const WAITERS: usize = 3;
pub(super) const TTL: Duration = Duration::from_secs(600);
/// For how long a place counts.
pub(super) const STAYS: Duration = Duration::from_secs(50);

/// A step. Its numbers are those of a key and a lease.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire(usize, usize, Claim, Stance),
    /// An acquire for a tick.
    AcquireFor(usize, usize, Tick, (Claim, Stance)),
    /// For each key a lease is acquired or released.
    Batch(Vec<(usize, Option<(Claim, Stance)>)>),
    /// An acquire with so short a ttl that the lease expires before the step ends.
    AcquireBriefly(usize, usize, Claim, Stance),
    /// This process does not wait for the key any more.
    Leave(usize, usize),
    /// Waits until a free key is kept for no waiter any more.
    Linger,
    Renew(usize, usize, Duration),
    /// A conversion that names no fence, or one that exceeds that of the lease by this.
    Convert(usize, usize, Mode, Option<i64>),
    RenewAll(usize, Duration),
    /// The flag says that the lease is likely to be the only one. It may be wrong.
    Release(usize, usize, bool),
    /// A release with a minimum hold of this length.
    ReleaseHolding(usize, usize, Duration),
    /// A release after a tick was done, which is remembered for this long.
    ReleaseDone(usize, usize, Tick, Duration),
    Evict(usize),
    RemoveExpired(usize),
    /// No document is as old as this purge asks for.
    PurgeOld,
    /// The purge is repeated until it succeeds: a store may keep dead documents for a moment.
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
    ExclusiveInstead,
    SharedInstead,
    PermitsInstead(i64, i64),
    Noted,
}

/// How an acquire treats the processes that wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stance {
    Behind,
    Barging,
    /// This process waits in turn.
    InTurn(usize),
}

impl Stance {
    /// The turn, with a place that lasts longer than the sequence.
    pub(super) fn turn(self, waiters: &[LeaseId]) -> Turn {
        match self {
            Self::Behind => Turn::Behind,
            Self::Barging => Turn::Barging,
            Self::InTurn(process) => Turn::in_turn(waiters[process], STAYS),
        }
    }
}

fn stance(queue: bool) -> BoxedStrategy<Stance> {
    if !queue {
        return Just(Stance::Behind).boxed();
    }
    prop_oneof![
        4 => Just(Stance::Behind),
        1 => Just(Stance::Barging),
        4 => (0..WAITERS).prop_map(Stance::InTurn),
    ]
    .boxed()
}

fn claim() -> impl Strategy<Value = Claim> {
    let permits = || (1..4_i64, 2..5_i64).prop_map(|(count, of)| (count.min(of), of));
    prop_oneof![
        4 => Just(Claim::Exclusive),
        4 => Just(Claim::Shared),
        4 => permits().prop_map(|(count, of)| Claim::Permits(count, of)),
        2 => Just(Claim::ExclusiveAgain),
        2 => Just(Claim::SharedAgain),
        2 => permits().prop_map(|(count, of)| Claim::PermitsAgain(count, of)),
        2 => Just(Claim::ExclusiveInstead),
        1 => Just(Claim::SharedInstead),
        1 => permits().prop_map(|(count, of)| Claim::PermitsInstead(count, of)),
        1 => Just(Claim::Noted),
    ]
}

impl Claim {
    /// The request. A take-over names two of the leases, whoever has them.
    pub(super) fn request(self, request: AcquireRequest, leases: &[LeaseId]) -> AcquireRequest {
        let named = &leases[..2];
        match self {
            Self::Exclusive => request,
            Self::Shared => request.shared(),
            Self::Permits(count, of) => request.permits(count, of).unwrap(),
            Self::ExclusiveAgain => request.reentrant(),
            Self::SharedAgain => request.shared().reentrant(),
            Self::PermitsAgain(count, of) => request.permits(count, of).unwrap().reentrant(),
            Self::ExclusiveInstead => request.take_over(named),
            Self::SharedInstead => request.shared().take_over(named),
            Self::PermitsInstead(count, of) => request.permits(count, of).unwrap().take_over(named),
            Self::Noted => request.note("$note \"of\" {somebody}"),
        }
    }
}

/// The ttls of renewals. Some are shorter than what the lease has left.
fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(TTL), Just(TTL * 2)]
}

/// The ticks. Most are of one kind, so that they can be compared.
fn tick() -> impl Strategy<Value = Tick> {
    prop_oneof![
        15 => (1..4_i64).prop_map(Tick::counter),
        1 => Just(Tick::version(0, 0, 2)),
    ]
}

/// A step with one of this many keys. If there is a queue, processes wait for them.
pub(super) fn step(keys: usize, queue: bool) -> BoxedStrategy<Step> {
    let both = move || (0..keys, 0..LEASES);
    let asks = move || (claim(), stance(queue));
    let steps = prop_oneof![
        9 => (both(), asks())
            .prop_map(|((key, lease), (claim, stance))| Step::Acquire(key, lease, claim, stance)),
        5 => (both(), tick(), asks())
            .prop_map(|((key, lease), tick, asks)| Step::AcquireFor(key, lease, tick, asks)),
        3 => (both(), tick(), prop_oneof![Just(Duration::ZERO), Just(TTL * 2)])
            .prop_map(|((key, lease), tick, time)| Step::ReleaseDone(key, lease, tick, time)),
        2 => vec((0..LEASES, option::of(asks())), keys).prop_map(Step::Batch),
        4 => (both(), asks()).prop_map(|((key, lease), (claim, stance))| {
            Step::AcquireBriefly(key, lease, claim, stance)
        }),
        3 => (both(), ttl()).prop_map(|((key, lease), ttl)| Step::Renew(key, lease, ttl)),
        1 => (0..LEASES, ttl()).prop_map(|(lease, ttl)| Step::RenewAll(lease, ttl)),
        3 => (both(), prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)], option::of(-1..=1_i64))
            .prop_map(|((key, lease), mode, by)| Step::Convert(key, lease, mode, by)),
        4 => (both(), any::<bool>())
            .prop_map(|((key, lease), alone)| Step::Release(key, lease, alone)),
        2 => (both(), prop_oneof![Just(Duration::ZERO), Just(TTL * 2)])
            .prop_map(|((key, lease), time)| Step::ReleaseHolding(key, lease, time)),
        1 => (0..keys).prop_map(Step::Evict),
        2 => (0..keys).prop_map(Step::RemoveExpired),
        1 => prop_oneof![Just(Step::PurgeOld), Just(Step::PurgeDead)],
        2 => (0..keys).prop_map(Step::Inspect),
    ];
    if !queue {
        return steps.boxed();
    }
    prop_oneof![
        40 => steps,
        3 => (0..keys, 0..WAITERS).prop_map(|(key, process)| Step::Leave(key, process)),
        2 => Just(Step::Linger),
    ]
    .boxed()
}

//! Which fault comes when: a pure function of a seed, so that a run can be repeated.

use std::time::Duration;

use fastrand::Rng;

/// What goes wrong. The numbers are those of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its answers come this much later for a while.
    Late(usize, Duration),
    /// Of its answers this many in a hundred are lost for a while.
    Lost(usize, u32),
    /// Its connections are cut.
    Cut(usize),
    /// Nothing passes between it and the server for this long.
    Dark(usize, Duration),
    /// It gets SIGKILL, and another one starts.
    Kill(usize),
    /// It gets SIGSTOP, and SIGCONT this much later.
    Pause(usize, Duration),
    /// The engine gets SIGKILL, and starts again on its data.
    Restart,
    /// The primary of the set gets SIGSTOP, and SIGCONT this much later.
    PausePrimary(Duration),
    /// The primary of the set is told to make room for another.
    StepDown,
}

impl Fault {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Late(..) => "late answers",
            Self::Lost(..) => "lost answers",
            Self::Cut(_) => "cut connections",
            Self::Dark(..) => "client cut off",
            Self::Kill(_) => "client killed",
            Self::Pause(..) => "client paused",
            Self::Restart => "engine killed",
            Self::PausePrimary(_) => "primary paused",
            Self::StepDown => "primary stepped down",
        }
    }
}

/// How long bad weather lasts.
pub const WHILE: Duration = Duration::from_secs(3);

/// What there is to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One server, and a network to it.
    Server,
    /// A set of servers, which clients find by themselves.
    Set,
}

/// The faults of a run, each with the time from its start. What the engine suffers comes once in every
/// `period`.
pub fn faults(
    seed: u64,
    target: Target,
    lasts: Duration,
    clients: usize,
    period: Duration,
) -> Vec<(Duration, Fault)> {
    let mut random = Rng::with_seed(seed);
    let millis = |random: &mut Rng, most| Duration::from_millis(random.u64(200..most));
    let mut schedule = Vec::new();
    let mut at = Duration::from_secs(2);
    while at < lasts {
        let client = random.usize(..clients);
        let kind = match target {
            Target::Server => random.u32(..8),
            Target::Set => random.u32(5..8),
        };
        let fault = match kind {
            0 | 1 => Fault::Late(client, millis(&mut random, 2_000)),
            2 => Fault::Lost(client, random.u32(10..50)),
            3 => Fault::Cut(client),
            4 => Fault::Dark(client, millis(&mut random, 5_000)),
            5 => Fault::Kill(client),
            _ => Fault::Pause(client, millis(&mut random, 6_000)),
        };
        schedule.push((at, fault));
        at += millis(&mut random, 3_000);
    }
    let mut at = period / 2;
    while at < lasts {
        let fault = match (target, random.bool()) {
            (Target::Server, _) => Fault::Restart,
            (Target::Set, true) => Fault::PausePrimary(millis(&mut random, 10_000)),
            (Target::Set, false) => Fault::StepDown,
        };
        schedule.push((at, fault));
        at += period;
    }
    schedule.sort_by_key(|(at, _)| *at);
    schedule
}

#[test]
fn a_seed_is_a_schedule_with_every_fault() {
    let hour = Duration::from_secs(3_600);
    let schedule = |seed, target| faults(seed, target, hour, 4, hour / 10);
    for (target, kinds) in [(Target::Server, 7), (Target::Set, 4)] {
        let one = schedule(1, target);
        assert_eq!(schedule(1, target), one);
        assert_ne!(schedule(2, target), one);
        let names: std::collections::BTreeSet<_> = one.iter().map(|it| it.1.name()).collect();
        assert_eq!(names.len(), kinds);
    }
    let restarts = schedule(1, Target::Server)
        .into_iter()
        .filter(|it| it.1 == Fault::Restart);
    assert_eq!(restarts.count(), 10);
}

//! The schedule of the faults: a pure function of a seed, so that a run can be repeated.

use std::time::Duration;

use fastrand::Rng;

use crate::work::TTL;

/// A fault of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Its answers are this much later for a while.
    Late(Duration),
    /// This percentage of its answers is lost for a while.
    Lost(u32),
    /// Its connections are cut.
    Cut,
    /// Nothing passes between it and the servers for this long.
    Dark(Duration),
    /// It gets SIGKILL, and another one starts.
    Kill,
    /// It gets SIGSTOP, and SIGCONT this much later.
    Pause(Duration),
}

/// A fault of the server that accepts the writes, or of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It gets SIGKILL, and starts again on its data this much later.
    Kill(Duration),
    /// It gets SIGSTOP, and SIGCONT this much later.
    Pause(Duration),
    /// Nothing passes between it and the other servers for this long.
    CutOff(Duration),
    /// It is told to step down as the primary.
    StepDown,
    /// This router gets SIGKILL, and starts again this much later.
    KillRouter(usize, Duration),
}

impl Mishap {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Late(_) => "late answers",
            Self::Lost(_) => "lost answers",
            Self::Cut => "cut connections",
            Self::Dark(_) => "client cut off",
            Self::Kill => "client killed",
            Self::Pause(_) => "client paused",
        }
    }
}

impl Fault {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "server killed",
            Self::Pause(_) => "server paused",
            Self::CutOff(_) => "server cut off",
            Self::StepDown => "server stepped down",
            Self::KillRouter(0, _) => "router killed",
            Self::KillRouter(..) => "router that is ahead killed",
        }
    }

    /// Whether the fault may undo what a server has, but its copies do not have. A router stores nothing.
    pub fn may_undo_writes(&self) -> bool {
        !matches!(self, Self::KillRouter(..))
    }
}

/// How long bad weather lasts.
pub const WHILE: Duration = Duration::from_secs(3);

fn millis(random: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(200..most))
}

/// The faults of this many clients, each with its time since the start of the run.
pub fn mishaps(seed: u64, lasts: Duration, clients: usize) -> Vec<(Duration, usize, Mishap)> {
    let mut random = Rng::with_seed(seed);
    let mut schedule = Vec::new();
    let mut at = Duration::from_secs(2);
    while at < lasts {
        let client = random.usize(..clients);
        let mishap = match random.u32(..8) {
            0 | 1 => Mishap::Late(millis(&mut random, 2_000)),
            2 => Mishap::Lost(random.u32(10..50)),
            3 => Mishap::Cut,
            4 => Mishap::Dark(millis(&mut random, 5_000)),
            5 => Mishap::Kill,
            _ => Mishap::Pause(millis(&mut random, 6_000)),
        };
        schedule.push((at, client, mishap));
        at += millis(&mut random, 3_000);
    }
    schedule
}

/// Each fault of the clients once, with short pauses.
pub fn each_mishap(seed: u64, clients: usize) -> Vec<(Duration, usize, Mishap)> {
    let mut random = Rng::with_seed(seed);
    let mut each = [
        Mishap::Late(Duration::from_secs(1)),
        Mishap::Lost(30),
        Mishap::Cut,
        Mishap::Dark(Duration::from_secs(2)),
        Mishap::Kill,
        // The pause is longer than a lease.
        Mishap::Pause(TTL.mul_f64(1.4)),
    ];
    random.shuffle(&mut each);
    let times = (1..).map(|turn| turn * Duration::from_millis(300));
    let mishaps = times.zip(each);
    mishaps
        .map(|(at, mishap)| (at, random.usize(..clients), mishap))
        .collect()
}

/// How many kinds of faults the servers of an engine have.
fn kinds(engine: &str) -> usize {
    match engine {
        "mongodb-three" => 4,
        "elasticsearch-three" | "mongodb-sharded" => 3,
        // For clients, a stopped server is the same as one that is cut off.
        _ => 1,
    }
}

/// The fault with this number for the servers of this engine. It lasts for about this time.
fn fault(engine: &str, turn: usize, time: Duration) -> Fault {
    match (engine, turn) {
        (_, 0) => Fault::Kill(time / 4),
        ("mongodb-sharded", router) => Fault::KillRouter(router - 1, time / 4),
        (_, 1) => Fault::CutOff(time),
        (_, 2) => Fault::Pause(time),
        _ => Fault::StepDown,
    }
}

/// Each fault of the servers of this engine once. The next fault begins when the servers are back.
pub fn each_fault(seed: u64, engine: &str) -> Vec<(Duration, Fault)> {
    let (kinds, first) = (kinds(engine), Rng::with_seed(seed).usize(..kinds(engine)));
    // Long enough for the other servers to replace the one with the fault.
    let fault = |turn| fault(engine, (first + turn) % kinds, Duration::from_secs(4));
    (0..kinds)
        .map(|turn| (Duration::from_secs(1), fault(turn)))
        .collect()
}

/// The faults of the servers: one in every `period`, so that each kind occurs in turn.
pub fn faults(
    seed: u64,
    engine: &str,
    lasts: Duration,
    period: Duration,
) -> Vec<(Duration, Fault)> {
    let mut random = Rng::with_seed(seed);
    let kinds = kinds(engine);
    let first = random.usize(..kinds);
    let mut schedule = Vec::new();
    let mut at = period / 2;
    while at < lasts {
        let time = millis(&mut random, 10_000);
        let turn = (first + schedule.len()) % kinds;
        schedule.push((at, fault(engine, turn, time)));
        at += period;
    }
    schedule
}

/// Repeatedly cuts off the server that accepts the writes, for longer than the other servers need to replace it.
pub fn cut_offs(lasts: Duration, period: Duration) -> Vec<(Duration, Fault)> {
    let times = (0..).map(|turn| period / 2 + turn * period);
    let times = times.take_while(|at| *at < lasts);
    times.map(|at| (at, Fault::CutOff(period / 2))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_seed_is_what_clients_suffer() {
        let one = mishaps(1, HOUR, 4);
        assert_eq!(mishaps(1, HOUR, 4), one);
        assert_ne!(mishaps(2, HOUR, 4), one);
        let names: BTreeSet<_> = one.iter().map(|it| it.2.name()).collect();
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn a_seed_is_what_servers_suffer() {
        for (engine, kinds) in [
            ("mongodb-three", 4),
            ("elasticsearch-three", 3),
            ("mongodb-sharded", 3),
            ("opensearch", 1),
        ] {
            let schedule = |seed| faults(seed, engine, HOUR, HOUR / 10);
            let one = schedule(1);
            assert_eq!(schedule(1), one);
            assert_ne!(schedule(2), one);
            let names: BTreeSet<_> = one.iter().map(|it| it.1.name()).collect();
            assert_eq!((names.len(), one.len()), (kinds, 10));
            let each: BTreeSet<_> = each_fault(1, engine).iter().map(|it| it.1.name()).collect();
            assert_eq!(each, names);
        }
    }

    #[test]
    fn each_is_suffered_once() {
        let names: BTreeSet<_> = each_mishap(1, 4).iter().map(|it| it.2.name()).collect();
        assert_eq!(names.len(), 6);
    }
}

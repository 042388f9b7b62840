//! Many runs, on all processors: new seeds for some time, or some number of them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    course::Course,
    judge::Violation,
    ledger::Tally,
    world::{Options, run},
};

/// What happens in a run on average at least, in thousandths. A campaign in which less happens says nothing.
const FLOORS: &[(&str, u64)] = &[
    ("exclusive", 8_000),
    ("shared", 2_000),
    ("permits", 400),
    ("reentrant", 1_500),
    ("set", 800),
    ("work", 2_000),
    ("led", 1_500),
    ("permit", 800),
    ("tick done", 150),
    ("refused", 5_000),
    ("dropped", 1_500),
    ("renewed", 1_000),
    ("converted", 800),
    ("detached", 150),
    ("resumed", 80),
    ("lost", 80),
    ("evicted", 150),
    ("closed", 100),
    ("killed", 50),
    ("runtime ended", 50),
    ("guard left", 50),
    ("panicked", 60),
    ("fault: lost", 100),
    ("fault: late", 100),
    ("fault: silent", 100),
    ("fault: cut", 100),
    ("fault: refused", 100),
    ("fault: stalled", 100),
    ("fault: still", 100),
];

/// So few runs prove nothing about how often things happen.
const FEW: u64 = 300;

/// How long a campaign goes on.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// For this long.
    Time(Duration),
    /// For so many seeds.
    Seeds(u64),
}

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Report {
    /// How many runs there were.
    pub runs: u64,
    /// How long they took.
    pub took: Duration,
    /// How often each thing happened.
    pub tally: Tally,
    /// What was wrong, by the seeds.
    pub wrong: BTreeMap<u64, Violation>,
}

impl Report {
    /// What happened too seldom for the campaign to say anything.
    pub fn too_seldom(&self) -> Vec<String> {
        let often = |what: &str| self.tally.get(what).copied().unwrap_or_default();
        let floors = FLOORS.iter().filter(|_| self.runs >= FEW);
        let seldom = floors.filter(|(what, floor)| often(what) * 1_000 < floor * self.runs);
        let text = |(what, floor): &(&str, u64)| {
            let (often, least) = (often(what), floor * self.runs / 1_000);
            format!(
                "{what}: {often} times in {} runs, less than {least}",
                self.runs
            )
        };
        seldom.map(text).collect()
    }

    fn add(&mut self, seed: u64, tally: Tally, violation: Option<Violation>) {
        self.runs += 1;
        for (what, often) in tally {
            *self.tally.entry(what).or_default() += often;
        }
        self.wrong.extend(violation.map(|it| (seed, it)));
    }
}

/// Runs the seeds from this one on.
pub fn campaign(from: u64, until: Until, threads: usize, options: &Options) -> Report {
    let began = Instant::now();
    let (next, report) = (AtomicU64::new(0), Mutex::new(Report::default()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_over = match until {
                Until::Time(time) => began.elapsed() >= time,
                Until::Seeds(seeds) => number >= seeds,
            };
            if is_over {
                return;
            }
            let seed = from.wrapping_add(number);
            let outcome = run(&Course::of(seed), options);
            report.lock().add(seed, outcome.tally, outcome.violation);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner();
    report.took = began.elapsed();
    report
}

//! Many runs, on all processors: new seeds for some time, or some number of them.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    thread::{self, available_parallelism},
    time::{Duration, Instant},
};

use chrono::Utc;
use clap::ValueEnum;
use parking_lot::Mutex;

use crate::{
    course::{Course, Fault},
    judge::Violation,
    world::{Options, Outcome, Tally, run},
};

/// What happens in a run on average at least, in thousandths. A campaign in which less happens says nothing.
const FLOORS: [(&str, u64); 23] = [
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
    ("waited in turn", 1_000),
];
/// So few runs prove nothing about how often things happen.
const FEW: u64 = 300;

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Report {
    runs: u64,
    /// How often each thing happened.
    tally: Tally,
    /// What was wrong, by the seeds.
    wrong: BTreeMap<u64, Violation>,
}

impl Report {
    /// Whether nothing was wrong, and enough happened.
    pub fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.too_seldom().is_empty()
    }

    /// What happened too seldom for the campaign to say anything.
    fn too_seldom(&self) -> Vec<String> {
        // Each kind of fault happens a hundred times in a thousand runs at least.
        let faults = Fault::value_variants().iter();
        let faults = faults.map(|it| (it.name(), 100));
        let all = FLOORS.iter().map(|&(what, floor)| (what.to_owned(), floor));
        let seldom = all.chain(faults).filter_map(|(what, floor)| {
            let often = self.tally.get(&what).copied().unwrap_or_default();
            let is_seldom = self.runs >= FEW && often * 1_000 < floor * self.runs;
            is_seldom.then(|| format!("{what}: {often} times in {} runs", self.runs))
        });
        seldom.collect()
    }

    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.runs += 1;
        for (what, often) in outcome.tally {
            *self.tally.entry(what).or_default() += often;
        }
        self.wrong.extend(outcome.violation.map(|it| (seed, it)));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, often) in &self.tally {
            writeln!(f, "{often:12}  {what}")?;
        }
        for (seed, wrong) in self.wrong.iter().take(20) {
            writeln!(f, "WRONG {wrong}\n  scripts/simulate --seed {seed}")?;
        }
        for seldom in self.too_seldom() {
            writeln!(f, "TOO SELDOM {seldom}")?;
        }
        write!(f, "{} runs, {} wrong", self.runs, self.wrong.len())
    }
}

/// The first of many seeds that no run has had.
pub fn new_seed() -> u64 {
    Utc::now().timestamp().unsigned_abs() << 20
}

/// Runs these seeds on all processors, as long as there is time.
pub fn campaign(seeds: Range<u64>, time: Duration) -> Report {
    let began = Instant::now();
    let (seeds, report) = (Mutex::new(seeds), Mutex::new(Report::default()));
    let next = || seeds.lock().next().filter(|_| began.elapsed() < time);
    let work = || {
        while let Some(seed) = next() {
            let outcome = run(&Course::of(seed), &Options::default());
            report.lock().add(seed, outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    report.into_inner()
}

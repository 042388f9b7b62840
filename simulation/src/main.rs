//! The command behind `scripts/simulate`.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use leasehold_simulation::{Course, Judge, Options, Violation, campaign, new_seed, run, shrink};

/// Runs whole clients of leasehold under seeds, with faults, and says what was wrong.
///
/// A run has one thread and a paused clock, and follows from its seed alone. Without --seed, it runs many seeds on all
/// processors.
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs this seed alone, and prints what happens in it. If something is wrong, it makes the run smaller, and prints
    /// what happens in the smallest one that is wrong in the same way
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: does not make the run smaller
    #[arg(long)]
    whole: bool,
    /// With --seed: makes wrong what this judge must find, and asks no other one
    #[arg(long, requires = "seed")]
    wrong: Option<Judge>,
    /// The first of many seeds; otherwise one that no run has had
    #[arg(long)]
    from: Option<u64>,
    /// How many seeds to run at most
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    seeds: u64,
    /// For how many seconds to run seeds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_right = match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => {
            let from = arguments.from.unwrap_or_else(new_seed);
            let seeds = from..from.saturating_add(arguments.seeds);
            let began = Instant::now();
            let report = campaign(seeds, Duration::from_secs(arguments.seconds));
            println!("{report}, in {:.1?}", began.elapsed());
            report.is_right()
        }
    };
    ExitCode::from(u8::from(!is_right))
}

/// Prints what happens under one seed. Returns whether all was right.
fn one(seed: u64, arguments: &Arguments) -> bool {
    let options = Options {
        wrong: arguments.wrong,
        is_traced: true,
    };
    let mut course = Course::of(seed);
    let mut outcome = run(&course, &options);
    if let (Some(found), false) = (&outcome.violation, arguments.whole) {
        course = shrink(&course, found.judge, &options);
        outcome = run(&course, &options);
    }
    println!("{course:?}");
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("{:?}", outcome.tally);
    let wrong = outcome.violation.as_ref().map(Violation::to_string);
    println!("{}", wrong.as_deref().unwrap_or("all right"));
    wrong.is_none()
}

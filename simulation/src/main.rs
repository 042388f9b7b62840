//! The command behind `scripts/simulate`.

use std::{
    process::ExitCode,
    thread::available_parallelism,
    time::{Duration, SystemTime},
};

use clap::Parser;
use leasehold_simulation::{Course, Options, Report, Until, campaign, run, shrink};

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
    /// The first of many seeds; otherwise one that no run has had
    #[arg(long)]
    from: Option<u64>,
    /// How many seeds to run
    #[arg(long, conflicts_with = "seconds")]
    seeds: Option<u64>,
    /// For how many seconds to run seeds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_right = match arguments.seed {
        Some(seed) => one(seed, arguments.whole),
        None => many(&arguments),
    };
    ExitCode::from(u8::from(!is_right))
}

/// Prints what happens under one seed. Returns whether all was right.
fn one(seed: u64, whole: bool) -> bool {
    let options = Options {
        is_traced: true,
        ..Options::default()
    };
    let mut course = Course::of(seed);
    let mut outcome = run(&course, &options);
    let found = outcome.violation.clone();
    if let Some(found) = found.filter(|_| !whole) {
        course = shrink(&course, found.judge, &options);
        outcome = run(&course, &options);
    }
    print_course(&course);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("{:?}", outcome.tally);
    match outcome.violation {
        None => println!("all right"),
        Some(ref wrong) => println!("{}: {}", wrong.judge, wrong.text),
    }
    outcome.violation.is_none()
}

/// Runs many seeds. Returns whether all was right.
fn many(arguments: &Arguments) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let from = arguments
        .from
        .unwrap_or(now.unwrap_or_default().as_secs() << 20);
    let until = match arguments.seeds {
        Some(seeds) => Until::Seeds(seeds),
        None => Until::Time(Duration::from_secs(arguments.seconds)),
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let report = campaign(from, until, threads, &Options::default());
    print(&report, from, threads);
    report.wrong.is_empty() && report.too_seldom().is_empty()
}

fn print(report: &Report, from: u64, threads: usize) {
    for (what, often) in &report.tally {
        println!("{often:12}  {what}");
    }
    for (seed, wrong) in report.wrong.iter().take(20) {
        println!(
            "WRONG {}: {}\n  scripts/simulate --seed {seed}",
            wrong.judge, wrong.text
        );
    }
    for seldom in report.too_seldom() {
        println!("TOO SELDOM {seldom}");
    }
    let per_second = report.runs as f64 / report.took.as_secs_f64() / threads as f64;
    println!(
        "{} runs from seed {from} in {:.1} s, {per_second:.0} a second and processor; {} were wrong",
        report.runs,
        report.took.as_secs_f64(),
        report.wrong.len(),
    );
}

/// Prints what the run is like, and which steps of its tasks are left.
fn print_course(course: &Course) {
    for client in 0..course.clients {
        for task in 0..course.tasks {
            let is_left = |step: &usize| !course.skipped.contains(&(client, task, *step));
            let steps: Vec<_> = (0..course.steps).filter(is_left).collect();
            if !steps.is_empty() {
                println!("client {client} task {task}: steps {steps:?}");
            }
        }
    }
    let mut rest = course.clone();
    rest.skipped.clear();
    println!("{rest:?}");
}

//! The simulation itself: the same seed gives the same run, each judge finds something, and new seeds find nothing.
//!
//! `scripts/test simulation` runs these. They are built in release, because there are thousands of runs, and with
//! `--cfg tokio_unstable`, because only then the runtime can be given a seed.

#![cfg(tokio_unstable)]

use std::{
    thread::available_parallelism,
    time::{Duration, SystemTime},
};

use leasehold_simulation::{Control, Course, Judge, Options, Report, Until, campaign, run, shrink};

fn traced(course: &Course) -> Vec<String> {
    let options = Options {
        is_traced: true,
        ..Options::default()
    };
    run(course, &options).trace
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..300 {
        let course = Course::of(seed);
        let (one, other) = (traced(&course), traced(&course));
        let differ = one.iter().zip(&other).find(|(one, other)| one != other);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(one.len(), other.len(), "seed {seed}");
        assert!(one.len() > 2, "seed {seed}: {one:?}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    assert_ne!(traced(&Course::of(1)), traced(&Course::of(2)));
}

/// What is wrong on purpose is found within some seeds, by the judge that is meant to find it, in a run in which that
/// judge finds nothing otherwise.
#[test]
fn each_judge_finds_what_is_wrong_on_purpose() {
    for (control, judges) in Control::ALL {
        let ignored = Judge::ALL.iter().copied().filter(|it| !judges.contains(it));
        let options = Options {
            control: Some(control),
            ignored: ignored.collect::<Vec<_>>().leak(),
            ..Options::default()
        };
        let mut seeds = 0..2_000;
        let found = seeds.find_map(|seed| {
            let course = Course::of(seed);
            let found = run(&course, &options).violation?;
            let right = Options {
                control: None,
                ..options
            };
            run(&course, &right).violation.is_none().then_some(found)
        });
        println!("{control:?}: {found:?}, seeds left: {seeds:?}");
        assert!(found.is_some(), "{control:?}");
    }
}

#[test]
fn a_judge_is_shown_for_each_finding() {
    let all: Vec<_> = Control::ALL
        .iter()
        .flat_map(|(_, judges)| *judges)
        .collect();
    for judge in Judge::ALL {
        assert!(
            all.contains(&&judge),
            "nothing shows that {judge} finds anything"
        );
    }
}

#[test]
fn a_smaller_run_fails_in_the_same_way() {
    let options = Options {
        control: Some(Control::GrantsTwice),
        ..Options::default()
    };
    let fails = |seed: &u64| {
        let found = run(&Course::of(*seed), &options).violation;
        found.is_some_and(|it| it.judge == Judge::Exclusion)
    };
    let seed = (0..2_000).find(fails).expect("a seed fails");
    let course = Course::of(seed);
    let smaller = shrink(&course, Judge::Exclusion, &options);
    assert_ne!(smaller, course);
    let found = run(&smaller, &options).violation.expect("it fails still");
    assert_eq!(found.judge, Judge::Exclusion);
}

fn found_nothing(report: &Report) {
    println!(
        "{} runs in {:?}: {:#?}",
        report.runs, report.took, report.tally
    );
    let wrong = report.wrong.iter().map(|(seed, wrong)| {
        format!(
            "{}: {}\n  scripts/simulate --seed {seed}\n",
            wrong.judge, wrong.text
        )
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} seeds fail:\n{}",
        wrong.len(),
        wrong.concat()
    );
    assert_eq!(report.too_seldom(), [""; 0], "too little happened");
}

/// Seeds that once failed, in `simulation/seeds.txt`.
#[test]
fn seeds_that_once_failed_fail_no_more() {
    let lines = include_str!("../../seeds.txt").lines();
    let seeds = lines.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    for seed in seeds {
        let found = run(&Course::of(seed), &Options::default()).violation;
        assert_eq!(found, None, "scripts/simulate --seed {seed}");
    }
}

/// New seeds each time, for a minute.
#[test]
fn new_seeds_find_nothing() {
    let time = Duration::from_secs(60);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let from = now.expect("the clock is set").as_secs() << 20;
    let threads = available_parallelism().map_or(1, usize::from);
    let until = Until::Time(time);
    found_nothing(&campaign(from, until, threads, &Options::default()));
}

//! The simulation itself: the same seed gives the same run, each judge finds something, and new seeds find nothing.
//!
//! `scripts/test simulation` runs these. They are built in release, because there are thousands of runs, and with
//! `--cfg tokio_unstable`, because only then the runtime can be given a seed.

#![cfg(tokio_unstable)]

use std::time::Duration;

use clap::ValueEnum;
use leasehold_simulation::{Course, Judge, Options, campaign, new_seed, run, shrink};

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

/// What is wrong on purpose is found within some seeds, by the judge that is meant to find it, in a run in which
/// nothing is found otherwise.
#[test]
fn each_judge_finds_what_is_wrong_on_purpose() {
    for &judge in Judge::value_variants() {
        let options = Options {
            wrong: Some(judge),
            ..Options::default()
        };
        let mut seeds = 0..2_000;
        let found = seeds.find_map(|seed| {
            let course = Course::of(seed);
            let found = run(&course, &options).violation?;
            let right = run(&course, &Options::default()).violation;
            right.is_none().then_some(found)
        });
        println!("{judge:?}: {found:?}, seeds left: {seeds:?}");
        assert!(found.is_some(), "{judge:?}");
    }
}

#[test]
fn a_smaller_run_fails_in_the_same_way() {
    let options = Options {
        wrong: Some(Judge::Exclusion),
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
    let report = campaign(new_seed()..u64::MAX, Duration::from_secs(60));
    println!("{report}");
    assert!(
        report.is_right(),
        "something was wrong, or too little happened"
    );
}

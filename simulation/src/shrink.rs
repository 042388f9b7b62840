//! Makes a failing course smaller.

use std::time::{Duration, Instant};

use crate::{
    course::Course,
    judge::Judge,
    world::{Options, run},
};

/// How long the search goes on at most.
const TIME: Duration = Duration::from_secs(30);

/// A smaller course in which the same judge finds something, with fewer clients, tasks, steps and faults.
pub fn shrink(course: &Course, judge: Judge, options: &Options) -> Course {
    let began = Instant::now();
    let options = &Options {
        is_traced: false,
        ..*options
    };
    let fails = |course: &Course| {
        let found = run(course, options).violation;
        found.is_some_and(|it| it.judge == judge)
    };
    let mut smallest = course.clone();
    loop {
        let before = smallest.clone();
        for change in before.changes() {
            let mut next = smallest.clone();
            change(&mut next);
            if began.elapsed() < TIME && next != smallest && fails(&next) {
                smallest = next;
            }
        }
        if smallest == before {
            return smallest;
        }
    }
}

//! Limiters that several processes share.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use futures::future::join_all;
use leasehold::{Leases, Store};
use tokio::time::sleep;

use super::{
    super::{
        faketime,
        permits::{self, Table},
    },
    Place, Process, SPARE, parse, process, told,
};

/// Of the limiter of the seed's experiment.
const WINDOW: Duration = Duration::from_millis(250);
const CALLS: usize = 50;
/// Of a limiter whose window outlasts the test.
const CRASH_LIMIT: u32 = 60;
const CRASH_WINDOW: Duration = Duration::from_secs(300 * 24 * 60 * 60);

/// Half of the seed's experiment: ten tasks make fifty calls each. Tells what the clock of this process
/// says, and when each call was let through.
pub async fn call(leases: &Leases) {
    told("clock", Utc::now().timestamp_millis(), 0);
    let limiter = leases.limiter("key", permits::LIMIT, WINDOW);
    let calls = async || {
        for _ in 0..CALLS {
            let permit = limiter.permit().await.unwrap();
            told("called", permit.granted_at().timestamp_millis(), 0);
        }
    };
    join_all((0..10).map(|_| calls())).await;
    told("done", 0, 0);
}

/// Takes permits one by one, and tells each.
pub async fn take(leases: &Leases) {
    let limiter = leases.limiter("key", CRASH_LIMIT, CRASH_WINDOW);
    for number in 0.. {
        limiter.permit().await.unwrap();
        told("taken", number, 0);
    }
}

/// The seed's experiment in two processes, one of them with its clock so many minutes off: 20 tasks, 50
/// calls each, at most ten a window. No window has more, and all together they have nearly all.
pub async fn calls_of_two_processes(place: &Place, off: i32) {
    let mut other = process(place, "call");
    other.envs(faketime::minutes(off));
    let mut processes = [process(place, "call"), other].map(Process::of);
    let mut clocks = Vec::new();
    for process in &mut processes {
        let (what, clock, _) = process.next().await;
        assert_eq!(what, "clock");
        clocks.push(clock);
    }
    let ahead = (clocks[1] - clocks[0]) as f64 / 60_000.0;
    assert!((ahead - f64::from(off)).abs() < 1.0, "{ahead} minutes");
    let called = processes.map(async |mut process| {
        let mut called = Vec::new();
        loop {
            match process.next().await {
                (what, at, _) if what == "called" => called.push(at),
                _ => break,
            }
        }
        assert!(process.child.wait().await.unwrap().success());
        called
    });
    let mut table = Table::new(WINDOW);
    for at in join_all(called).await.concat() {
        table.count_millis(at);
    }
    table.print(&format!("{}, one clock off by {off} minutes", place.kind));
    let (windows, share) = table.share();
    let percent = share * 100.0;
    println!("{windows} full windows with {percent:.1}% of their permits");
    assert_eq!(table.total() as usize, 2 * 10 * CALLS);
    assert!(table.most() <= permits::LIMIT, "{table:?}");
    assert!(
        windows >= 10 && share >= 0.95,
        "{share} of {windows} windows"
    );
}

/// A process that takes permits one by one gets SIGKILL: what it had not told of costs one at the most.
pub async fn a_crash_costs_one_permit(place: &Place, store: Arc<dyn Store>) {
    let mut process = Process::start(place, "take");
    for _ in 0..CRASH_LIMIT / 3 {
        assert_eq!(process.next().await.0, "taken");
    }
    process.child.start_kill().unwrap();
    let mut taken = CRASH_LIMIT / 3;
    while let Some(line) = process.lines.next_line().await.unwrap() {
        taken += u32::from(parse(&line).is_some());
    }
    // Its last request may still be on its way.
    sleep(SPARE).await;
    let left = permits::left(store, "key", CRASH_LIMIT, CRASH_WINDOW).await;
    println!("{taken} taken and {left} left of {CRASH_LIMIT}");
    assert!((CRASH_LIMIT - 1..=CRASH_LIMIT).contains(&(taken + left)));
}

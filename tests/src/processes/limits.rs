//! Limiters that several processes share.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::Utc;
use futures::future::join_all;
use leasehold::{
    Error, Store,
    store::{PermitAnswer, PermitRequest},
};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        faketime,
        layer::{Layer, Layered},
        long, patient,
        permits::{self, Table},
    },
    Place, Process, parse, process, timed, told,
};

/// The windows of the limiter in the experiment of the seed document. The longer ones are for a machine on which the
/// processes stand still in most of the shorter ones.
const WINDOWS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// A process that stands still for this part of a window, or waits that long for an answer, may not have asked in the
/// window.
const STALL: u32 = 4;
/// How many windows in which both processes asked are enough to show whether all permits are used.
const ENOUGH: usize = 10;
/// The limiter of the crash test. Its window is longer than the test.
const CRASH_LIMIT: u32 = 60;
const CRASH_WINDOW: Duration = Duration::from_secs(300 * 24 * 60 * 60);

/// In how many windows each task makes calls: some more than are needed.
fn windows(window: Duration) -> u32 {
    match window {
        _ if long() => 100,
        _ if window == WINDOWS[0] => 30,
        _ => 14,
    }
}

/// Half of the experiment of the seed document: ten tasks make calls. Tells the clock of this process, when each call
/// was let through, and between which times, by this clock, the tasks asked and the process stood still.
pub async fn call(store: Arc<dyn Store>, window: Duration) {
    let leases = patient(Layered(Watched { store, window }));
    let (start, began) = (Instant::now(), Utc::now().timestamp_millis());
    told("clock", began, 0);
    let asks = window * windows(window);
    let limiter = leases.limiter(format!("key {window:?}"), permits::LIMIT, window);
    let calls = async || {
        while start.elapsed() < asks {
            let permit = loop {
                match limiter.permit().await {
                    Ok(permit) => break permit,
                    Err(error) => assert!(error.is_retryable(), "{error:?}"),
                }
            };
            let now = Utc::now().timestamp_millis();
            told("called", permit.granted_at().timestamp_millis(), now);
        }
    };
    let stalls = async {
        loop {
            let (start, began) = (Instant::now(), Utc::now().timestamp_millis());
            sleep(window / 12).await;
            tell_stall(start, began, window);
        }
    };
    tokio::select! {
        _ = join_all((0..10).map(|_| calls())) => {}
        () = stalls => {}
    }
    told("asked", began, began + asks.as_millis() as i64);
}

/// Tells that the process stood still since `start`, if that is a stall. By its clock it was `began` then.
fn tell_stall(start: Instant, began: i64, window: Duration) {
    let took = start.elapsed();
    if took > window / STALL {
        told("stalled", began, began + took.as_millis() as i64);
    }
}

/// A store that tells when its answers are slow.
#[derive(Debug)]
struct Watched {
    store: Arc<dyn Store>,
    window: Duration,
}

#[async_trait]
impl Layer for Watched {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let (start, began) = (Instant::now(), Utc::now().timestamp_millis());
        let answer = self.store.permit(request).await;
        tell_stall(start, began, self.window);
        answer
    }
}

/// Takes permits one by one, and tells each.
pub async fn take(store: Arc<dyn Store>) {
    let limiter = patient(store).limiter("key", CRASH_LIMIT, CRASH_WINDOW);
    for number in 0.. {
        limiter.permit().await.unwrap();
        told("taken", number, 0);
    }
}

/// What a process told. The times are by its own clock, except those at which calls were let through.
#[derive(Default)]
struct Calls {
    /// When each call was let through by the server's clock, and when the process knew that.
    called: Vec<(i64, i64)>,
    /// Between which times it asked, whether it was let through or not.
    asked: (i64, i64),
    /// Between which times it stood still.
    stalled: Vec<(i64, i64)>,
}

impl Calls {
    /// How far ahead of the server's clock its own is at most.
    fn ahead(&self) -> Option<i64> {
        self.called.iter().map(|(at, known)| known - at).min()
    }

    /// Changes its times to those of a clock that is this far behind its own.
    fn set_back(&mut self, ahead: i64) {
        for (from, to) in self.stalled.iter_mut().chain([&mut self.asked]) {
            *from -= ahead;
            *to -= ahead;
        }
        for (_, known) in &mut self.called {
            *known -= ahead;
        }
    }

    /// Whether it asked from the beginning to the end of this window, as far as is known.
    fn asked_in(&self, window: i64, length: Duration) -> bool {
        let length = length.as_millis() as i64;
        let (start, end) = (window * length, (window + 1) * length);
        let (first, last) = self.asked;
        let stalled = |(from, to): &(i64, i64)| *from < end && *to >= start;
        first < start && last >= end && !self.stalled.iter().any(stalled)
    }
}

/// The experiment of the seed document in two processes, one of them with a clock that is off by this many minutes: 20
/// tasks, and at most ten calls in a window. No window has more calls, and the windows in which both processes asked
/// have nearly all of them.
pub async fn calls_of_two_processes(place: &Place, off: i32) {
    for window in WINDOWS {
        if let Some(share) = share_of_two_processes(place, off, window).await {
            assert!(share >= 0.95, "{share}");
            return;
        }
    }
    panic!("the processes stood still in too many windows to tell whether all permits are used");
}

/// The share of the permits that was used in the windows in which both processes asked; `None` if there are too few
/// such windows.
async fn share_of_two_processes(place: &Place, off: i32, window: Duration) -> Option<f64> {
    let task = timed("call", window);
    let mut other = process(place, &task);
    other.envs(faketime::minutes(off));
    let mut processes = [process(place, &task), other].map(Process::of);
    let mut clocks = Vec::new();
    for process in &mut processes {
        let (what, clock, _) = process.next().await;
        assert_eq!(what, "clock");
        clocks.push(clock);
    }
    let ahead = (clocks[1] - clocks[0]) as f64 / 60_000.0;
    assert!((ahead - f64::from(off)).abs() < 1.0, "{ahead} minutes");
    let offs = [0, i64::from(off) * 60_000];
    let told = processes
        .into_iter()
        .zip(offs)
        .map(async |(mut process, off)| {
            let mut calls = Calls::default();
            loop {
                match process.next().await {
                    (what, at, known) if what == "called" => calls.called.push((at, known)),
                    (what, from, to) if what == "stalled" => calls.stalled.push((from, to)),
                    (_, from, to) => {
                        calls.asked = (from, to);
                        break;
                    }
                }
            }
            assert!(process.child.wait().await.unwrap().success());
            calls.set_back(off);
            calls
        });
    let mut told = join_all(told).await;
    // The server's clock may be that of either process, and one of the processes may never be let through.
    let ahead = told.iter().filter_map(Calls::ahead).min().unwrap();
    told.iter_mut().for_each(|calls| calls.set_back(ahead));
    let mut table = Table::new(window);
    for (at, _) in told.iter().flat_map(|calls| &calls.called) {
        table.count_millis(*at);
    }
    table.print(&format!(
        "{}, one clock off by {off} minutes, windows of {window:?}",
        place.kind
    ));
    assert!(table.most() <= permits::LIMIT, "{table:?}");
    let asked = |number: &i64| told.iter().all(|calls| calls.asked_in(*number, window));
    let windows: Vec<_> = table.windows().filter(asked).collect();
    let share = table.share_of(&windows);
    let percent = share * 100.0;
    println!(
        "{} windows with {percent:.1}% of their permits",
        windows.len()
    );
    (windows.len() >= ENOUGH).then_some(share)
}

/// A process that takes permits one by one gets SIGKILL. Beside the permits that it has told, this costs one permit at
/// most.
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
    // The last request of the process may still be on its way. It may come before these requests, or find nothing left.
    let left = permits::left(store, "key", CRASH_LIMIT, CRASH_WINDOW).await;
    println!("{taken} taken and {left} left of {CRASH_LIMIT}");
    assert!((CRASH_LIMIT - 1..=CRASH_LIMIT).contains(&(taken + left)));
}

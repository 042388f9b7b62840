//! Tests of the queue without a store, at times that the tests choose.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot::{self, Receiver},
    time::Instant,
};

use super::{Action, LimiterConfig, Moment, PermitOutcome, PermitQueue, Until};
use crate::{
    MemoryStore,
    limiter::permit::{Permit, PermitAttempt},
    messages::{PermitAnswer, PermitRequest},
    model::{Cause, Error, Key, Quota},
};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

struct Bench {
    queue: PermitQueue,
    start: Instant,
    now: Instant,
}

/// A caller in the queue.
struct Caller {
    number: u64,
    outcome: Receiver<PermitOutcome>,
}

impl Caller {
    fn outcome(&mut self) -> Option<PermitOutcome> {
        self.outcome.try_recv().ok()
    }

    fn permits(&mut self) -> Option<u32> {
        match self.outcome()? {
            Ok(PermitAttempt::Granted(permit)) => Some(permit.permits()),
            other => panic!("{other:?}"),
        }
    }

    fn is_refused(&mut self) -> bool {
        matches!(self.outcome(), Some(Ok(PermitAttempt::Full { .. })))
    }

    fn error(&mut self) -> Option<Error> {
        match self.outcome()? {
            Err(error) => Some(error),
            Ok(attempt) => panic!("{attempt:?}"),
        }
    }
}

impl Bench {
    /// A queue for a limiter of ten permits a second.
    fn new() -> Self {
        let config = LimiterConfig {
            store: Arc::new(MemoryStore::new()),
            key: Key::new("k").unwrap(),
            quota: Quota::fixed(10, SECOND).unwrap(),
            response_timeout: LIMIT,
            call_timeout: CALL_TIMEOUT,
        };
        let start = Instant::now();
        Self {
            queue: PermitQueue::new(config),
            start,
            now: start,
        }
    }

    fn tick(&self) -> Moment {
        Moment {
            now: self.now,
            chance: 1.0,
        }
    }

    fn enter(&mut self, permits: u32, until: Until) -> Caller {
        let (reply, outcome) = oneshot::channel();
        let (number, _) = self.queue.enter(permits, until, self.now, reply);
        Caller { number, outcome }
    }

    fn ask(&mut self, caller: &Caller) -> Arc<PermitRequest> {
        match self.queue.step(caller.number, self.tick()) {
            Action::Ask(request) => request,
            wait => panic!("{wait:?}"),
        }
    }

    /// Until when the caller has nothing to do, in milliseconds from the start.
    fn wait(&mut self, caller: &Caller) -> Option<u128> {
        match self.queue.step(caller.number, self.tick()) {
            Action::Wait(until) => until.map(|until| (until - self.start).as_millis()),
            ask => panic!("{ask:?}"),
        }
    }

    fn leave(&mut self, caller: &Caller, granted: Option<Permit>) {
        self.queue.leave(caller.number, granted, self.now);
    }

    fn granted(&mut self, request: &PermitRequest, permits: u32, retry_in: Duration) {
        let granted_at = "2026-01-01T00:00:00Z".parse().unwrap();
        let answer = PermitAnswer::Granted {
            permits,
            granted_at,
            retry_in,
        };
        self.queue
            .complete(request, self.now, Ok(answer), self.tick());
    }

    fn full(&mut self, request: &PermitRequest, sent: Instant, retry_in: Duration) {
        let answer = PermitAnswer::Full { retry_in };
        self.queue.complete(request, sent, Ok(answer), self.tick());
    }

    fn fail(&mut self, request: &PermitRequest) {
        let error = Error::Interrupted {
            store: "the test",
            source: Cause::text("cut"),
        };
        self.queue
            .complete(request, self.now, Err(error), self.tick());
    }
}

#[test]
fn the_first_asks_for_all_who_want_as_many() {
    let mut bench = Bench::new();
    let mut callers: Vec<_> = (0..4).map(|_| bench.enter(2, Until::Granted)).collect();
    let mut other = bench.enter(1, Until::Granted);
    // If the first one is not polled, the next one asks 200 ms later.
    assert_eq!(bench.wait(&callers[1]), Some(200));
    let request = bench.ask(&callers[0]);
    assert_eq!((request.permits, request.times), (2, 4));
    assert_eq!(bench.wait(&callers[0]), Some(LIMIT.as_millis()));
    bench.granted(&request, 6, SECOND / 2);
    let granted: Vec<_> = callers.iter_mut().map(Caller::permits).collect();
    assert_eq!(granted, [Some(2), Some(2), Some(2), None]);
    // The next request is sent a twentieth of the window later than the server says.
    assert_eq!(bench.wait(&callers[3]), Some(550));
    assert!(other.outcome().is_none());
    bench.now += Duration::from_millis(550);
    assert_eq!(bench.ask(&callers[3]).times, 1);
}

#[test]
fn no_request_is_for_more_than_there_can_be() {
    let mut bench = Bench::new();
    let callers: Vec<_> = (0..100).map(|_| bench.enter(3, Until::Granted)).collect();
    assert_eq!(bench.ask(&callers[0]).times, 3);
}

#[test]
fn what_those_who_left_do_not_take_is_for_the_next() {
    let mut bench = Bench::new();
    let (first, second) = (
        bench.enter(2, Until::Granted),
        bench.enter(2, Until::Granted),
    );
    let mut third = bench.enter(1, Until::Granted);
    let request = bench.ask(&first);
    bench.leave(&first, None);
    drop(second.outcome);
    bench.granted(&request, 4, Duration::ZERO);
    assert_eq!(third.permits(), Some(1));
}

#[test]
fn an_answer_is_handed_out_once() {
    let mut bench = Bench::new();
    let (mut first, mut second) = (
        bench.enter(1, Until::Granted),
        bench.enter(1, Until::Granted),
    );
    bench.leave(&second, None);
    let request = bench.ask(&first);
    // The request was given up and sent again, and the answers to both come.
    bench.now += LIMIT;
    assert!(bench.wait(&first) > Some(LIMIT.as_millis()));
    bench.now += SECOND;
    assert_eq!(bench.ask(&first).id, request.id);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(first.permits(), Some(1));
    second = bench.enter(1, Until::Granted);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(second.permits(), None);
    let another = bench.ask(&second);
    assert_ne!(another.id, request.id);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(second.permits(), None);
}

#[test]
fn an_answer_that_comes_after_all_is_taken() {
    let mut bench = Bench::new();
    let mut caller = bench.enter(1, Until::Granted);
    let request = bench.ask(&caller);
    bench.now += LIMIT;
    bench.wait(&caller);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(caller.permits(), Some(1));
}

#[test]
fn who_does_not_wait_is_told_without_a_request_while_it_is_certain() {
    let mut bench = Bench::new();
    let mut caller = bench.enter(3, Until::Answered);
    let request = bench.ask(&caller);
    let sent = bench.now;
    bench.now += Duration::from_millis(100);
    bench.full(&request, sent, SECOND);
    assert!(caller.is_refused());
    bench.now = sent + Duration::from_millis(999);
    let known = |bench: &Bench, permits| {
        bench
            .queue
            .known_answer(permits, Until::Answered, bench.now)
    };
    assert!(known(&bench, 3).is_some() && known(&bench, 4).is_some());
    assert!(known(&bench, 2).is_none(), "there may be room for two");
    bench.now += Duration::from_millis(1);
    assert!(known(&bench, 3).is_none(), "the window may have turned");
}

#[test]
fn who_does_not_wait_takes_nothing_from_those_who_do() {
    let mut bench = Bench::new();
    let waiting = bench.enter(3, Until::Granted);
    let mut behind = bench.enter(1, Until::Answered);
    let request = bench.ask(&waiting);
    bench.full(&request, bench.now, SECOND);
    assert!(behind.is_refused());
    assert!(
        bench
            .queue
            .known_answer(1, Until::Answered, bench.now)
            .is_some()
    );
    // If no caller waits for the next window, a request for one permit is sent, because one permit may be available.
    bench.leave(&waiting, None);
    assert!(
        bench
            .queue
            .known_answer(1, Until::Answered, bench.now)
            .is_none()
    );
}

#[test]
fn a_refusal_of_many_says_nothing_about_one() {
    let mut bench = Bench::new();
    let (mut many, mut one) = (
        bench.enter(5, Until::Answered),
        bench.enter(1, Until::Answered),
    );
    let request = bench.ask(&many);
    bench.full(&request, bench.now, SECOND);
    assert!(many.is_refused());
    assert!(one.outcome().is_none());
    let request = bench.ask(&one);
    assert_eq!((request.permits, request.times), (1, 1));
}

#[test]
fn a_wait_that_is_in_vain_ends_at_once() {
    let mut bench = Bench::new();
    let in_time = |bench: &Bench, millis| Until::Time(bench.now + Duration::from_millis(millis));
    let first = in_time(&bench, 999);
    let mut short = bench.enter(1, first);
    let second = in_time(&bench, 1_000);
    let mut long = bench.enter(1, second);
    let request = bench.ask(&short);
    bench.full(&request, bench.now, SECOND);
    assert!(short.is_refused() && long.outcome().is_none());
    let known = |millis| {
        bench
            .queue
            .known_answer(1, in_time(&bench, millis), bench.now)
    };
    assert!(known(999).is_some() && known(1_000).is_none());
}

#[test]
fn errors_are_retried_under_one_name_and_told_in_the_end() {
    let mut bench = Bench::new();
    let (mut once, mut waiting) = (
        bench.enter(1, Until::Answered),
        bench.enter(1, Until::Granted),
    );
    let first = bench.ask(&once);
    bench.fail(&first);
    assert!(bench.wait(&once) > Some(0), "a pause");
    let mut failures = 1;
    while bench.now - bench.start < CALL_TIMEOUT {
        assert!(waiting.outcome().is_none());
        bench.now += SECOND;
        let caller = if failures < 3 { &once } else { &waiting };
        let again = bench.ask(caller);
        assert_eq!(again.id, first.id);
        bench.fail(&again);
        failures += 1;
        assert_eq!(once.error().is_some(), failures == 3, "after {failures}");
    }
    assert!(waiting.error().is_some());
    // The errors are forgotten when all callers have left.
    let mut next = bench.enter(1, Until::Answered);
    let another = bench.ask(&next);
    assert_ne!(another.id, first.id);
    bench.fail(&another);
    assert!(next.outcome().is_none());
}

#[test]
fn an_error_that_no_retry_mends_is_told_to_all() {
    let mut bench = Bench::new();
    let mut callers: Vec<_> = (0..3).map(|_| bench.enter(1, Until::Granted)).collect();
    let request = bench.ask(&callers[0]);
    let (now, tick) = (bench.now, bench.tick());
    bench
        .queue
        .complete(&request, now, Err(Error::Closed), tick);
    assert!(callers.iter_mut().all(|caller| caller.error().is_some()));
}

/// Here the jitter alone would send the next request after the end of the wait.
#[test]
fn a_wait_that_ends_just_past_the_turn_gets_a_request_before_its_end() {
    for late in [true, false] {
        let mut bench = Bench::new();
        let first = bench.enter(1, Until::Granted);
        let end = Until::Time(bench.now + Duration::from_millis(1_010));
        let enter = |bench: &mut Bench| bench.enter(1, end);
        let second = (!late).then(|| enter(&mut bench));
        let request = bench.ask(&first);
        bench.full(&request, bench.now, SECOND);
        let _second = second.unwrap_or_else(|| enter(&mut bench));
        assert_eq!(bench.wait(&first), Some(1_005));
    }
}

/// An answer that took a long time does not delay the request for the next window.
#[test]
fn the_turn_counts_from_the_sending() {
    let mut bench = Bench::new();
    let caller = bench.enter(1, Until::Granted);
    let request = bench.ask(&caller);
    let sent = bench.now;
    bench.now += SECOND / 2;
    bench.full(&request, sent, SECOND);
    assert_eq!(bench.wait(&caller), Some(1_050));
    // The time is never in the past.
    bench.now += SECOND;
    let request = bench.ask(&caller);
    let sent = bench.now;
    bench.now += SECOND;
    bench.full(&request, sent, SECOND / 100);
    assert_eq!(bench.wait(&caller), Some(2_501));
}

#[test]
fn a_long_window_is_looked_at_from_time_to_time() {
    let mut bench = Bench::new();
    let caller = bench.enter(1, Until::Granted);
    let request = bench.ask(&caller);
    bench.full(&request, bench.now, 10_000 * SECOND);
    assert_eq!(bench.wait(&caller), Some(600_000));
    bench.leave(&caller, None);
    let known = |bench: &Bench| bench.queue.known_answer(1, Until::Answered, bench.now);
    assert!(matches!(
        known(&bench),
        Some(PermitAttempt::Full { retry_in }) if retry_in == 10_000 * SECOND
    ));
    bench.now += 600 * SECOND;
    assert!(known(&bench).is_none());
}

#[test]
fn those_who_left_are_not_asked_for_again() {
    let mut bench = Bench::new();
    let mut callers: Vec<_> = (0..5).map(|_| bench.enter(1, Until::Granted)).collect();
    let first = bench.ask(&callers[0]);
    assert_eq!(first.times, 5);
    let last = callers.pop().unwrap();
    for caller in callers {
        bench.leave(&caller, None);
    }
    bench.fail(&first);
    bench.now += SECOND;
    let again = bench.ask(&last);
    assert_eq!((again.id, again.times), (first.id, 1));
}

/// The answer to the request may still come, with a permit.
#[test]
fn a_wait_that_is_over_waits_for_the_answer_that_is_on_its_way() {
    let mut bench = Bench::new();
    let end = Until::Time(bench.now + SECOND / 10);
    let (mut caller, mut behind) = (bench.enter(2, end), bench.enter(1, end));
    let request = bench.ask(&caller);
    let late = bench.enter(1, end);
    let asked_for = |caller: &Caller| bench.queue.awaits_answer(caller.number);
    assert_eq!(
        [&caller, &behind, &late].map(asked_for),
        [true, true, false]
    );
    bench.now += SECOND / 2;
    bench.granted(&request, 2, SECOND / 2);
    assert_eq!(caller.permits(), Some(2));
    // This caller gets the answer too, although it wanted fewer permits than the request.
    assert!(behind.is_refused());
}

/// An old permit may be of a window that is over.
#[test]
fn a_permit_that_came_as_its_caller_left_is_for_the_next_unless_it_is_old() {
    for (age, then) in [(SECOND / 10, Some(1)), (SECOND / 5, None)] {
        let mut bench = Bench::new();
        let (mut first, mut second) = (
            bench.enter(1, Until::Granted),
            bench.enter(1, Until::Granted),
        );
        let request = bench.ask(&first);
        bench.granted(&request, 1, SECOND);
        let Some(Ok(PermitAttempt::Granted(permit))) = first.outcome() else {
            panic!("it was granted");
        };
        bench.now += age;
        bench.leave(&first, Some(permit));
        assert_eq!(second.permits(), then, "{age:?}");
    }
}

/// The request was given up, and its repeat under the same id may be granted after all, also if that was given up too.
#[test]
fn a_late_refusal_or_error_does_not_end_the_repeat() {
    for (is_full, is_given_up) in [(false, false), (true, false), (true, true)] {
        let mut bench = Bench::new();
        let mut caller = bench.enter(1, Until::Granted);
        let (sent, request) = (bench.now, bench.ask(&caller));
        bench.now += LIMIT;
        let retry_at = bench.wait(&caller).unwrap();
        bench.now = bench.start + Duration::from_millis(u64::try_from(retry_at).unwrap());
        let again = bench.ask(&caller);
        assert_eq!(request.id, again.id);
        if is_given_up {
            bench.now += LIMIT;
            bench.wait(&caller);
        }
        if is_full {
            bench.full(&request, sent, SECOND);
        } else {
            bench
                .queue
                .complete(&request, sent, Err(Error::Closed), bench.tick());
        }
        assert!(caller.outcome().is_none());
        bench.granted(&again, 1, Duration::ZERO);
        assert_eq!(caller.permits(), Some(1));
    }
}

/// The first caller is never polled. However many callers have left between it and another one, that one sends the
/// request soon after it is due.
#[test]
fn callers_that_have_left_delay_no_substitute() {
    let mut bench = Bench::new();
    let _first = bench.enter(1, Until::Granted);
    for _ in 0..10_000 {
        let caller = bench.enter(1, Until::Granted);
        bench.leave(&caller, None);
    }
    let next = bench.enter(1, Until::Granted);
    assert_eq!(bench.wait(&next), Some(200));
    let behind = bench.enter(1, Until::Granted);
    assert_eq!(bench.wait(&behind), Some(210));
    bench.now = bench.start + Duration::from_millis(210);
    let request = bench.ask(&next);
    // If the answer is late, a substitute finds that out too.
    let late = Duration::from_millis(210) + LIMIT + Duration::from_millis(210);
    assert_eq!(bench.wait(&next), Some(late.as_millis()));
    bench.granted(&request, 0, SECOND);
    // A second later the limiter has permits again. The first caller sends no request then.
    let due = bench.wait(&next).unwrap();
    bench.now = bench.start + Duration::from_millis(due.try_into().unwrap());
    let _request = bench.ask(&next);
}

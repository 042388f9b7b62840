//! Tests of the queue without a store, at times that the tests choose.

use std::time::Duration;

use tokio::{
    sync::oneshot::{self, Receiver},
    time::Instant,
};

use super::{PermitCaller, PermitOutcome, PermitQueue, Step};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Cause, Error, Key, PermitsLeft, Quota},
};

const SECOND: Duration = Duration::from_secs(1);
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What an answer says of ten permits, none of which is left. All are back a second after the next one.
fn left(retry_in: Duration) -> PermitsLeft {
    PermitsLeft {
        limit: 10,
        remaining: 0,
        reset_in: retry_in + SECOND,
    }
}

struct Bench {
    queue: PermitQueue,
    start: Instant,
    now: Instant,
}

/// How long a caller waits: not at all, until there are permits, or until this many milliseconds from the start.
#[derive(Clone, Copy)]
enum Until {
    Answered,
    Granted,
    Millis(u64),
}

/// A caller in the queue. Dropping it is leaving.
struct Caller(Receiver<PermitOutcome>);

impl Caller {
    fn outcome(&mut self) -> Option<PermitOutcome> {
        self.0.try_recv().ok()
    }

    fn permits(&mut self) -> Option<u32> {
        Some(self.outcome()?.unwrap().permits)
    }

    fn is_refused(&mut self) -> bool {
        matches!(self.outcome(), Some(Err(Error::LimitReached { .. })))
    }

    fn error(&mut self) -> Option<Error> {
        match self.outcome()?.unwrap_err() {
            full @ Error::LimitReached { .. } => panic!("{full:?}"),
            error => Some(error),
        }
    }
}

impl Bench {
    /// A queue for a limiter of ten permits a second.
    fn new() -> Self {
        let start = Instant::now();
        let (key, quota) = (Key::new("k").unwrap(), Quota::fixed(10, SECOND).unwrap());
        Self {
            queue: PermitQueue::new(key, quota, CALL_TIMEOUT),
            start,
            now: start,
        }
    }

    fn enter(&mut self, permits: u32, until: Until) -> Caller {
        let (reply, outcome) = oneshot::channel();
        let end = match until {
            Until::Answered => Some(self.now),
            Until::Granted => None,
            Until::Millis(millis) => Some(self.start + Duration::from_millis(millis)),
        };
        let caller = PermitCaller {
            permits,
            since: self.now,
            end,
            reply,
        };
        self.queue.enter(caller, self.now);
        Caller(outcome)
    }

    fn waiting<const N: usize>(&mut self, permits: u32) -> [Caller; N] {
        [(); N].map(|()| self.enter(permits, Until::Granted))
    }

    /// Whether a caller is refused at once, without a request. Otherwise it leaves.
    fn is_known(&mut self, permits: u32, until: Until) -> bool {
        self.enter(permits, until).is_refused()
    }

    /// The request that is sent now.
    fn send(&mut self) -> PermitRequest {
        match self.queue.step(self.now) {
            Step::Send(request) => request,
            other => panic!("{other:?}"),
        }
    }

    /// The next step, in milliseconds from the start.
    fn wait(&mut self) -> Option<u128> {
        match self.queue.step(self.now) {
            Step::Wait(until) => until.map(|until| (until - self.start).as_millis()),
            other => panic!("{other:?}"),
        }
    }

    /// Completes the request that got no answer in time.
    fn give_up(&mut self) {
        let Step::GiveUp(request, sent) = self.queue.step(self.now) else {
            panic!("the answer is still waited for");
        };
        let error = Error::TimedOut {
            store: "the test".to_owned(),
            operation: "permit",
            limit: LIMIT,
        };
        self.complete(&request, sent, Err(error));
    }

    fn sleep_until_the_next_step(&mut self) {
        let at = self.wait().expect("a caller waits");
        self.now = self.start + Duration::from_millis(at.try_into().unwrap());
    }

    fn granted(&mut self, request: &PermitRequest, permits: u32, retry_in: Duration) {
        let granted_at = "2026-01-01T00:00:00Z".parse().unwrap();
        let answer = PermitAnswer::Granted {
            permits,
            granted_at,
            retry_in,
            left: left(retry_in),
        };
        self.complete(request, self.now, Ok(answer));
    }

    fn full(&mut self, request: &PermitRequest, sent: Instant, retry_in: Duration) {
        let left = left(retry_in);
        self.complete(request, sent, Ok(PermitAnswer::Full { retry_in, left }));
    }

    fn fail(&mut self, request: &PermitRequest) {
        let error = Error::Interrupted {
            store: "the test",
            source: Cause::text("cut"),
        };
        self.complete(request, self.now, Err(error));
    }

    fn complete(
        &mut self,
        request: &PermitRequest,
        sent: Instant,
        outcome: Result<PermitAnswer, Error>,
    ) {
        self.queue
            .complete((request.clone(), sent, outcome), self.now, 1.0);
    }
}

#[test]
fn a_request_is_for_all_at_the_front_who_want_as_many() {
    let mut bench = Bench::new();
    let mut callers = bench.waiting::<4>(2);
    let [mut other] = bench.waiting(1);
    let request = bench.send();
    assert_eq!((request.permits, request.times), (2, 4));
    assert_eq!(bench.wait(), Some(LIMIT.as_millis()), "one at a time");
    bench.granted(&request, 6, SECOND / 2);
    let granted = callers.each_mut().map(Caller::permits);
    assert_eq!(granted, [Some(2), Some(2), Some(2), None]);
    // The next request is sent a twentieth of the window later than the server says.
    assert_eq!(bench.wait(), Some(550));
    assert!(other.outcome().is_none());
    bench.sleep_until_the_next_step();
    assert_eq!(bench.send().times, 1);
}

#[test]
fn no_request_is_for_more_than_there_can_be() {
    let mut bench = Bench::new();
    let _callers = bench.waiting::<100>(3);
    assert_eq!(bench.send().times, 3);
}

#[test]
fn what_those_who_left_do_not_take_is_for_the_next() {
    let mut bench = Bench::new();
    let [first, second] = bench.waiting(2);
    let [mut third] = bench.waiting(1);
    let request = bench.send();
    drop((first, second));
    bench.granted(&request, 4, Duration::ZERO);
    assert_eq!(third.permits(), Some(1));
    assert_eq!(bench.wait(), None, "nobody is left");
}

/// Permits that are given back may be what the first caller waits for, so it asks again at once.
#[test]
fn callers_ask_again_when_permits_are_given_back() {
    let mut bench = Bench::new();
    let [mut waiting] = bench.waiting(1);
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    assert_eq!(bench.wait(), Some(1_050));
    bench.queue.given_back();
    let request = bench.send();
    // These were given back before the request was sent or after it was carried out: nobody knows.
    bench.queue.given_back();
    let mut other = bench.enter(1, Until::Millis(500));
    let mut once = bench.enter(1, Until::Answered);
    bench.full(&request, bench.now, SECOND);
    assert!(once.is_refused(), "it asks once");
    assert!(waiting.outcome().is_none() && other.outcome().is_none());
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    assert!(other.is_refused() && waiting.outcome().is_none());
    assert_eq!(bench.wait(), Some(1_050));
}

/// One request is for several callers, so its answer has what is left after the last of them.
#[test]
fn each_is_told_what_is_left_after_its_own_permits() {
    let remaining = |caller: &mut Caller| caller.outcome().unwrap().unwrap().left.remaining;
    let mut bench = Bench::new();
    let mut callers = bench.waiting::<3>(2);
    let request = bench.send();
    assert_eq!(request.times, 3);
    bench.granted(&request, 6, SECOND);
    assert_eq!(callers.each_mut().map(remaining), [4, 2, 0]);
    // Those that nobody takes are lost, so they are not left.
    let [mut first, second, third] = bench.waiting(1);
    bench.now += SECOND * 2;
    let request = bench.send();
    drop((second, third));
    bench.granted(&request, 3, SECOND);
    assert_eq!(remaining(&mut first), 0);
}

#[test]
fn an_answer_is_handed_out_once() {
    let mut bench = Bench::new();
    let [mut first] = bench.waiting(1);
    let request = bench.send();
    // The request is given up and sent again, and the answers to both come.
    bench.sleep_until_the_next_step();
    bench.give_up();
    bench.sleep_until_the_next_step();
    assert_eq!(bench.send().id, request.id);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(first.permits(), Some(1));
    let [mut second] = bench.waiting(1);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(second.permits(), None);
    assert_ne!(bench.send().id, request.id);
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(second.permits(), None);
}

#[test]
fn an_answer_that_comes_after_all_is_taken() {
    let mut bench = Bench::new();
    let [mut caller] = bench.waiting(1);
    let request = bench.send();
    bench.now += LIMIT;
    bench.give_up();
    bench.granted(&request, 1, Duration::ZERO);
    assert_eq!(caller.permits(), Some(1));
}

#[test]
fn who_does_not_wait_is_told_without_a_request_while_it_is_certain() {
    let mut bench = Bench::new();
    let mut caller = bench.enter(3, Until::Answered);
    let (sent, request) = (bench.now, bench.send());
    bench.now += SECOND / 10;
    bench.full(&request, sent, SECOND);
    assert!(caller.is_refused());
    bench.now = sent + Duration::from_millis(999);
    assert!(bench.is_known(3, Until::Answered) && bench.is_known(4, Until::Answered));
    assert!(
        !bench.is_known(2, Until::Answered),
        "there may be room for two"
    );
    bench.now += Duration::from_millis(1);
    assert!(
        !bench.is_known(3, Until::Answered),
        "the window may have turned"
    );
}

#[test]
fn who_does_not_wait_takes_nothing_from_those_who_do() {
    let mut bench = Bench::new();
    let [waiting] = bench.waiting(3);
    let mut behind = bench.enter(1, Until::Answered);
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    assert!(behind.is_refused());
    assert!(bench.is_known(1, Until::Answered));
    // If no caller waits for the next window, a request for one permit is sent, because one permit may be available.
    drop(waiting);
    assert!(!bench.is_known(1, Until::Answered));
}

#[test]
fn a_refusal_of_many_says_nothing_about_one() {
    let mut bench = Bench::new();
    let mut many = bench.enter(5, Until::Answered);
    let mut one = bench.enter(1, Until::Answered);
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    assert!(many.is_refused());
    assert!(one.outcome().is_none());
    let request = bench.send();
    assert_eq!((request.permits, request.times), (1, 1));
}

#[test]
fn a_wait_that_is_in_vain_ends_at_once() {
    let mut bench = Bench::new();
    let mut short = bench.enter(1, Until::Millis(999));
    let mut long = bench.enter(1, Until::Millis(1_000));
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    assert!(short.is_refused() && long.outcome().is_none());
    assert!(bench.is_known(1, Until::Millis(999)) && !bench.is_known(1, Until::Millis(1_000)));
}

#[test]
fn errors_are_retried_under_one_id_and_told_in_the_end() {
    let mut bench = Bench::new();
    let mut once = bench.enter(1, Until::Answered);
    let [mut waiting] = bench.waiting(1);
    let first = bench.send();
    bench.fail(&first);
    assert!(bench.wait() > Some(0), "a pause");
    let mut failures = 1;
    while bench.now - bench.start < CALL_TIMEOUT {
        assert!(waiting.outcome().is_none());
        bench.now += SECOND;
        let again = bench.send();
        assert_eq!(again.id, first.id);
        bench.fail(&again);
        failures += 1;
        assert_eq!(once.error().is_some(), failures == 3, "after {failures}");
    }
    // The first failure was a second before the others, so the limit is over a second later.
    assert!(waiting.error().is_some());
    // The errors are forgotten when all callers have left.
    let mut next = bench.enter(1, Until::Answered);
    let another = bench.send();
    assert_ne!(another.id, first.id);
    bench.fail(&another);
    assert!(next.outcome().is_none());
}

#[test]
fn an_error_that_no_retry_mends_is_told_to_all() {
    let mut bench = Bench::new();
    let callers = bench.waiting::<3>(1);
    let request = bench.send();
    bench.complete(&request, bench.now, Err(Error::Closed));
    assert!(callers.map(|mut it| it.error().is_some()) == [true; 3]);
}

/// Here the jitter alone would send the next request after the end of the wait.
#[test]
fn a_wait_that_ends_just_past_the_turn_gets_a_request_at_its_end() {
    for is_late in [true, false] {
        let mut bench = Bench::new();
        let [_first] = bench.waiting(1);
        let early = (!is_late).then(|| bench.enter(1, Until::Millis(1_010)));
        let request = bench.send();
        bench.full(&request, bench.now, SECOND);
        assert_eq!(bench.wait(), Some(if is_late { 1_050 } else { 1_010 }));
        let mut second = early.unwrap_or_else(|| bench.enter(1, Until::Millis(1_010)));
        bench.sleep_until_the_next_step();
        assert_eq!(bench.now - bench.start, Duration::from_millis(1_010));
        let request = bench.send();
        assert_eq!(request.times, 2);
        bench.granted(&request, 2, SECOND);
        assert_eq!(second.permits(), Some(1));
    }
}

/// An answer that took a long time does not delay the request for the next window.
#[test]
fn the_turn_counts_from_the_sending() {
    let mut bench = Bench::new();
    let _callers = bench.waiting::<1>(1);
    let (sent, request) = (bench.now, bench.send());
    bench.now += SECOND / 2;
    bench.full(&request, sent, SECOND);
    assert_eq!(bench.wait(), Some(1_050));
    // The time is never in the past.
    bench.now += SECOND;
    let (sent, request) = (bench.now, bench.send());
    bench.now += SECOND;
    bench.full(&request, sent, SECOND / 100);
    assert_eq!(bench.wait(), Some(2_501));
}

#[test]
fn what_is_left_ages_with_the_answer_that_said_it() {
    let mut bench = Bench::new();
    let [mut first] = bench.waiting(1);
    let request = bench.send();
    bench.granted(&request, 1, 2 * SECOND);
    let granted = first.outcome().unwrap().unwrap();
    assert_eq!(granted.left, left(2 * SECOND));
    bench.now += SECOND / 2;
    let refused = bench.enter(1, Until::Answered).outcome();
    let Some(Err(Error::LimitReached {
        retry_in,
        left: then,
        ..
    })) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(retry_in, 3 * SECOND / 2);
    assert_eq!(then, left(retry_in));
}

#[test]
fn a_long_window_is_looked_at_from_time_to_time() {
    let mut bench = Bench::new();
    let [caller] = bench.waiting(1);
    let request = bench.send();
    bench.full(&request, bench.now, 10_000 * SECOND);
    assert_eq!(bench.wait(), Some(600_000));
    drop(caller);
    let known = bench.enter(1, Until::Answered).outcome();
    assert!(matches!(
        known,
        Some(Err(Error::LimitReached { retry_in, .. })) if retry_in == 10_000 * SECOND
    ));
    bench.now += 600 * SECOND;
    assert!(!bench.is_known(1, Until::Answered));
}

#[test]
fn those_who_left_are_not_asked_for_again() {
    let mut bench = Bench::new();
    let [left @ .., _last] = bench.waiting::<5>(1);
    let first = bench.send();
    assert_eq!(first.times, 5);
    drop(left);
    bench.fail(&first);
    bench.now += SECOND;
    let again = bench.send();
    assert_eq!((again.id, again.times), (first.id, 1));
}

/// The answer to the request may still come, with a permit.
#[test]
fn a_wait_that_is_over_waits_for_the_answer_that_is_on_its_way() {
    let mut bench = Bench::new();
    bench.now += SECOND;
    let end = Until::Millis(500);
    let (mut caller, mut behind) = (bench.enter(2, end), bench.enter(1, end));
    let request = bench.send();
    let mut late = bench.enter(1, end);
    assert_eq!(bench.wait(), Some(6_000), "until the request is given up");
    assert!(
        [&mut caller, &mut behind, &mut late]
            .map(Caller::outcome)
            .iter()
            .all(Option::is_none)
    );
    bench.granted(&request, 2, SECOND / 2);
    assert_eq!(caller.permits(), Some(2));
    // These callers get the answer too, although they wanted fewer permits than the request.
    assert!(behind.is_refused() && late.is_refused());
}

/// While no answer is waited for, a caller whose time is over is told the last one, or the last error.
#[test]
fn a_wait_that_is_over_between_two_requests_ends() {
    for fails in [true, false] {
        let mut bench = Bench::new();
        let [mut first] = bench.waiting(2);
        let mut caller = bench.enter(1, Until::Millis(5));
        let request = bench.send();
        if fails {
            bench.fail(&request);
        } else {
            bench.full(&request, bench.now, SECOND);
        }
        assert_eq!(bench.wait(), Some(5));
        bench.sleep_until_the_next_step();
        assert!(bench.wait() > Some(5));
        match caller.outcome().expect("no request is under way") {
            Err(Error::LimitReached { waited, .. }) => {
                assert!(!fails && waited == Duration::from_millis(5));
            }
            Err(Error::Interrupted { .. }) => assert!(fails),
            outcome => panic!("{outcome:?}"),
        }
        assert!(first.outcome().is_none());
    }
}

/// The request was given up, and its repeat under the same id may be granted after all, also if that was given up too.
#[test]
fn a_late_refusal_or_error_does_not_end_the_repeat() {
    for (is_full, is_given_up) in [(false, false), (true, false), (true, true)] {
        let mut bench = Bench::new();
        let [mut caller] = bench.waiting(1);
        let (sent, request) = (bench.now, bench.send());
        bench.now += LIMIT;
        bench.give_up();
        bench.sleep_until_the_next_step();
        let again = bench.send();
        if is_given_up {
            bench.now += LIMIT;
            bench.give_up();
        }
        if is_full {
            bench.full(&request, sent, SECOND);
        } else {
            bench.complete(&request, sent, Err(Error::Closed));
        }
        assert!(caller.outcome().is_none());
        bench.granted(&again, 1, Duration::ZERO);
        assert_eq!(caller.permits(), Some(1));
    }
}

/// The task sleeps while the limiter is full. Who comes and goes behind the first caller does not change when it wakes.
#[test]
fn only_the_first_caller_changes_what_is_asked_for_next() {
    let mut bench = Bench::new();
    let [first] = bench.waiting(2);
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    let [behind, other] = bench.waiting(2);
    drop(behind);
    let [one] = bench.waiting(1);
    assert_eq!(bench.wait(), Some(1_050));
    drop(first);
    assert_eq!(bench.wait(), Some(1_050));
    drop(other);
    assert_eq!(bench.send().permits, 1, "there may be one permit");
    drop(one);
    assert_eq!(bench.wait(), None, "it has no caller");
}

#[test]
fn those_who_left_do_not_pile_up() {
    let mut bench = Bench::new();
    let [_first] = bench.waiting(1);
    let request = bench.send();
    bench.full(&request, bench.now, SECOND);
    (0..1_000).for_each(|_| drop(bench.enter(1, Until::Granted)));
    assert!(bench.queue.callers.len() < 10);
}

//! When the first waiter sends its next request: after another one has left, or if it comes before all that wait.

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A refusal of a key that has been held for long, behind many processes.
fn far_behind(mode: Mode) -> Held {
    let holder = held(LeaseId::random()).holders()[0].clone();
    let since = holder.acquired_at - LONG;
    let mut holder = Holder::exclusive(
        holder.lease,
        holder.owner,
        holder.fence,
        since,
        holder.expires_at,
    );
    holder.mode = mode;
    Held::new(Key::new("key").unwrap(), vec![holder], now()).behind(MAX_PLACES, Duration::ZERO)
}

/// The owner of the waiter has the key already.
#[test]
fn who_comes_before_all_is_not_paced_by_those_who_wait() {
    let due = |standing| {
        let mut waiting = Waiting::of(1);
        let (start, first) = (waiting.start, waiting.turns[0].clone());
        waiting.ask(start);
        let refused = far_behind(Mode::Shared);
        // The lease that the owner has was granted to this process.
        waiting.queue.own_leases.push(refused.holders()[0].lease);
        waiting
            .queue
            .refused(&first, refused, standing, false, start);
        let due = waiting.due() - start;
        waiting.queue.freed(None);
        (due, waiting.step(0, start) == Step::Ask)
    };
    let (pause, is_woken) = due(Standing::InTurn);
    assert!(pause > retry::LONGEST_PAUSE * 4 && !is_woken, "{pause:?}");
    let (pause, is_woken) = due(Standing::BeforeAll);
    assert!(pause <= retry::LONGEST_PAUSE && is_woken, "{pause:?}");
}

/// The first in turn is alone. Others that compete for the key could ask at the same moments as it.
#[test]
fn the_first_in_turn_asks_no_more_than_once_a_second_behind_a_long_job() {
    let pauses = |standing, reports_freed| {
        let mut waiting = Waiting::of(1);
        let (mut now, first) = (waiting.start, waiting.turns[0].clone());
        let refused = held(LeaseId::random());
        let mut pauses = Vec::new();
        for _ in 0..30 {
            waiting.ask(now);
            waiting
                .queue
                .refused(&first, refused.clone(), standing, reports_freed, now);
            let due = waiting.due();
            pauses.push(due - now);
            now = due;
        }
        pauses.split_off(10)
    };
    for reports_freed in [false, true] {
        let first = pauses(Standing::InTurn, reports_freed);
        assert_eq!(first, [retry::LONGEST_PAUSE; 20]);
        let beside = pauses(Standing::Outside, reports_freed);
        assert!(beside.iter().any(|pause| *pause < retry::LONGEST_PAUSE));
    }
}

/// A writer was refused because of readers, and a reader can read beside them. A barging one does not wait for others.
#[test]
fn who_may_be_granted_the_key_does_not_wait_for_the_pause_of_one_that_has_left() {
    for (kinds, mode, asks) in [
        ([Exclusive, Shared], Mode::Shared, true),
        ([Exclusive, Shared], Mode::Exclusive, false),
        ([Shared, Shared], Mode::Shared, false),
        ([Shared, Exclusive], Mode::Shared, false),
        ([Exclusive, Exclusive], Mode::Shared, false),
        ([Exclusive, Barging], Mode::Exclusive, true),
        ([Permits, Permits], Mode::Permits, false),
        ([Exclusive, Permits], Mode::Permits, true),
        ([Exclusive, Permits], Mode::Exclusive, false),
    ] {
        let mut waiting = Waiting::of_kinds(&kinds);
        let (start, first) = (waiting.start, waiting.turns[0].clone());
        waiting.ask(start);
        let refused = far_behind(mode);
        let standing = Standing::InTurn;
        waiting
            .queue
            .refused(&first, refused, standing, false, start);
        waiting.queue.remove(&first, start);
        let step = waiting.step(1, start);
        assert_eq!(step == Step::Ask, asks, "{kinds:?} {mode:?}");
    }
}

/// The lease of this process holds the key, and its release wakes the waiter.
#[test]
fn a_waiter_of_another_kind_waits_after_an_exclusive_grant() {
    let mut waiting = Waiting::of_kinds(&[Exclusive, Shared]);
    let (start, first) = (waiting.start, waiting.turns[0].clone());
    waiting.ask(start);
    let grant = granted(LeaseId::random(), Mode::Exclusive);
    waiting.queue.granted(&first, grant, start);
    waiting.queue.remove(&first, start);
    assert_ne!(waiting.step(1, start), Step::Ask);
}

/// The lease is not released by this process, so the store reports its end.
#[test]
fn what_the_store_tells_counts_after_a_lease_of_the_queue_was_detached() {
    let mut waiting = Waiting::of(2);
    let (start, lease, first) = (waiting.start, LeaseId::random(), waiting.turns[0].clone());
    waiting.ask(start);
    waiting
        .queue
        .granted(&first, granted(lease, Mode::Exclusive), start);
    waiting.queue.remove(&first, start);
    waiting.queue.freed(None);
    assert_ne!(waiting.step(1, start), Step::Ask);
    waiting.queue.detached(lease);
    assert_eq!(waiting.step(1, start), Step::Ask, "it looks who ends it");
    let second = waiting.turns[1].clone();
    waiting.queue.ask(&second, start);
    let refused = held(lease);
    waiting
        .queue
        .refused(&second, refused, Standing::InTurn, true, start);
    assert_ne!(waiting.step(1, start), Step::Ask, "it is held");
    waiting.queue.freed(None);
    assert_eq!(waiting.step(1, start), Step::Ask);
}

/// The caller of the first waiter has gone, and its operation is not polled any more.
#[test]
fn an_abandoned_waiter_is_behind_all_others() {
    let mut waiting = Waiting::of(3);
    let (start, lease) = (waiting.start, LeaseId::random());
    // In these tests all have the same operation.
    let abandon_first = |waiting: &mut Waiting| waiting.queue.abandon(&Weak::new(), start);
    let [first, second, third] = [0, 1, 2].map(|number| waiting.turns[number].clone());
    waiting.ask(start);
    abandon_first(&mut waiting);
    assert!(!waiting.queue.is_first(&first) && waiting.queue.is_first(&second));
    // The answer to its request is not reported, so the next one sends its own at once.
    let step = |waiting: &Waiting, wake| waiting.queue.step(wake, None, None, start);
    assert_eq!(step(&waiting, &second), Step::Ask);
    // Its operation runs on another thread, and has just decided to send a request.
    assert!(waiting.queue.ask(&first, start).is_none());
    assert_eq!(
        step(&waiting, &second),
        Step::Ask,
        "that request is not its own"
    );
    // An offer is for the next one.
    let (mut outcome, _) = waiting
        .queue
        .offer(lease, HandoffStreak::default())
        .unwrap();
    abandon_first(&mut waiting);
    assert!(waiting.queue.is_first(&third));
    assert!(
        (&mut outcome).now_or_never().is_none(),
        "it is offered still"
    );
    // No waiter is left to take the offer.
    abandon_first(&mut waiting);
    assert!(!waiting.queue.has_waiters() && !waiting.queue.is_empty());
    let told = outcome.now_or_never().unwrap();
    assert_eq!(told.unwrap(), HandoffOutcome::NotHandedOver);
    assert!(
        waiting
            .queue
            .offer(lease, HandoffStreak::default())
            .is_none()
    );
    // Who comes now is the first, and those that have gone leave when they are polled.
    let wake = Arc::new(Notify::new());
    waiting
        .queue
        .push(wake.clone(), Exclusive, start, Weak::new());
    assert!(waiting.queue.is_first(&wake));
    assert_eq!(step(&waiting, &wake), Step::Ask);
    for gone in [first, second, third] {
        waiting.queue.remove(&gone, start);
        assert!(waiting.queue.is_first(&wake));
    }
}

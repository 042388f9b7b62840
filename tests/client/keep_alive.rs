//! Leases that are renewed in the background.

use std::time::Duration;

use leasehold::{Attempt, Error, Lease, Leases, LossReason};
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep},
};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL, is_free, setup};

#[tokio::test(start_paused = true)]
async fn a_kept_lease_is_renewed_at_a_third_of_its_ttl() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    sleep(TTL / 3 - MOMENT).await;
    assert_eq!(store.calls(), ["acquire"]);
    sleep(MOMENT * 2).await;
    assert_eq!(store.calls(), ["renew"]);
    assert!(lease.remaining() > TTL - MARGIN - MOMENT * 2);
    sleep(TTL * 100).await;
    assert!(lease.is_live());
    assert_eq!(store.calls().len(), 300);
    lease.release().await.unwrap();
    sleep(TTL).await;
    assert_eq!(store.calls(), ["release"], "and nothing after it");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_keeps_its_lease_alive_too() {
    let (_, leases) = setup();
    let attempt = leases.try_acquire("key", TTL).keep_alive().await.unwrap();
    let Attempt::Acquired(lease) = attempt else {
        panic!("the key is held");
    };
    sleep(TTL * 10).await;
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_asked_to_keep_is_not_renewed() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL).await;
    assert!(!lease.is_live());
    assert_eq!(store.calls(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn renewals_end_with_the_guard_however_it_ends() {
    let ways: [fn(leasehold::Lease); 3] = [
        drop,
        |lease| lease.detach().unwrap(),
        |lease| drop(lease.release()),
    ];
    for end in ways {
        let (store, leases) = setup();
        end(leases.acquire("key", TTL).keep_alive().await.unwrap());
        sleep(TTL * 10).await;
        assert!(!store.calls().contains(&"renew"));
        assert!(is_free(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_cost_ten_calls_a_period() {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..10_000 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
        // The leases are acquired at different moments, spread over half a period.
        if number % 10 == 0 {
            sleep(TTL / 6 / 1_000).await;
        }
    }
    // In the first period the renewals fall into step.
    sleep(TTL / 2).await;
    store.calls();
    let periods = 10;
    sleep(TTL / 3 * periods).await;
    let calls = store.calls().len();
    // The batches drift apart, which adds up to an eighth of the calls.
    assert!(calls <= 10 * periods as usize * 9 / 8, "{calls} calls");
    assert!(kept.iter().all(|lease| lease.is_live()));
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_until_a_renewal_succeeds() {
    for fate in [Fate::NotSent, Fate::AnswerLost, Fate::Denied, Fate::Panic] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        store.next([fate; 4]);
        sleep(TTL * 5).await;
        assert!(lease.is_live(), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_sent_again() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::Late(TTL * 10), Fate::Late(TTL * 10)]);
    sleep(TTL * 5).await;
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_answered_late_counts() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    // The renewal is sent after a third of the ttl, carried out, and answered just before the deadline. The later ones
    // never arrive.
    let late = TTL * 2 / 3 - MARGIN - MOMENT;
    store.next([Fate::AnswerLate(late)]);
    store.next([Fate::Late(TTL * 100); 100]);
    sleep(TTL - MARGIN).await;
    assert!(lease.is_live());
    assert_eq!(lease.deadline(), start + TTL / 3 + TTL - MARGIN);
}

/// The renewal of this lease hangs in the server, and with it every batch that has the lease in it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_hangs_does_not_take_others_along() {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..500 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
    }
    store.hang_on("key 250");
    sleep(TTL * 5).await;
    let lost: Vec<_> = kept.iter().filter(|lease| !lease.is_live()).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].key().as_str(), "key 250");
    let reason = lost[0].lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_refused_does_not_take_others_along() {
    let (store, leases) = setup();
    let evicted = leases.acquire("evicted", TTL).keep_alive().await.unwrap();
    let kept = leases.acquire("kept", TTL).keep_alive().await.unwrap();
    leases.evict("evicted").await.unwrap();
    sleep(TTL * 2).await;
    assert!(!evicted.is_live() && kept.is_live());
    // The lost lease is not renewed any more: there is one call a period, for the other one.
    store.calls();
    drop(kept);
    sleep(TTL * 2).await;
    assert_eq!(store.calls(), ["release"]);
}

/// The ttl of a lease on a runtime with the clock of the machine. Nothing there waits for so long.
const LONG: Duration = Duration::from_secs(60 * 60);

/// A runtime with threads, as most are. It ends before anything is due on it.
fn ending() -> Runtime {
    Runtime::new().unwrap()
}

/// Waits until the renewal task runs on this runtime: nothing else carries out releases in the background. On a runtime
/// with threads the task is started by another thread, which a busy machine may let wait.
fn renewals_run_on(runtime: &Runtime, store: &FlakyStore, leases: &Leases) {
    runtime.block_on(async {
        drop(leases.acquire("other", LONG).await.unwrap());
        while !store.calls().contains(&"release") {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A runtime with a paused clock, so that a renewal is in time however slow the machine is.
fn living() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.enable_all().start_paused(true).build().unwrap()
}

async fn kept(leases: &Leases, key: &str) -> Lease {
    leases.acquire(key, LONG).keep_alive().await.unwrap()
}

/// No runtime is left on which the lease could be renewed. The reason of the loss says so.
#[test]
fn without_a_runtime_a_kept_lease_is_lost_at_its_deadline() {
    let (store, leases) = setup();
    let first = ending();
    renewals_run_on(&first, &store, &leases);
    is_lost_at_its_deadline_without(first, leases);
}

/// The same when the renewal task has not even learnt of the lease, because nothing drives its runtime.
#[test]
fn without_a_runtime_a_lease_that_was_just_kept_is_lost_at_its_deadline() {
    is_lost_at_its_deadline_without(living(), Leases::new(FlakyStore::new()));
}

fn is_lost_at_its_deadline_without(first: Runtime, leases: Leases) {
    let second = living();
    let lease = first.block_on(kept(&leases, "key"));
    let token = lease.cancellation_token();
    drop(first);
    second.block_on(async {
        assert!(token.is_cancelled(), "nobody would cancel it any more");
        let reason = lease.lost().await;
        assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
        let cause = format!("{reason:?}");
        assert!(cause.contains("its runtime ended"), "{cause}");
        assert!(Instant::now() >= lease.deadline(), "it was lost too soon");
        // The next acquire runs on a new runtime, so renewals go on there.
        sleep(MARGIN).await;
        let next = kept(&leases, "key").await;
        outlives_its_ttl(&next).await;
        next.renew().await.unwrap();
        let late = lease.release().await;
        assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    });
}

/// Checks that the lease is still live after its ttl.
async fn outlives_its_ttl(lease: &Lease) {
    tokio::select! {
        reason = lease.lost() => panic!("{} was lost: {reason:?}", lease.key()),
        () = sleep(LONG * 3 / 2) => assert!(lease.is_live()),
    }
}

/// The handle was first used on a runtime that ends, as that of a test does. Leases of other runtimes are kept alive.
#[test]
fn a_lease_of_a_runtime_that_lives_is_kept_when_that_of_the_first_acquire_ends() {
    goes_on_after(drop);
}

/// The same if the runtime ends by a panic of what it runs, as that of a failing test does.
#[test]
fn a_lease_of_a_runtime_that_lives_is_kept_when_that_of_the_first_acquire_panics() {
    goes_on_after(|first| {
        let ends = std::thread::spawn(move || {
            let _first = first;
            panic!("the work went wrong");
        });
        assert!(ends.join().is_err());
    });
}

fn goes_on_after(end: impl FnOnce(Runtime)) {
    let leases = Leases::new(FlakyStore::new());
    let (first, second) = (living(), living());
    let early = first.block_on(kept(&leases, "early"));
    let lease = second.block_on(kept(&leases, "key"));
    let token = second.block_on(async { lease.cancellation_token() });
    end(first);
    second.block_on(async {
        outlives_its_ttl(&lease).await;
        outlives_its_ttl(&early).await;
        assert!(!token.is_cancelled());
        lease.release().await.unwrap();
        token.cancelled().await;
        // Background releases go on too.
        drop(early);
        let again = leases.acquire("early", TTL).await.unwrap();
        again.release().await.unwrap();
    });
}

/// Counts the renewals of 2,000 leases while the store cannot be reached for a whole ttl.
async fn renewals_in_an_outage(fate: Fate) -> usize {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..2_000 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
    }
    store.calls();
    store.next(std::iter::repeat_n(fate, 100_000));
    sleep(TTL).await;
    store
        .calls()
        .iter()
        .filter(|&&call| call == "renew")
        .count()
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_no_reason_for_a_storm_of_renewals() {
    for fate in [Fate::NotSent, Fate::Late(TTL * 10)] {
        let renewals = renewals_in_an_outage(fate).await;
        assert!(renewals < 200, "{fate:?}: {renewals}");
    }
}

/// A late request is granted the lease id anew, after another holder had the key. The guard stands for the earlier
/// grant, so its lease is lost.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_later_grant_is_a_loss() {
    let (store, leases) = setup();
    let ttl = LIMIT * 50;
    store.next([Fate::Late(LIMIT * 2)]);
    let lease = leases.acquire("key", ttl).await.unwrap();
    let other = Leases::new(store.memory.clone());
    other.evict("key").await.unwrap();
    let between = other.acquire("key", ttl).await.unwrap();
    assert!(between.fence() > lease.fence());
    between.release().await.unwrap();
    sleep(LIMIT * 2).await;
    assert!(!is_free(&store).await, "the control");
    let error = lease.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

/// A waiter lives longer than the runtime of the renewal task.
#[test]
fn a_lease_that_is_granted_after_the_end_of_the_renewal_tasks_runtime_is_kept() {
    let (store, leases) = setup();
    let (first, second) = (ending(), living());
    let other = Leases::new(store.memory.clone());
    let holder = second.block_on(async { other.acquire("key", LONG).await.unwrap() });
    renewals_run_on(&first, &store, &leases);
    let waiter = second.spawn(leases.acquire("key", LONG).keep_alive().into_future());
    second.block_on(async { sleep(MOMENT).await });
    drop(first);
    second.block_on(async {
        holder.release().await.unwrap();
        let lease = waiter.await.unwrap().unwrap();
        outlives_its_ttl(&lease).await;
    });
}

/// The pauses between the tries are random, so there are several outages.
#[tokio::test(start_paused = true)]
async fn a_lease_outlives_an_outage_of_three_fifths_of_its_ttl() {
    let (store, leases) = setup();
    for outage in 0..30 {
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        sleep(TTL / 3 - MOMENT).await;
        store.fates_now(vec![Fate::NotSent; 10_000]);
        sleep(TTL * 3 / 5).await;
        store.fates_now([]);
        sleep(TTL).await;
        assert!(lease.is_live(), "after {outage}");
        lease.release().await.unwrap();
    }
}

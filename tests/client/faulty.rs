//! `leasehold::testing`: the store fails as a test tells it, and in no other way.

use std::time::Duration;

use leasehold::{
    Attempt, Error, ErrorKind, Key, Lease, Leases, LossReason, MemoryStore, Store,
    jobs::Once,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, RenewAnswer, RenewRequest,
    },
    testing::{Failure, Faults, FaultyStore},
};
use tokio::time::{Instant, sleep, timeout};

use super::{LIMIT, PATIENCE, TTL};

/// The clock margin of the memory store.
const MARGIN: Duration = Duration::from_millis(1);

/// The handle of a process whose store has faults, the handle of another process, and the control
/// of the faults.
fn setup() -> (Leases, Leases, Faults) {
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let faults = store.faults();
    (Leases::new(store), Leases::new(memory), faults)
}

async fn acquired(leases: &Leases) -> Lease {
    match leases.try_acquire("key", TTL).await.unwrap() {
        Attempt::Acquired(lease) => lease,
        Attempt::Held(held) => panic!("held by {}", held.owner()),
    }
}

async fn is_free(leases: &Leases) -> bool {
    let state = leases.inspect("key").await.unwrap();
    state.is_none_or(|state| state.is_free())
}

#[tokio::test(start_paused = true)]
async fn the_next_acquires_are_refused_as_if_another_had_the_key() {
    let (leases, other, faults) = setup();
    faults.refuse_next(2);
    for _ in 0..2 {
        let Attempt::Held(held) = leases.try_acquire("key", TTL).await.unwrap() else {
            panic!("it is granted");
        };
        assert_eq!(held.owner(), Faults::OTHER_OWNER);
        assert_eq!(held.expires_in(), TTL);
        assert!(is_free(&other).await, "nothing is written");
    }
    acquired(&leases).await.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_acquires_are_refused_until_the_test_says_otherwise() {
    let (leases, _, faults) = setup();
    faults.refuse_all();
    let acquire = || leases.acquire("key", TTL).wait_for(TTL * 2);
    let error = acquire().await.unwrap_err();
    assert!(
        matches!(&error, Error::WaitTimedOut { held, .. } if held.owner() == Faults::OTHER_OWNER)
    );
    let job = leases.once("job", 1_u32).run(async |_| Ok::<_, Error>(()));
    assert!(matches!(job.await.unwrap(), Once::Running(_)));
    let all = leases.acquire_all(["a", "b"], TTL).wait_for(TTL).await;
    assert_eq!(all.unwrap_err().kind(), ErrorKind::Held);

    let waiter = async {
        sleep(TTL).await;
        faults.clear();
    };
    let (lease, ()) = tokio::join!(acquire(), waiter);
    lease.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_passed_on_is_refused_too() {
    let (leases, other, faults) = setup();
    let lease = acquired(&leases).await;
    faults.refuse_all();
    let waiter = leases.acquire("key", TTL).wait_for(TTL);
    let release = async {
        sleep(TTL / 3).await;
        lease.release().await
    };
    let (waited, released) = tokio::join!(waiter, release);
    released.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Held);
    assert!(is_free(&other).await);
}

/// A request whose answer was lost is retried. `refuse_all` must not refuse the retry, because no
/// store refuses a lease that it has granted.
#[tokio::test(start_paused = true)]
async fn what_was_granted_is_not_refused() {
    let (leases, _, faults) = setup();
    faults.acquires().fail_next(1, Failure::AnswerLost);
    faults.refuse_all();
    let refused = leases.try_acquire("other", TTL).await.unwrap();
    assert!(matches!(refused, Attempt::Held(_)), "it was not granted");

    faults.clear();
    faults.acquires().fail_next(1, Failure::AnswerLost);
    let acquire = leases.try_acquire("key", TTL).into_future();
    let refuse = async {
        // This is after the first request, and before the second.
        sleep(Duration::from_millis(1)).await;
        faults.refuse_all();
    };
    let (attempt, ()) = tokio::join!(acquire, refuse);
    assert!(matches!(attempt.unwrap(), Attempt::Acquired(_)));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_as_after_an_eviction() {
    let (leases, other, faults) = setup();
    let kept = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let beside = leases.acquire("beside", TTL).keep_alive().await.unwrap();
    faults.lose("key").unwrap();
    let start = Instant::now();
    assert!(matches!(kept.lost().await, LossReason::TakenOver));
    assert!(start.elapsed() <= TTL / 3, "with its next renewal");
    assert!(is_free(&other).await);
    let next = acquired(&leases).await;
    assert!(next.fence() > kept.fence());
    sleep(TTL * 3).await;
    assert!(beside.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_by_hand_is_told_by_its_renewal_or_its_release() {
    let (leases, _, faults) = setup();
    let lease = acquired(&leases).await;
    faults.lose("key").unwrap();
    assert!(lease.is_live(), "it is not told yet");
    let error = lease.renew().await.unwrap_err();
    assert!(matches!(
        error,
        Error::Lost {
            reason: LossReason::TakenOver,
            ..
        }
    ));

    let lease = acquired(&leases).await;
    faults.lose("key").unwrap();
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
}

/// The eviction is carried out before the next call of any kind, so a later lease is not lost.
#[tokio::test(start_paused = true)]
async fn only_those_are_lost_that_have_the_key() {
    let (leases, other, faults) = setup();
    let lost = acquired(&leases).await;
    faults.lose("key").unwrap();
    assert!(lost.renew().await.is_err());
    drop(lost);
    let next = acquired(&leases).await;
    next.renew().await.unwrap();
    next.release().await.unwrap();

    faults.lose("key").unwrap();
    faults.lose("never locked").unwrap();
    let lease = acquired(&leases).await;
    lease.renew().await.unwrap();
    assert!(other.inspect("never locked").await.unwrap().is_none());
    assert!(matches!(faults.lose(""), Err(Error::InvalidKey { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_carried_out_when_it_may_go_on() {
    let (leases, other, faults) = setup();
    faults.calls().hang();
    let acquire = tokio::spawn(leases.acquire("key", TTL).into_future());
    faults.calls().until_hanging().await;
    faults.acquires().until_hanging().await;
    assert!(is_free(&other).await, "it is not carried out");
    faults.clear();
    let lease = acquire.await.unwrap().unwrap();
    assert!(!is_free(&other).await);
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_hangs_for_too_long_is_without_an_answer() {
    let (leases, other, faults) = setup();
    faults.acquires().hang();
    let start = Instant::now();
    let error = leases
        .acquire("key", TTL)
        .wait_for(LIMIT)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(start.elapsed() >= LIMIT);
    // The grant that reached no caller is released.
    faults.clear();
    leases.close().await;
    assert!(is_free(&other).await);
}

/// The client never drops a request that it has sent. A test may use the store without a client.
#[tokio::test(start_paused = true)]
async fn what_hangs_and_is_dropped_is_not_carried_out() {
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let faults = store.faults();
    faults.calls().hang();
    let key = Key::new("key").unwrap();
    let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "owner".into(), TTL);
    let hangs = timeout(LIMIT, store.acquire(&request)).await;
    assert!(hangs.is_err());
    faults.clear();
    sleep(LIMIT).await;
    assert_eq!(memory.inspect(&key).await.unwrap(), None);
    let later = timeout(LIMIT, faults.calls().until_hanging()).await;
    assert!(later.is_err(), "nothing hangs any more");
}

#[tokio::test(start_paused = true)]
async fn what_hangs_fails_when_the_next_calls_fail() {
    let (leases, _, faults) = setup();
    faults.calls().hang();
    let inspect = async { leases.inspect("key").await };
    let fail = async {
        faults.calls().until_hanging().await;
        faults.calls().fail_all(Failure::Denied);
    };
    let (inspected, ()) = tokio::join!(inspect, fail);
    assert!(matches!(inspected, Err(Error::Denied { .. })));
}

/// A store that is overloaded has changed nothing, so the repeat of the release tells for certain that the lease is
/// lost.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_first_hides_no_loss() {
    let (leases, other, faults) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    other.evict("key").await.unwrap();
    faults.releases().fail_next(1, Failure::Overloaded);
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn renewals_hang_while_others_go_on() {
    let (leases, _, faults) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    faults.renewals().hang();
    let start = Instant::now();
    tokio::select! {
        () = faults.renewals().until_hanging() => {}
        _ = lease.lost() => panic!("it is lost before"),
    }
    let (other, granted) = (leases.try_acquire("other", TTL), Instant::now());
    assert!(matches!(other.await.unwrap(), Attempt::Acquired(_)));
    assert!(granted.elapsed() < LIMIT);
    // The loss comes by the local clock, and not by an answer.
    lease.lost().await;
    assert_eq!(start.elapsed(), TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn the_next_calls_fail_and_the_others_do_not() {
    let (leases, _, faults) = setup();
    faults.calls().fail_next(2, Failure::Unreachable);
    // The acquire sends three requests, of which the third is carried out.
    acquired(&leases).await.release().await.unwrap();
    faults.calls().fail_next(3, Failure::Unreachable);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }));
    acquired(&leases).await.release().await.unwrap();
    faults.calls().fail_next(2, Failure::Denied);
    faults.calls().fail_next(0, Failure::Denied);
    acquired(&leases).await.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_failure_is_what_it_says() {
    for (failure, kind, is_carried_out) in [
        (Failure::Unreachable, ErrorKind::Unavailable, false),
        (Failure::Overloaded, ErrorKind::Unavailable, false),
        (Failure::AnswerLost, ErrorKind::NoAnswer, true),
        (Failure::RequestLost, ErrorKind::NoAnswer, false),
        (Failure::Denied, ErrorKind::Misconfigured, false),
        (Failure::Broken, ErrorKind::Other, false),
    ] {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        store.faults().calls().fail_all(failure);
        let key = Key::new("key").unwrap();
        let request =
            AcquireRequest::exclusive(key.clone(), LeaseId::random(), "owner".into(), TTL);
        let error = store.acquire(&request).await.unwrap_err();
        assert_eq!((error.kind(), failure.error().kind()), (kind, kind));
        let state = memory.inspect(&key).await.unwrap();
        assert_eq!(state.is_some(), is_carried_out, "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_kind_of_calls_leave_the_others() {
    let (leases, other, faults) = setup();
    faults.releases().fail_all(Failure::Denied);
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    faults.renewals().fail_all(Failure::Unreachable);
    let reason = lease.lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason}");
    sleep(MARGIN).await;
    let lease = acquired(&leases).await;
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert!(!is_free(&other).await);
    faults.releases().clear();
    sleep(TTL).await;
    acquired(&leases).await.release().await.unwrap();
    assert!(is_free(&other).await);
}

#[tokio::test(start_paused = true)]
async fn answers_are_late_and_the_calls_are_not() {
    let (leases, other, faults) = setup();
    let delay = Duration::from_secs(2);
    faults.acquires().delay(delay);
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL).into_future();
    let look = async {
        sleep(delay / 2).await;
        assert!(!is_free(&other).await, "it is carried out at once");
    };
    let (lease, ()) = tokio::join!(acquire, look);
    assert_eq!(start.elapsed().as_secs(), 2);
    lease.unwrap().release().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 2, "releases are not late");

    faults.acquires().fail_next(1, Failure::Denied);
    assert!(leases.acquire("key", TTL).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 4, "errors are late too");
    faults.acquires().delay(Duration::ZERO);
    // The request was repeated after a second, and the answer to the repeat is late as well.
    acquired(&leases).await.release().await.unwrap();
    assert!(start.elapsed().as_secs() <= 5);
}

/// Each request of a batch, and each renewal of a call, counts as one.
#[tokio::test(start_paused = true)]
async fn a_batch_counts_as_its_requests() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let keys = ["a", "b", "c"].map(|key| Key::new(key).unwrap());
    let request =
        |key: &Key| AcquireRequest::exclusive(key.clone(), LeaseId::random(), "owner".into(), TTL);
    let requests = keys.each_ref().map(request);
    let acquires = requests.clone().map(|it| BatchRequest::Acquire(it.into()));
    faults.refuse_next(1);
    faults.acquires().fail_next(1, Failure::Denied);
    let answers = store.batch(&acquires).await.unwrap();
    let [Err(denied), Ok(refused), Ok(granted)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert!(matches!(denied, Error::Denied { .. }));
    assert!(matches!(
        refused,
        BatchAnswer::Acquire(AcquireAnswer::Held(_))
    ));
    assert!(matches!(
        granted,
        BatchAnswer::Acquire(AcquireAnswer::Granted(_))
    ));
    store.batch(&acquires).await.unwrap();

    let renewals = requests
        .clone()
        .map(|it| RenewRequest::new(it.key, it.lease, TTL));
    faults.renewals().fail_next(1, Failure::Unreachable);
    faults.lose("b").unwrap();
    let answers = store.renew(&renewals).await.unwrap();
    assert!(matches!(answers[0], Err(Error::Unreachable { .. })));
    assert!(matches!(answers[1], Ok(RenewAnswer::TakenOver)));
    assert!(matches!(answers[2], Ok(RenewAnswer::Renewed(_))));

    let releases = requests.map(|it| BatchRequest::Release(ReleaseRequest::new(it.key, it.lease)));
    faults.releases().fail_next(1, Failure::AnswerLost);
    let answers = store.batch(&releases).await.unwrap();
    assert!(matches!(answers[0], Err(Error::Interrupted { .. })));
    assert!(matches!(
        answers[1],
        Ok(BatchAnswer::Release(ReleaseAnswer::NotHeld))
    ));
    assert!(matches!(
        answers[2],
        Ok(BatchAnswer::Release(ReleaseAnswer::Released))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_clone_has_the_same_faults() {
    let store = FaultyStore::new(MemoryStore::new());
    let (faults, clone) = (store.faults().clone(), store.clone());
    faults.calls().fail_all(Failure::Denied);
    for store in [store, clone] {
        let leases = Leases::new(store);
        assert!(leases.inspect("key").await.is_err());
    }
}

/// The faults work without a paused clock, and with several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_in_real_time_waits_for_a_call_to_hang() {
    let (leases, other, faults) = setup();
    for _ in 0..100 {
        faults.acquires().hang();
        let acquire = tokio::spawn(leases.acquire("key", TTL).into_future());
        let hangs = timeout(PATIENCE, faults.acquires().until_hanging());
        hangs.await.expect("it hangs in time");
        assert!(is_free(&other).await);
        faults.acquires().clear();
        acquire.await.unwrap().unwrap().release().await.unwrap();
    }
}

//! Every operation, dropped at every point at which it waits for the store. It must leave no lock behind.

use leasehold::{Error, Lease, Leases, Resumed, Upgrade, store::AcquireAnswer};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, is_free, setup, until_free};

/// Drops the operation at its first gate, at its second, and so on, and returns how many gates there were. Each time
/// the key is free as soon as the gate has opened, a waiter behind the operation gets it, and no request comes later.
async fn dropped_at_each_gate(operation: impl AsyncFn(&Leases, &FlakyStore)) -> usize {
    for gate in 0.. {
        let (store, leases) = setup();
        store.gates.close(gate);
        tokio::select! {
            biased;
            () = store.gates.reached() => {}
            () = operation(&leases, &store) => return gate,
        }
        let behind = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(MOMENT).await;
        store.gates.open();
        let lease = timeout(TTL / 2, behind).await;
        let lease = lease.unwrap_or_else(|_| panic!("gate {gate}: the next one is held up"));
        lease.unwrap().unwrap().release().await.unwrap();

        // The same without a waiter behind it.
        let (store, leases) = setup();
        store.gates.close(gate);
        tokio::select! {
            biased;
            () = store.gates.reached() => {}
            // A waiter pauses for random times between its requests, so the number of gates differs from run to run.
            () = operation(&leases, &store) => return gate,
        }
        sleep(MOMENT).await;
        store.gates.open();
        // If the operation waits for another process, that process releases the key a little later.
        sleep(MOMENT * 10).await;
        assert!(is_free(&store).await, "gate {gate}: a lock is left");
        store.calls();
        sleep(TTL * 2).await;
        assert_eq!(store.calls(), [""; 0], "gate {gate}: nothing comes later");
    }
    unreachable!("there are as many gates as numbers");
}

async fn acquire(leases: &Leases) -> Lease {
    leases.acquire("key", TTL).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_attempt() {
    let gates = dropped_at_each_gate(async |leases, _| {
        drop(leases.try_acquire("key", TTL).await.unwrap());
    });
    assert_eq!(gates.await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_acquire() {
    let gates = dropped_at_each_gate(async |leases, _| drop(acquire(leases).await));
    assert_eq!(gates.await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_keeps_alive() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        sleep(TTL).await;
        drop(lease);
    });
    // The gates are those of the acquire and of the renewals at one third and at two thirds of the ttl.
    assert_eq!(gates.await, 6);
}

#[tokio::test(start_paused = true)]
async fn a_renewal() {
    let gates = dropped_at_each_gate(async |leases, _| {
        acquire(leases).await.renew().await.unwrap();
    });
    assert_eq!(gates.await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_release() {
    let gates = dropped_at_each_gate(async |leases, _| {
        acquire(leases).await.release().await.unwrap();
    });
    assert_eq!(gates.await, 4);
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lease() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let work = leases.acquire("key", TTL).with(async |_| {
            sleep(TTL / 2).await;
            Ok::<_, Error>(())
        });
        work.await.unwrap();
    });
    // The gates are those of the acquire, of a renewal and of the release.
    assert_eq!(gates.await, 6);
}

/// The acquire is refused at first, and is granted the key after another process has released it.
#[tokio::test(start_paused = true)]
async fn an_acquire_while_queued() {
    let gates = dropped_at_each_gate(async |leases, store| {
        let other = Leases::new(store.memory.clone());
        let holder = acquire(&other).await;
        tokio::spawn(async move {
            sleep(MOMENT * 2).await;
            drop(holder);
            // The background release needs its handle for so long.
            sleep(TTL).await;
            drop(other);
        });
        drop(acquire(leases).await);
    });
    assert!(gates.await >= 4);
}

/// The acquire waits behind another one of the same process, and is dropped before it has sent anything.
#[tokio::test(start_paused = true)]
async fn an_acquire_behind_another() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let holder = acquire(leases).await;
        let behind = acquire(leases);
        let release = async {
            sleep(MOMENT).await;
            holder.release().await.unwrap();
        };
        drop(futures::join!(behind, release));
    });
    // The gates are those of the acquire that comes first, and of the release of both.
    let gates = gates.await;
    assert!(gates >= 2, "{gates}");
}

#[tokio::test(start_paused = true)]
async fn a_close() {
    let gates = dropped_at_each_gate(async |leases, store| {
        // The tested handle stays open for the waiter behind, so a second handle is closed.
        let closing = Leases::new(store.clone());
        let lease = acquire(&closing).await;
        closing.close().await;
        drop(lease);
        drop(leases.clone());
    });
    assert_eq!(gates.await, 4);
}

/// Here the answer is lost instead of late. The acquire gives up, and what it was granted is released.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answers_are_lost() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost; 3]);
    leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(until_free(&store).await < MOMENT);
}

/// An answer that never comes counts as lost after the time limit of a call, whether or not a caller waits for it.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answers_never_come() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 100)]);
    let acquire = leases.acquire("key", TTL * 10).into_future();
    timeout(MOMENT, acquire).await.unwrap_err();
    assert!(until_free(&store).await <= LIMIT + MOMENT);

    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 100); 3]);
    leases.try_acquire("key", TTL * 10).await.unwrap_err();
    assert!(until_free(&store).await <= LIMIT + MOMENT);
}

/// As of a server that stood still for long, on a connection that broke without a sign.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_carried_out_long_after_and_never_answered() {
    for late in [LIMIT * 4, LIMIT * 9, TTL * 8] {
        let (store, leases) = setup();
        store.next([Fate::LateWithoutAnswer(late)]);
        let acquire = leases.acquire("key", TTL * 10).into_future();
        timeout(MOMENT, acquire).await.unwrap_err();
        sleep(late).await;
        // It is free twice as long after the request as the request was late, at the latest.
        assert!(until_free(&store).await <= late + LIMIT * 2);
        // The releases end with the ttl.
        sleep(TTL * 20).await;
        store.calls();
        sleep(TTL * 20).await;
        assert_eq!(store.calls(), [""; 0]);
    }
}

/// The acquire gives the request up as lost. The request arrives after that, with or without an answer.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_carried_out_after_it_was_given_up() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT + LIMIT / 2)]);
    let acquire = leases.acquire("key", TTL * 10).into_future();
    timeout(MOMENT, acquire).await.unwrap_err();
    sleep(LIMIT + LIMIT / 2 - MOMENT).await;
    assert_eq!(store.calls()[..2], ["acquire", "release"]);
    sleep(MOMENT).await;
    assert!(until_free(&store).await < MOMENT);
}

/// The server stands still for longer than the time limit of a call. Then it carries out the release first, and the
/// request of a connection that broke before after it.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_carried_out_after_its_release_by_a_server_that_stood_still() {
    let (store, leases) = setup();
    store.next([Fate::CutAndKept]);
    store.next([Fate::NotSent; 1_000]);
    leases.try_acquire("key", TTL * 100).await.unwrap_err();
    sleep(LIMIT * 3).await;
    store.fates_now([]);
    store.calls();
    while !store.calls().contains(&"release") {
        sleep(MOMENT).await;
    }
    let granted = store.carry_out_kept().await;
    assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
    assert!(until_free(&store).await < TTL);
}

/// The answer to the first request, which was granted, comes when that grant has expired, the second request was
/// granted too, and another process has the lease by its ticket.
#[tokio::test(start_paused = true)]
async fn the_answer_to_an_earlier_grant_does_not_end_a_lease_that_was_given_away() {
    let (store, leases) = setup();
    let ttl = LIMIT / 2;
    store.next([Fate::AnswerLate(3 * ttl)]);
    let lease = leases.acquire("key", ttl).await.unwrap();
    let other = Leases::new(store.memory.clone());
    let resumed = other.resume(&lease.into_ticket()).keep_alive().await;
    let Resumed::Live(resumed) = resumed.unwrap() else {
        panic!("the ticket is of a live lease");
    };
    sleep(4 * ttl).await;
    assert!(!is_free(&store).await);
    assert!(resumed.is_live());
}

/// An earlier request for the lease is carried out after the process that has resumed the lease has upgraded it, and is
/// answered with the fence of the upgrade.
#[tokio::test(start_paused = true)]
async fn a_late_request_does_not_end_a_lease_that_was_given_away_and_upgraded() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT * 3 / 2)]);
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    let other = Leases::new(store.memory.clone());
    let resumed = other.resume(&lease.into_ticket()).keep_alive().await;
    let Resumed::Live(resumed) = resumed.unwrap() else {
        panic!("the ticket is of a live lease");
    };
    assert_eq!(resumed.upgrade().await.unwrap(), Upgrade::Exclusive);
    sleep(LIMIT).await;
    assert!(!is_free(&store).await);
    assert!(resumed.is_live());
}

/// A request of the process that made the ticket arrives after the process that resumed the lease has released it. The
/// release is repeated, so nobody has the key for a whole ttl.
#[tokio::test(start_paused = true)]
async fn a_late_request_leaves_no_lock_after_the_release_of_a_lease_that_was_given_away() {
    let (store, leases) = setup();
    store.next([Fate::CutAndKept]);
    let lease = leases.acquire("key", TTL * 100).await.unwrap();
    let ticket = serde_json::to_string(&lease.into_ticket()).unwrap();
    let other = Leases::new(store.clone());
    let ticket = serde_json::from_str(&ticket).unwrap();
    let Resumed::Live(resumed) = other.resume(&ticket).await.unwrap() else {
        panic!("the ticket is of a live lease");
    };
    resumed.release().await.unwrap();
    let granted = store.carry_out_kept().await;
    assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
    assert!(until_free(&store).await < TTL);
}

/// A store that answers nothing gets no more requests than one for each call timeout.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_answered_is_sent_by_one_task() {
    let (store, leases) = setup();
    let hangs = Fate::LateWithoutAnswer(TTL * 1_000);
    store.next(std::iter::repeat_n(hangs, 10_000));
    let acquire = leases.acquire("key", TTL * 100);
    assert!(timeout(MOMENT, acquire).await.is_err());
    let time = TTL * 10;
    sleep(time).await;
    let releases = store
        .calls()
        .iter()
        .filter(|call| **call == "release")
        .count();
    assert!(releases > 0);
    assert!(
        releases as f64 <= time.div_duration_f64(LIMIT),
        "{releases}"
    );
}

/// The task that repeated the release during the silence has given up before the request is carried out.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_carried_out_after_a_long_silence_leaves_no_lock_behind() {
    let (store, leases) = setup();
    store.next([Fate::LateWithoutAnswer(TTL + MOMENT * 200)]);
    store.next(std::iter::repeat_n(
        Fate::LateWithoutAnswer(TTL * 1_000),
        10_000,
    ));
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL / 2);
    assert!(timeout(MOMENT, acquire).await.is_err());
    sleep_until(start + TTL + MOMENT * 100).await;
    store.fates_now([]);
    sleep_until(start + TTL + MOMENT * 201).await;
    assert!(!is_free(&store).await);
    // Its lease would be over 5 s later.
    sleep_until(start + TTL + LIMIT + MOMENT * 200).await;
    assert!(is_free(&store).await);
}

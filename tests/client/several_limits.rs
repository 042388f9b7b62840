//! Permits that are given back, and limiters of several limits.

use std::{future::IntoFuture, time::Duration};

use leasehold::{Error, Leases, Limiter, Permit, PermitAttempt};
use tokio::{task::yield_now, time::Instant};

use super::{
    Fate, FlakyStore, MOMENT,
    limits::{SECOND, is_full, wait},
    setup,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A limiter of one call a second and two an hour, both parts of it, and its store. A window of both begins.
async fn both() -> (FlakyStore, Leases, [Limiter; 3]) {
    let (store, leases) = setup();
    let second = leases.limiter("key", 1, SECOND);
    let hour = leases.limiter("key", 2, HOUR);
    a_new_window(&hour).await;
    let both = second.clone().and(hour.clone());
    (store, leases, [both, second, hour])
}

/// Waits for a window in which no permit was taken.
async fn a_new_window(limiter: &Limiter) {
    while limiter
        .try_permit()
        .await
        .is_ok_and(|it| matches!(it, PermitAttempt::Granted(_)))
    {}
    tokio::time::sleep(limiter.peek().await.unwrap().reset_in).await;
}

async fn remaining(limiter: &Limiter) -> u32 {
    limiter.peek().await.unwrap().remaining
}

async fn granted(limiter: &Limiter) -> Permit {
    match limiter.try_permit().await.unwrap() {
        PermitAttempt::Granted(permit) => permit,
        full => panic!("{full:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_given_back_is_for_the_caller_that_waits() {
    let (store, leases) = setup();
    let limiter = leases.limiter("key", 2, HOUR);
    let permit = limiter.permits(2).await.unwrap();
    let waiter = wait(&limiter, 1).await;
    let start = Instant::now();
    store.calls();
    permit.give_back().await.unwrap();
    waiter.await.unwrap().unwrap();
    assert!(start.elapsed() < MOMENT);
    assert_eq!(store.calls(), ["give_back", "permit"]);
    assert_eq!(remaining(&limiter).await, 1);
}

/// A second request could give back what others have taken.
#[tokio::test(start_paused = true)]
async fn permits_are_given_back_once() {
    let (store, leases) = setup();
    let limiter = leases.limiter("key", 1, HOUR);
    let permit = limiter.permit().await.unwrap();
    store.calls();
    store.next([Fate::NotSent]);
    let failed = permit.give_back().await;
    assert!(
        matches!(failed, Err(Error::Unreachable { .. })),
        "{failed:?}"
    );
    assert_eq!(store.calls(), ["give_back"]);
    assert!(is_full(&limiter).await);
}

#[tokio::test(start_paused = true)]
async fn several_limits_grant_all_or_none() {
    let (store, _leases, [both, second, hour]) = both().await;
    let first = granted(&both).await;
    assert_eq!((first.left().limit, first.left().remaining), (1, 0));
    assert_eq!((remaining(&second).await, remaining(&hour).await), (0, 1));
    // The second has none, which is known by its last answer, so that of the hour is given back.
    store.calls();
    assert!(is_full(&both).await);
    assert_eq!(store.calls(), ["permit", "give_back"]);
    assert_eq!(remaining(&hour).await, 1);
    let second_permit = both.permit().wait_for(2 * SECOND).await.unwrap();
    assert_eq!(remaining(&hour).await, 0);
    // The hour has none, so the second is not asked.
    tokio::time::sleep(SECOND).await;
    store.calls();
    match both.permit().wait_for(5 * SECOND).await.unwrap_err() {
        Error::LimitReached { retry_in, left, .. } => {
            assert!(
                retry_in > 5 * SECOND && left.limit == 2,
                "{retry_in:?}, {left:?}"
            );
        }
        error => panic!("{error}"),
    }
    assert!(is_full(&both).await);
    assert_eq!(remaining(&second).await, 1);
    assert_eq!(both.peek().await.unwrap().remaining, 0);
    // Both parts of a permit are given back.
    second_permit.give_back().await.unwrap();
    assert_eq!(remaining(&hour).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_keeps_no_permit_of_one_limit() {
    let (store, leases) = setup();
    let (hour, one) = (
        leases.limiter("key", 2, HOUR),
        leases.limiter("key", 1, HOUR / 2),
    );
    one.permit().await.unwrap();
    let waiter = wait(&hour.clone().and(one), 1).await;
    while remaining(&hour).await > 1 {
        yield_now().await;
    }
    store.calls();
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    leases.close().await;
    assert_eq!(store.calls(), ["give_back"]);
    assert_eq!(remaining(&hour).await, 2);
}

/// The call is made in the window in which the last permit was granted, so the others have to be of that window.
#[tokio::test(start_paused = true)]
async fn a_permit_of_a_window_that_ended_meanwhile_is_taken_again() {
    let (_store, leases) = setup();
    let many = leases.limiter("many", 5, HOUR);
    let one = leases.limiter("one", 1, HOUR);
    a_new_window(&many).await;
    one.permit().await.unwrap();
    let permit = many.clone().and(one.clone()).permit().await.unwrap();
    assert_eq!((remaining(&many).await, remaining(&one).await), (4, 0));
    permit.give_back().await.unwrap();
    assert_eq!((remaining(&many).await, remaining(&one).await), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_to_be_one() {
    let (store, leases) = setup();
    let limiter = |limit, window| leases.limiter("key", limit, window);
    let wrong = limiter(1, SECOND)
        .and(limiter(0, HOUR))
        .permit()
        .into_future()
        .await;
    assert!(matches!(wrong, Err(Error::InvalidLimit)), "{wrong:?}");
    let two = limiter(2, SECOND).and(limiter(3, HOUR));
    let wrong = two.clone().permits(3).await;
    assert!(
        matches!(wrong, Err(Error::InvalidPermits { .. })),
        "{wrong:?}"
    );
    assert_eq!(remaining(&limiter(3, HOUR)).await, 3);
    let wrong = two.smooth(3).permit().await;
    assert!(
        matches!(wrong, Err(Error::InvalidBurst { .. })),
        "{wrong:?}"
    );
    drop(store);
}

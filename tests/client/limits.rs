//! Permits of a limiter: for which callers a request is sent, and how long each caller waits.

use std::{collections::BTreeMap, future::IntoFuture, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{Error, Leases, Limiter, Permit, PermitAttempt};
use parking_lot::Mutex;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, MOMENT, PATIENCE, setup};

pub const SECOND: Duration = Duration::from_secs(1);

pub fn limited() -> (FlakyStore, Leases, Limiter) {
    let (store, leases) = setup();
    let limiter = leases.limiter("key", 10, SECOND);
    (store, leases, limiter)
}

/// Waits for the beginning of a window.
pub async fn a_new_window(limiter: &Limiter) {
    match limiter.try_permits(10).await.unwrap() {
        PermitAttempt::Granted(permit) => {
            let millis = u64::from(permit.granted_at().timestamp_subsec_millis());
            sleep(SECOND - Duration::from_millis(millis)).await;
        }
        full => panic!("{full:?}"),
    }
}

/// Starts a task that waits for permits. It is in the queue when this returns.
pub async fn wait(limiter: &Limiter, permits: u32) -> JoinHandle<Result<Permit, Error>> {
    let waiter = tokio::spawn(limiter.permits(permits).into_future());
    for _ in 0..20 {
        yield_now().await;
    }
    waiter
}

pub async fn is_full(limiter: &Limiter) -> bool {
    matches!(limiter.try_permit().await, Ok(PermitAttempt::Full { .. }))
}

/// A peek is answered while tasks wait, leaves them alone, and is sent once, also if it fails.
#[tokio::test(start_paused = true)]
async fn a_peek_goes_past_the_queue() {
    let (store, leases, limiter) = limited();
    a_new_window(&limiter).await;
    limiter.permits(7).await.unwrap();
    let waiter = wait(&limiter, 5).await;
    store.calls();
    let start = Instant::now();
    for _ in 0..2 {
        assert_eq!(limiter.peek().await.unwrap().remaining, 3);
    }
    assert!(start.elapsed() < MOMENT && !waiter.is_finished());
    store.next([Fate::NotSent]);
    let failed = limiter.peek().await;
    assert!(
        matches!(failed, Err(Error::Unreachable { .. })),
        "{failed:?}"
    );
    assert_eq!(store.calls().len(), 3);
    waiter.await.unwrap().unwrap();
    assert_eq!(limiter.peek().await.unwrap().remaining, 5);
    let wrong = leases.limiter("key", 0, SECOND).peek().await;
    assert!(matches!(wrong, Err(Error::InvalidLimit)), "{wrong:?}");
}

/// The experiment of the seed document, and its table: 20 tasks make 50 calls each, at most ten a
/// second.
#[tokio::test(start_paused = true)]
async fn twenty_tasks_with_fifty_calls_each_fill_every_window() {
    let (store, _, limiter) = limited();
    a_new_window(&limiter).await;
    store.calls();
    let start = Instant::now();
    let calls = async || {
        let mut granted = Vec::new();
        for _ in 0..50 {
            granted.push(limiter.permit().await.unwrap().granted_at());
        }
        granted
    };
    let granted = join_all((0..20).map(|_| calls())).await.concat();
    let mut windows = BTreeMap::<_, u32>::new();
    for at in granted {
        *windows.entry(at.timestamp()).or_default() += 1;
    }
    println!(
        "+------------+-------------+\n| window     | total_count |\n+------------+-------------+"
    );
    for (window, permits) in &windows {
        println!("| {window} | {permits:11} |");
    }
    assert_eq!(windows.len(), 100);
    assert!(windows.values().all(|permits| *permits == 10));
    assert!(start.elapsed() < 100 * SECOND);
    // There is one request for each window, and at most as many that found the window full.
    let requests = store.calls().len();
    assert!(requests <= 200, "{requests} requests");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_that_wait_send_one_request_a_window() {
    let (store, _, limiter) = limited();
    a_new_window(&limiter).await;
    store.calls();
    // The answer takes as long as that of a server.
    let late = Fate::AnswerLate(Duration::from_millis(1));
    store.next(std::iter::repeat_n(late, 100));
    let waiters: Vec<_> = (0..1_000)
        .map(|_| tokio::spawn(limiter.permit().into_future()))
        .collect();
    sleep(10 * SECOND - MOMENT).await;
    let requests = store.calls().len();
    assert_eq!(requests, 10);
    let served = waiters.iter().filter(|waiter| waiter.is_finished()).count();
    assert_eq!(served, 100);
}

#[tokio::test(start_paused = true)]
async fn they_are_served_in_the_order_in_which_they_came() {
    let (_, _, limiter) = limited();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..50 {
        let (permit, served) = (limiter.permits(number % 4 + 1), served.clone());
        waiters.push(tokio::spawn(async move {
            permit.await.unwrap();
            served.lock().push(number);
        }));
        yield_now().await;
    }
    join_all(waiters).await;
    assert_eq!(*served.lock(), (0..50).collect::<Vec<_>>());
}

/// Callers are served in order, so a request for many permits is not overtaken for ever.
#[tokio::test(start_paused = true)]
async fn many_at_once_are_not_passed_by() {
    let (_, leases, limiter) = limited();
    a_new_window(&limiter).await;
    limiter.permits(5).await.unwrap();
    let many = wait(&limiter, 10).await;
    // A limiter with the same terms is the same one, also from another handle.
    let one = wait(&leases.limiter("key", 10, SECOND), 1).await;
    assert!(is_full(&limiter).await, "one of those that are left");
    let start = Instant::now();
    many.await.unwrap().unwrap();
    assert!(start.elapsed() <= SECOND + SECOND / 20);
    assert!(!one.is_finished());
    one.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_window_is_not_asked_again() {
    let (store, _, limiter) = limited();
    a_new_window(&limiter).await;
    for _ in 0..10 {
        limiter.permit().await.unwrap();
    }
    store.calls();
    for _ in 0..90 {
        assert!(is_full(&limiter).await);
        sleep(MOMENT).await;
    }
    assert_eq!(store.calls(), [""; 0]);
    sleep(SECOND / 5).await;
    assert!(!is_full(&limiter).await);
    assert_eq!(store.calls(), ["permit"]);
}

#[tokio::test(start_paused = true)]
async fn smooth_permits_reach_their_rate() {
    let (_, leases, _) = limited();
    let limiter = leases.limiter("key", 10, SECOND).smooth(2);
    let start = Instant::now();
    let mut last: Option<(Instant, Instant)> = None;
    for _ in 0..100 {
        limiter.permit().await.unwrap();
        let now = Instant::now();
        if let Some((before, previous)) = last.replace((now, last.map_or(now, |last| last.0))) {
            // The first and the last of three permits in a row are at least as far apart as the
            // time in which one permit comes back.
            assert!(now - previous.min(before) >= SECOND / 10 - MOMENT / 5 || previous == before);
        }
    }
    let took = start.elapsed();
    assert!((9_800..10_300).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_as_soon_as_it_is_in_vain() {
    let (_, leases, limiter) = limited();
    a_new_window(&limiter).await;
    limiter.permits(10).await.unwrap();
    sleep(SECOND / 2).await;
    let start = Instant::now();
    let half = limiter.permit().wait_for(SECOND / 4).await;
    let Err(Error::LimitReached { retry_in, .. }) = half else {
        panic!("{half:?}");
    };
    assert!(start.elapsed() < MOMENT && retry_in > SECOND / 4);
    limiter.permit().wait_for(SECOND).await.unwrap();
    // Behind other callers the limiter does not know at once that the wait is in vain. The time
    // limit ends it some windows later.
    let others: Vec<_> = (0..50)
        .map(|_| tokio::spawn(limiter.permit().into_future()))
        .collect();
    yield_now().await;
    let start = Instant::now();
    let behind = limiter.permit().wait_for(2 * SECOND).await;
    assert!(
        matches!(behind, Err(Error::LimitReached { .. })),
        "{behind:?}"
    );
    assert!(start.elapsed() <= 2 * SECOND);
    drop(others);
    leases.close().await;
}

/// The future of one caller is not polled any more when its request is under way. The next caller
/// needs the answer too.
#[tokio::test(start_paused = true)]
async fn a_request_goes_on_though_nobody_polls_it() {
    let (store, _, limiter) = limited();
    for others_before in [false, true] {
        store.next([Fate::AnswerLate(MOMENT)]);
        let mut asking = Box::pin(limiter.permit().into_future());
        let other = || tokio::spawn(limiter.permit().into_future());
        let first = others_before.then(other);
        assert!(futures::poll!(&mut asking).is_pending());
        let second = (!others_before).then(other);
        let start = Instant::now();
        let other = first.or(second).unwrap();
        other.await.unwrap().unwrap();
        assert!(start.elapsed() <= 2 * MOMENT, "{:?}", start.elapsed());
        asking.await.unwrap();
    }
}

/// The first caller sleeps until there are permits again, and its future is not polled any more. A caller behind it
/// gets its answer nevertheless, and so does one that does not wait.
#[tokio::test(start_paused = true)]
async fn a_caller_whose_future_is_not_polled_stops_nobody() {
    for others in [0, 3] {
        let (_, _, limiter) = limited();
        while let PermitAttempt::Granted(_) = limiter.try_permit().await.unwrap() {}
        let mut asleep: Vec<_> = (0..=others)
            .map(|_| Box::pin(limiter.permit().into_future()))
            .collect();
        for asleep in &mut asleep {
            assert!(futures::poll!(asleep).is_pending());
        }
        sleep(3 * SECOND).await;
        let start = Instant::now();
        let tried = timeout(PATIENCE, limiter.try_permit().into_future()).await;
        let _ = tried.expect("it has no answer").unwrap();
        let limited = timeout(
            PATIENCE,
            limiter.permit().wait_for(SECOND / 2).into_future(),
        )
        .await;
        let _ = limited.expect("its wait has no end");
        timeout(PATIENCE, limiter.permit().into_future())
            .await
            .expect("it has no permit")
            .unwrap();
        // The windows pass as fast as with callers that are polled, but for the substitute's delay in each.
        let most = (others + 6) * 2 * SECOND;
        assert!(start.elapsed() <= most, "{:?}", start.elapsed());
    }
}

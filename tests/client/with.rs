//! Work under a lease, by `with`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use leasehold::{Attempt, Error, Leases, LossReason, WithError, jobs::OnceError};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, MOMENT, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn the_body_runs_under_a_kept_lease_which_is_released_after_it() {
    let (store, leases) = setup();
    let out = leases
        .acquire("key", TTL)
        .with(async |lease| {
            sleep(TTL * 10).await;
            assert!(lease.is_live());
            Ok::<_, Error>(lease.fence())
        })
        .await
        .unwrap();
    assert!(
        is_free(&store).await,
        "it is released when the call returns"
    );
    let next = leases.acquire("key", TTL).await.unwrap();
    assert!(next.fence() > out);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_is_told_apart_and_its_lease_released() {
    let (store, leases) = setup();
    let work = leases
        .acquire("key", TTL)
        .with(async |_| Err::<(), _>("no"));
    let error = work.await.unwrap_err();
    assert!(matches!(error, WithError::Body("no")), "{error:?}");
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_lease_does_not_run() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let work = leases
        .acquire("key", TTL)
        .wait_for(TTL)
        .with(async |_| -> Result<(), Error> { panic!("it runs") });
    let error = work.await.unwrap_err();
    assert!(
        matches!(error, WithError::NotAcquired(Error::WaitTimedOut { .. })),
        "{error:?}"
    );
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_lease_is_lost_is_stopped() {
    struct Stopped(Arc<AtomicBool>);
    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (store, leases) = setup();
    let start = Instant::now();
    let stopped = Arc::new(AtomicBool::new(false));
    let guard = Stopped(stopped.clone());
    let evictor = leases.clone();
    let work = leases.acquire("key", TTL).with(async move |_| {
        let _guard = guard;
        evictor.evict("key").await?;
        sleep(TTL * 10).await;
        Ok::<_, Error>(())
    });
    let error = work.await.unwrap_err();
    assert!(
        matches!(
            error,
            WithError::Lost {
                reason: LossReason::TakenOver,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(stopped.load(Ordering::SeqCst));
    assert!(start.elapsed() < TTL / 2);
    assert!(is_free(&store).await);
}

/// The work ends normally, but the key was taken over before that.
#[tokio::test(start_paused = true)]
async fn a_loss_that_only_the_release_learns_of_is_a_loss() {
    let (_, leases) = setup();
    let other = leases.clone();
    let work = leases.acquire("key", TTL).with(async |_| {
        other.evict("key").await?;
        other.try_acquire("key", TTL).await
    });
    let error = work.await.unwrap_err();
    assert!(
        matches!(
            error,
            WithError::Lost {
                reason: LossReason::TakenOver,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_that_does_not_get_through_is_not_the_bodys_failure() {
    let (store, leases) = setup();
    let cut = store.clone();
    let work = leases.acquire("key", TTL).with(async |_| {
        cut.next([Fate::NotSent; 5]);
        Ok::<_, Error>(7)
    });
    assert_eq!(work.await.unwrap(), 7);
    assert!(!is_free(&store).await, "the control");
    assert!(until_free(&store).await < TTL / 2);
}

/// The work is done, and the store does not answer any more.
#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_a_release_without_an_answer_for_two_seconds() {
    let (store, leases) = setup();
    let cut = store.clone();
    let work = async |_: &leasehold::Lease| {
        cut.next([Fate::LateWithoutAnswer(LATE); 5]);
        Ok::<_, Error>(Instant::now())
    };
    const LATE: Duration = Duration::from_secs(5);
    let longest = Duration::from_secs(2);
    let done = leases.acquire("key", TTL).with(work).await.unwrap();
    assert_eq!(done.elapsed(), longest);
    leases.close().await;
    assert!(is_free(&store).await, "the release goes on");

    let (store, leases) = setup();
    let attempt = leases.once("job", 1).run(async |_| {
        store.next([Fate::LateWithoutAnswer(LATE); 5]);
        Err::<(), _>(Instant::now())
    });
    let Err(OnceError::Work(failed)) = attempt.await else {
        panic!("the work fails");
    };
    assert_eq!(failed.elapsed(), longest);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_runs_the_body_or_names_the_holder() {
    let (store, leases) = setup();
    let attempt = leases.try_acquire("key", TTL).with(async |lease| {
        sleep(TTL * 3).await;
        assert!(lease.is_live(), "it is kept alive");
        Ok::<_, Error>(7)
    });
    assert!(matches!(attempt.await.unwrap(), Attempt::Acquired(7)));
    assert!(is_free(&store).await);

    let other = Leases::new(store);
    let holder = other.acquire("key", TTL).await.unwrap();
    let attempt = leases
        .try_acquire("key", TTL)
        .with(async |_| -> Result<(), Error> { panic!("it runs") });
    let Ok(Attempt::Held(held)) = attempt.await else {
        panic!("it is held");
    };
    assert_eq!(held.owner(), holder.owner());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_stops_its_body_and_releases() {
    let (store, leases) = setup();
    let work = leases
        .acquire("key", TTL)
        .with(async |_| -> Result<(), Error> { std::future::pending().await });
    assert!(timeout(TTL * 3, work).await.is_err());
    assert!(until_free(&store).await < MOMENT);
}

#[tokio::test]
async fn a_body_that_panics_releases_its_lease() {
    let (store, leases) = setup();
    let work = leases
        .acquire("key", TTL)
        .with(async |_| -> Result<(), Error> { panic!("the work went wrong") });
    assert!(tokio::spawn(work).await.is_err());
    until_free(&store).await;
}

/// Ordinary bodies of applications have to compile, above all inside `tokio::spawn`.
#[tokio::test(start_paused = true)]
async fn ordinary_bodies_cross_threads() {
    async fn publish(fence: leasehold::Fence) -> Result<i64, std::io::Error> {
        tokio::task::yield_now().await;
        Ok(fence.get())
    }
    async fn write(lease: &leasehold::Lease, lines: &[String]) -> anyhow::Result<usize> {
        lease.renew().await?;
        Ok(lines.len())
    }

    let (_, leases) = setup();
    let handle = leases.clone();
    let spawned = tokio::spawn(async move {
        let lines = vec!["a".to_owned(), "b".to_owned()];
        let fence = handle
            .acquire("key", TTL)
            .with(async |lease| publish(lease.fence()).await)
            .await?;
        let written = handle
            .acquire("key", TTL)
            .wait_for(TTL)
            .with(async |lease| {
                let written = write(lease, &lines).await?;
                tokio::select! {
                    _ = lease.lost() => anyhow::bail!("lost"),
                    _ = sleep(TTL) => {}
                }
                Ok(written)
            })
            .await
            .map_err(WithError::merge)?;
        anyhow::Ok((fence, written))
    });
    assert_eq!(spawned.await.unwrap().unwrap().1, 2);

    let counter = Arc::new(tokio::sync::Mutex::new(0));
    let counting = leases.acquire("key", TTL).with(async move |_| {
        let mut counter = counter.lock().await;
        tokio::task::yield_now().await;
        *counter += 1;
        Ok::<_, Error>(*counter)
    });
    assert_eq!(tokio::spawn(counting).await.unwrap().unwrap(), 1);
}

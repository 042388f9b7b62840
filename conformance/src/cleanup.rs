//! A clean-up removes dead locks, and never a live one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, ensure, expired, fresh_key, granted, request,
    sole_holder, violation,
};
use leasehold::{
    Error, Store,
    store::{AcquireAnswer, ReleaseAnswer, ReleaseRequest, RenewAnswer},
};

/// [`remove_expired`](leasehold::Store::remove_expired) keeps a live lock, removes an expired or released one, and
/// accepts a key without a document.
pub async fn remove_expired_removes_only_what_is_dead(clients: &Clients) -> Outcome {
    let absent = fresh_key("absent")?;
    ensure!(
        !clients.first.remove_expired(&absent).await?,
        "a key without a document was removed"
    );

    let live = request(&fresh_key("live")?, "holder", LONG);
    granted(&clients.first, &live).await?;
    ensure!(
        !clients.second.remove_expired(&live.key).await?,
        "a live lock was removed"
    );
    let holder = sole_holder(&clients.second, &live.key).await?;
    ensure!(holder.lease == live.lease, "a clean-up changed the holder");

    let (dead, _) = expired(&clients.first, "dead", "holder").await?;
    ensure!(
        clients.second.remove_expired(&dead.key).await?,
        "an expired lock was not removed"
    );
    ensure!(
        clients.first.inspect(&dead.key).await?.is_none(),
        "a removed lock has a document"
    );

    let release = ReleaseRequest::new(live.key.clone(), live.lease);
    clients.first.release(&release).await?;
    let start = Instant::now();
    // The fence of the lock is the time of its grant. The clock may not have passed that time yet.
    while !clients.second.remove_expired(&live.key).await? {
        ensure!(
            start.elapsed() < PATIENCE,
            "a released lock was not removed"
        );
        sleep(LOOK).await;
    }
    Ok(())
}

/// While leases expire and are taken over, and both ways of clean-up run without a pause, every granted lease can be
/// released before its expiry: no clean-up has removed it.
pub async fn clean_up_racing_with_takeover_removes_no_live_lock(clients: &Clients) -> Outcome {
    let key = fresh_key("clean-up race")?;
    let done = Arc::new(AtomicBool::new(false));
    let mut cleaners = JoinSet::new();
    for number in 0..4 {
        let (store, key, done) = (clients.of_task(number), key.clone(), done.clone());
        cleaners.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                match number {
                    0 => store.purge(Duration::ZERO).await.map(drop)?,
                    _ => {
                        unless_contended(|| store.remove_expired(&key)).await?;
                    }
                }
                sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    let outcome = takeovers(&clients.second, &key).await;
    done.store(true, Ordering::Relaxed);
    while let Some(ended) = cleaners.join_next().await {
        ended??;
    }
    outcome
}

async fn takeovers(store: &Arc<dyn Store>, key: &leasehold::Key) -> Outcome {
    for round in 0..40 {
        // The clean-up runs at the expiry of this lease, a few milliseconds from now, unless the lease is renewed
        // before that.
        let brief = request(key, "brief", Duration::from_millis(1 + round % 5));
        unless_contended(|| store.acquire(&brief)).await?;
        let live = matches!(
            super::renew(store, key, brief.lease, LONG).await?,
            RenewAnswer::Renewed(_)
        );
        sleep(Duration::from_millis(2)).await;
        let release = ReleaseRequest::new(key.clone(), brief.lease);
        ensure!(
            !live || unless_contended(|| store.release(&release)).await? == ReleaseAnswer::Released,
            "round {round}: a clean-up removed a lock that was just renewed"
        );
        let lease = request(key, "taker", LONG);
        let start = Instant::now();
        while let AcquireAnswer::Held(_) = unless_contended(|| store.acquire(&lease)).await? {
            ensure!(
                start.elapsed() < PATIENCE,
                "an expired lock was not taken over"
            );
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(2)).await;
        let release = ReleaseRequest::new(key.clone(), lease.lease);
        let released = unless_contended(|| store.release(&release)).await?;
        ensure!(
            released == ReleaseAnswer::Released,
            "round {round}: a clean-up removed a lock that was just taken over"
        );
    }
    Ok(())
}

/// Repeats a request that has changed nothing because others kept changing its document. On a busy machine the clean-up
/// may do that for long.
async fn unless_contended<T, F>(send: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let start = Instant::now();
    loop {
        match send().await {
            Err(Error::Contention { .. }) if start.elapsed() < PATIENCE => sleep(LOOK).await,
            outcome => return outcome,
        }
    }
}

/// After both ways of clean-up, a grant has a greater fence than all grants before it, however many there were at once:
/// a document whose fence is ahead of the clock is kept.
pub async fn a_fence_ahead_of_the_clock_outlives_a_clean_up(clients: &Clients) -> Outcome {
    let key = fresh_key("ahead")?;
    for _ in 0..3 {
        let lease = request(&key, "holder", LONG);
        let mut last = granted(&clients.first, &lease).await?.fence;
        for _ in 0..10 {
            if let Some(eviction) = clients.second.evict(&key).await? {
                last = eviction.fence;
            }
        }
        clients.first.remove_expired(&key).await?;
        clients.first.purge(Duration::ZERO).await?;
        let next = request(&key, "next", LONG);
        let grant = granted(&clients.second, &next).await?;
        ensure!(
            grant.fence > last,
            "a clean-up has brought the fence from {last} to {}",
            grant.fence
        );
        let release = ReleaseRequest::new(key.clone(), next.lease);
        clients.second.release(&release).await?;
    }
    Ok(())
}

/// A purge removes what has been dead for its retention, and keeps what is alive or has died lately.
pub async fn purge_removes_only_what_is_long_dead(clients: &Clients) -> Outcome {
    let live = request(&fresh_key("live")?, "holder", LONG);
    granted(&clients.first, &live).await?;
    let mut dead = Vec::new();
    for _ in 0..3 {
        dead.push(expired(&clients.first, "dead", "holder").await?.0.key);
    }

    clients.second.purge(LONG).await?;
    for key in &dead {
        ensure!(
            clients.first.inspect(key).await?.is_some(),
            "a purge with a retention of {LONG:?} removed a lock that lived {SHORT:?} and died just now"
        );
    }

    // Others may use the store, so another purge can remove what is dead before this one does.
    let start = Instant::now();
    let mut left = dead.len();
    while left > 0 {
        if start.elapsed() > PATIENCE {
            return violation(format!("{left} dead locks were not purged"));
        }
        clients.second.purge(Duration::ZERO).await?;
        left = 0;
        for key in &dead {
            left += usize::from(clients.first.inspect(key).await?.is_some());
        }
    }
    let holder = sole_holder(&clients.second, &live.key).await?;
    ensure!(holder.lease == live.lease, "a purge changed a live lock");
    Ok(())
}

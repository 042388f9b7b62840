//! The handle and its guards, on a store.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt, future::poll_immediate};
use tokio::time::{Instant, sleep};

use super::{
    Clients, LONG, Lived, Outcome, PATIENCE, after, between, ensure, fresh_key, in_time,
    sole_holder, state, until_free, violation, with_time_enough,
};
use leasehold::{Attempt, Error, Leases, Store};

/// When a release returns, the key is free. A lease cannot be released or renewed after another one was granted the
/// key.
pub async fn a_released_key_is_free_at_once(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("release")?;
    let lease = first.acquire(&key, LONG).await?;
    match second.try_acquire(&key, LONG).await? {
        Attempt::Held(held) => ensure!(
            held.owner() == lease.owner() && held.holders()[0].fence >= lease.fence(),
            "the holder is {}, and {held:?} was told",
            lease.owner()
        ),
        Attempt::Acquired(_) => return violation("a held key was granted"),
    }
    lease.renew().await?;
    lease.release().await?;
    let Attempt::Acquired(next) = second.try_acquire(&key, LONG).await? else {
        return violation("a released key is still held");
    };
    first.evict(&key).await?;
    let third = first.acquire(&key, LONG).await?;
    let renewed = next.renew().await;
    ensure!(
        matches!(renewed, Err(Error::Lost { .. })),
        "an evicted lease was renewed: {renewed:?}"
    );
    ensure!(!next.is_live(), "a lease that was told of its loss is live");
    let released = next.release().await;
    ensure!(
        matches!(released, Err(Error::Lost { .. })),
        "the release of an evicted lease did not report the loss: {released:?}"
    );
    third.release().await?;
    Ok(())
}

/// A waiting task is granted the key when it is released, although the holder's ttl is long.
pub async fn a_waiter_gets_the_lock_after_its_release(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("wait")?;
    let lease = first.acquire(&key, LONG).await?;
    let waiter = tokio::spawn({
        let key = key.clone();
        async move { second.acquire(&key, LONG).wait_for(PATIENCE).await }
    });
    sleep(Duration::from_millis(50)).await;
    ensure!(!waiter.is_finished(), "a waiter did not wait");
    let fence = lease.fence();
    lease.release().await?;
    let next = waiter.await??;
    ensure!(
        next.fence() > fence,
        "the waiter got the fence {}",
        next.fence()
    );
    next.release().await?;
    Ok(())
}

/// A bounded wait ends with an error that names the holder, and does not affect the holder.
pub async fn a_waiter_gives_up_in_time(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("give up")?;
    let lease = first.acquire(&key, LONG).await?;
    let wait = Duration::from_millis(80);
    let start = Instant::now();
    match second.acquire(&key, LONG).wait_for(wait).await {
        Err(Error::WaitTimedOut { held, waited }) => ensure!(
            held.owner() == lease.owner() && waited >= wait && waited <= start.elapsed(),
            "a wait of {waited:?} for {} ended",
            held.owner()
        ),
        other => return violation(format!("a wait for a held key ended with {other:?}")),
    }
    let holder = sole_holder(&clients.first, &key).await?;
    ensure!(holder.lease == lease.id(), "a waiter changed the holder");
    lease.release().await?;
    Ok(())
}

/// A lease that is dropped is released soon, although its ttl is long.
pub async fn a_dropped_lease_is_released(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("drop")?;
    drop(first.acquire(&key, LONG).await?);
    second
        .acquire(&key, LONG)
        .wait_for(PATIENCE)
        .await?
        .release()
        .await?;
    Ok(())
}

/// If an acquire is dropped after any number of polls, the key is free soon.
pub async fn a_dropped_acquire_leaves_no_lock(clients: &Clients) -> Outcome {
    let (first, _) = pair(clients);
    let key = fresh_key("cancel")?;
    for polls in 0..6 {
        let mut acquire = pin!(first.try_acquire(&key, LONG).into_future().fuse());
        for _ in 0..polls {
            if let Some(Ok(Attempt::Acquired(lease))) = poll_immediate(&mut acquire).await {
                lease.release().await?;
            }
            tokio::task::yield_now().await;
            sleep(Duration::from_millis(polls)).await;
        }
    }
    // The last request may not have arrived yet, so the state is checked three times.
    for _ in 0..3 {
        until_free(&clients.second, &key).await?;
        sleep(Duration::from_millis(50)).await;
    }
    until_free(&clients.second, &key).await
}

/// A detached lease is not released, neither when it is detached nor when it is dropped.
pub async fn a_detached_lease_stays_until_its_ttl_is_over(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    with_time_enough(async |ttl| {
        let key = fresh_key("detach")?;
        let Some(lease) = in_time(first.acquire(&key, ttl).await)? else {
            return Ok(Lived::TooShort);
        };
        let end = after(lease.acquired_at(), ttl);
        match lease.detach() {
            Err(Error::Lost { .. }) => return Ok(Lived::TooShort),
            detached => detached?,
        }
        let next = second.acquire(&key, LONG).wait_for(PATIENCE).await?;
        ensure!(
            next.acquired_at() >= end,
            "a detached lease that ends at {end} was replaced at {}",
            next.acquired_at()
        );
        next.release().await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// By the holder's own clock, a lease ends before the server can grant the key to another, by the clock margin of the
/// store. That is also true after a renewal.
pub async fn a_lease_is_over_for_its_holder_first(clients: &Clients) -> Outcome {
    let (first, _) = pair(clients);
    let key = fresh_key("validity")?;
    let margin = clients.first.clock_margin();
    let lease = first.acquire(&key, LONG).await?;
    for _ in 0..2 {
        ensure!(lease.is_live(), "a new lease is not live");
        let local = Instant::now() + lease.remaining();
        let state = state(&clients.second, &key).await?;
        let Some(holder) = state.holders.first() else {
            return violation("a held key has no holder");
        };
        // The server answered before now, so it will grant the key before this instant.
        let server = Instant::now() + between(state.now, holder.expires_at);
        let resolution = Duration::from_millis(1);
        ensure!(
            local + margin <= server + resolution,
            "the holder counts on its lease for {:?} too long",
            local + margin - server
        );
        lease.renew().await?;
    }
    lease.release().await?;
    Ok(())
}

/// Two handles, as two processes would have them.
pub(super) fn pair(clients: &Clients) -> (Leases, Leases) {
    (patient(&clients.first), patient(&clients.second))
}

/// A handle with a long call timeout, so that no call fails because the machine pauses for a while.
pub(super) fn patient(store: &Arc<dyn Store>) -> Leases {
    let builder = Leases::builder(store.clone());
    builder.call_timeout(PATIENCE).build()
}

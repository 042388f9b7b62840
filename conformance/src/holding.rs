//! Leases that are kept alive, lost, waited for and closed, on a store.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, after, ensure, fresh_key, guard::pair, sole_holder,
    state, until_free, violation,
};
use leasehold::{Attempt, Error, LossReason, WithError};

/// A time to live that is renewed often enough for a property to see it, on a slow machine too.
const KEPT: Duration = Duration::from_secs(2);

/// A lease that is kept alive is held without a break, by the server's clock, for longer than its ttl.
pub async fn a_kept_lease_outlives_its_ttl(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("keep alive")?;
    let lease = first.acquire(&key, KEPT).keep_alive().await?;
    let long_after = after(lease.acquired_at(), KEPT * 2);
    let start = Instant::now();
    loop {
        let holder = sole_holder(&clients.second, &key).await?;
        ensure!(
            holder.lease == lease.id() && holder.fence == lease.fence() && lease.is_live(),
            "{holder:?} holds a key whose lease {} is kept alive",
            lease.id()
        );
        if state(&clients.second, &key).await?.now > long_after {
            break;
        }
        ensure!(start.elapsed() < PATIENCE, "the server's clock stands");
        sleep(LOOK * 20).await;
    }
    match second.try_acquire(&key, LONG).await? {
        Attempt::Held(_) => lease.release().await?,
        Attempt::Acquired(_) => return violation("a kept lease was taken over"),
    }
    until_free(&clients.second, &key).await
}

/// A lease that is kept alive and evicted is lost for its holder with one of the next renewals, which
/// does not touch the next holder.
pub async fn a_kept_lease_that_is_evicted_is_lost(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("evict a kept lease")?;
    let lease = first.acquire(&key, KEPT).keep_alive().await?;
    let token = lease.cancellation_token();
    second.evict(&key).await?;
    let next = second.acquire(&key, LONG).wait_for(PATIENCE).await?;
    let Ok(reason) = timeout(PATIENCE, lease.lost()).await else {
        return violation("the holder of an evicted lease never heard of it");
    };
    ensure!(
        matches!(reason, LossReason::TakenOver),
        "an evicted lease is lost because {reason}"
    );
    ensure!(
        !lease.is_live() && timeout(PATIENCE, token.cancelled()).await.is_ok(),
        "a lost lease looks live"
    );
    drop(lease);
    let holder = sole_holder(&clients.first, &key).await?;
    ensure!(
        holder.lease == next.id(),
        "{holder:?} holds the key that was granted to {}",
        next.id()
    );
    next.release().await?;
    Ok(())
}

/// Work under a lease holds the key until it ends, whether well, badly or by the loss of the lease, and
/// not longer.
pub async fn work_under_a_lease_holds_the_key_until_it_ends(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("with")?;
    let held = first.acquire(&key, LONG).with(async |lease| {
        let holder = sole_holder(&clients.second, &key).await?;
        ensure!(holder.lease == lease.id(), "{holder:?} holds the key");
        Ok(lease.fence())
    });
    let fence = match held.await {
        Ok(fence) => fence,
        Err(WithError::Body(found)) => return Err(found),
        Err(error) => return violation(error.to_string()),
    };
    ensure!(
        state(&clients.second, &key).await?.is_free(),
        "the key is held after the work under the lease {fence}"
    );

    let failing = first.acquire(&key, LONG).with(async |_| Err::<(), _>(7));
    let outcome = failing.await;
    ensure!(
        matches!(outcome, Err(WithError::Body(7))),
        "failing work ended with {outcome:?}"
    );
    ensure!(
        state(&clients.second, &key).await?.is_free(),
        "the key is held after work that failed"
    );

    let losing = first.acquire(&key, KEPT).with(async |_| {
        second.evict(&key).await?;
        sleep(PATIENCE).await;
        Ok::<_, Error>(())
    });
    let outcome = losing.await;
    ensure!(
        matches!(
            outcome,
            Err(WithError::Lost {
                reason: LossReason::TakenOver,
                ..
            })
        ),
        "work whose lease was evicted ended with {outcome:?}"
    );
    Ok(())
}

/// Tasks that wait for a key through the same handle are granted it one after the other, in the order
/// in which they came, with rising fences.
pub async fn waiters_of_one_process_take_turns(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("queue")?;
    let holder = second.acquire(&key, LONG).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..10 {
        let (first, key, served) = (first.clone(), key.clone(), served.clone());
        waiters.push(tokio::spawn(async move {
            let lease = first.acquire(&key, LONG).wait_for(PATIENCE).await?;
            served.lock().push((number, lease.fence()));
            lease.release().await
        }));
        // Time enough to stand in line, which takes no answer of a server.
        sleep(LOOK).await;
    }
    holder.release().await?;
    for waiter in waiters {
        waiter.await??;
    }
    let served = served.lock();
    let order: Vec<_> = served.iter().map(|(number, _)| *number).collect();
    ensure!(
        order == (0..10).collect::<Vec<_>>(),
        "waiters were served in the order {order:?}"
    );
    ensure!(
        served.is_sorted_by(|(_, one), (_, next)| one < next),
        "the fences of waiters did not rise: {served:?}"
    );
    Ok(())
}

/// A waiter that is dropped while it asks for all leaves the next one its place.
pub async fn a_waiter_that_goes_away_holds_up_nobody(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("gone")?;
    let holder = second.acquire(&key, LONG).await?;
    let wait = || tokio::spawn(first.acquire(&key, LONG).wait_for(PATIENCE).into_future());
    let gone = wait();
    sleep(LOOK).await;
    let stays = wait();
    sleep(LOOK * 5).await;
    gone.abort();
    holder.release().await?;
    stays.await??.release().await?;
    until_free(&clients.second, &key).await
}

/// A close releases what is held, ends the waits, and lets nothing be acquired after it.
pub async fn a_close_releases_everything(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let keys = [
        fresh_key("close")?,
        fresh_key("close")?,
        fresh_key("close")?,
    ];
    let [kept, plain, others] = &keys;
    let lease = first.acquire(kept, LONG).keep_alive().await?;
    drop(first.acquire(plain, LONG).await?);
    let holder = second.acquire(others, LONG).await?;
    let waiter = tokio::spawn(first.acquire(others, LONG).into_future());
    sleep(LOOK * 5).await;
    first.close().await;
    for key in [kept, plain] {
        ensure!(
            state(&clients.second, key).await?.is_free(),
            "{key} is held after a close"
        );
    }
    let waited = waiter.await?;
    ensure!(
        matches!(waited, Err(Error::Closed)),
        "a wait ended by a close with {waited:?}"
    );
    let late = first.try_acquire(kept, LONG).await;
    ensure!(
        matches!(late, Err(Error::Closed)) && !lease.is_live(),
        "after a close an acquire answers {late:?}"
    );
    let found = sole_holder(&clients.first, others).await?;
    ensure!(
        found.lease == holder.id(),
        "a close released another's lock"
    );
    holder.release().await?;
    Ok(())
}

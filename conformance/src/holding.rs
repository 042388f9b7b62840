//! Leases that are kept alive, lost, waited for and closed, on a store.

use std::{sync::Arc, time::Duration};

use futures::future::poll_immediate;
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, Violation, after, ensure, fresh_key,
    guard::pair, in_time, sole_holder, state, until_free, violation, with_time_enough,
};
use leasehold::{Attempt, Error, Key, Lease, Leases, LossReason, WithError};

/// A lease that is kept alive is held without a break, by the server's clock, for longer than its ttl.
pub async fn a_kept_lease_outlives_its_ttl(clients: &Clients) -> Outcome {
    with_time_enough(async |ttl| kept_for_two_ttls(clients, ttl).await).await
}

async fn kept_for_two_ttls(clients: &Clients, ttl: Duration) -> Result<Lived, Violation> {
    let (first, second) = pair(clients);
    let key = fresh_key("keep alive")?;
    let Some(lease) = in_time(first.acquire(&key, ttl).keep_alive().await)? else {
        return Ok(Lived::TooShort);
    };
    let long_after = after(lease.acquired_at(), ttl * 2);
    let start = Instant::now();
    loop {
        let found = state(&clients.second, &key).await?;
        // This is read after the inspection: if the lease is live now, it was the holder during the inspection.
        let live = lease.is_live();
        let holds = found
            .holders
            .iter()
            .any(|it| it.lease == lease.id() && it.fence >= lease.fence());
        ensure!(
            holds || !live,
            "{:?} hold a key whose lease {} is kept alive",
            found.holders,
            lease.id()
        );
        match live {
            false => return over_for_want_of_time(&lease.lost().await),
            true if found.now > long_after => break,
            true => {}
        }
        ensure!(
            start.elapsed() < ttl * 2 + PATIENCE,
            "the server's clock stands"
        );
        sleep(LOOK * 20).await;
    }
    match second.try_acquire(&key, LONG).await? {
        Attempt::Acquired(_) if lease.is_live() => {
            return violation("a kept lease was taken over");
        }
        Attempt::Acquired(_) => return over_for_want_of_time(&lease.lost().await),
        Attempt::Held(_) => match lease.release().await {
            Err(Error::Lost { reason, .. }) => return over_for_want_of_time(&reason),
            released => released?,
        },
    }
    until_free(&clients.second, &key).await?;
    Ok(Lived::LongEnough)
}

/// Accepts the loss of a lease that was not renewed in time. If a lease is taken over although its holder still counts
/// on it, the store has violated the property.
fn over_for_want_of_time(reason: &LossReason) -> Result<Lived, Violation> {
    match reason {
        LossReason::Unreachable(_) | LossReason::Expired => Ok(Lived::TooShort),
        other => violation(format!("a kept lease is lost because {other}")),
    }
}

/// If a lease is kept alive and evicted, its holder learns of the loss with one of the next renewals. That renewal does
/// not affect the next holder.
pub async fn a_kept_lease_that_is_evicted_is_lost(clients: &Clients) -> Outcome {
    with_time_enough(async |ttl| evicted_and_lost(clients, ttl).await).await
}

async fn evicted_and_lost(clients: &Clients, ttl: Duration) -> Result<Lived, Violation> {
    let (first, second) = pair(clients);
    let key = fresh_key("evict a kept lease")?;
    let Some(lease) = in_time(first.acquire(&key, ttl).keep_alive().await)? else {
        return Ok(Lived::TooShort);
    };
    let token = lease.cancellation_token();
    second.evict(&key).await?;
    let next = second.acquire(&key, LONG).wait_for(PATIENCE).await?;
    let Ok(reason) = timeout(PATIENCE, lease.lost()).await else {
        return violation("the holder of an evicted lease never heard of it");
    };
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
    of_an_eviction(&reason)
}

/// Accepts a loss by the eviction. If the lease was not renewed in time, it ended before its holder learned of that.
fn of_an_eviction(reason: &LossReason) -> Result<Lived, Violation> {
    match reason {
        LossReason::TakenOver => Ok(Lived::LongEnough),
        other => over_for_want_of_time(other),
    }
}

/// Work under a lease holds the key until the work ends, whether it succeeds, fails or is stopped by the loss of the
/// lease, and not longer.
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

    let losing = async |ttl| {
        let losing = first.acquire(&key, ttl).with(async |_| {
            second.evict(&key).await?;
            sleep(PATIENCE).await;
            Ok::<_, Error>(())
        });
        match losing.await {
            Err(WithError::Lost { reason, .. }) => of_an_eviction(&reason),
            Err(WithError::NotAcquired(Error::TimedOut { .. } | Error::NotTaken { .. })) => {
                Ok(Lived::TooShort)
            }
            outcome => violation(format!(
                "work whose lease was evicted ended with {outcome:?}"
            )),
        }
    };
    with_time_enough(losing).await
}

/// Starts a task that waits for the key. After its first poll it has its place in the queue.
async fn stands_in_line(leases: &Leases, key: &Key) -> JoinHandle<Result<Lease, Error>> {
    let mut waits = leases.acquire(key, LONG).wait_for(PATIENCE).into_future();
    match poll_immediate(&mut waits).await {
        Some(outcome) => tokio::spawn(async { outcome }),
        None => tokio::spawn(waits),
    }
}

/// Tasks that wait for a key through the same handle are granted it one after the other, in the order in which they
/// came, with rising fences.
pub async fn waiters_of_one_process_take_turns(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("queue")?;
    let holder = second.acquire(&key, LONG).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..10 {
        let (waiter, served) = (stands_in_line(&first, &key).await, served.clone());
        waiters.push(tokio::spawn(async move {
            let lease = waiter.await??;
            served.lock().push((number, lease.fence()));
            Ok::<_, Violation>(lease.release().await?)
        }));
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

/// If the waiter that asks for all is dropped, the next one takes its place.
pub async fn a_waiter_that_goes_away_holds_up_nobody(clients: &Clients) -> Outcome {
    let (first, second) = pair(clients);
    let key = fresh_key("gone")?;
    let holder = second.acquire(&key, LONG).await?;
    let gone = stands_in_line(&first, &key).await;
    let stays = stands_in_line(&first, &key).await;
    sleep(LOOK * 5).await;
    gone.abort();
    holder.release().await?;
    stays.await??.release().await?;
    until_free(&clients.second, &key).await
}

/// A close releases every held lease and ends the waits. Nothing can be acquired after it.
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

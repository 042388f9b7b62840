//! Leases that stay with their process after their last use, on a store.

use std::future::pending;

use leasehold::{Attempt, Error, Fence, Leases, LossReason, WithError};
use tokio::{
    spawn,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{Clients, LONG, LOOK, Outcome, PATIENCE, ensure, fresh_key, violation};

/// A key whose lease stays with a process is granted there from memory, with rising fences. Other processes are refused
/// it, and one that waits is granted it, with a greater fence. After that it does not stay for a while.
pub async fn a_key_that_stays_goes_to_a_process_that_waits(clients: &Clients) -> Outcome {
    let here = Leases::new(clients.first.clone());
    let there = Leases::new(clients.second.clone());
    let key = fresh_key("stays")?;
    let before = there.acquire(&key, LONG).await?;
    let mut last = before.fence();
    before.release().await?;
    let mut rises = |fence: Fence| {
        let is_greater = fence > last;
        last = fence;
        is_greater
    };
    for _ in 0..20 {
        // Far longer than the property takes.
        let lease = here.acquire(&key, LONG).sticky(LONG).await?;
        ensure!(rises(lease.fence()), "a fence did not rise");
        lease.release().await?;
        let Attempt::Held(held) = there.try_acquire(&key, LONG).await? else {
            return violation("a key that stays with a process was granted to another");
        };
        ensure!(
            held.owner() == here.owner(),
            "{held:?} was told of a key that stays"
        );
    }
    let lease = match there.acquire(&key, LONG).wait_for(PATIENCE).await {
        Err(Error::WaitTimedOut { .. }) => {
            return violation("a key that stays was kept from a process that waits");
        }
        lease => lease?,
    };
    ensure!(
        rises(lease.fence()),
        "the fence of the next process did not rise"
    );
    lease.release().await?;
    let lease = here.acquire(&key, LONG).sticky(LONG).await?;
    ensure!(rises(lease.fence()), "a fence did not rise after a recall");
    lease.release().await?;
    let Attempt::Acquired(next) = there.try_acquire(&key, LONG).await? else {
        return violation("a key stayed although another process had just waited for it");
    };
    ensure!(
        rises(next.fence()),
        "the fence of the last grant did not rise"
    );
    next.release().await?;
    here.close().await;
    there.close().await;
    Ok(())
}

/// When another process has evicted a lease that stays, and was granted the key, nobody is granted the key from memory
/// any more: long before the lease would be renewed. A holder from memory learns of its loss, and so does work that runs
/// under such a lease.
pub async fn a_key_that_stays_is_granted_to_nobody_after_an_eviction(clients: &Clients) -> Outcome {
    let here = Leases::new(clients.first.clone());
    let there = Leases::new(clients.second.clone());
    let key = fresh_key("evicted while it stays")?;
    let worked = fresh_key("evicted under work")?;
    // It is renewed after a third of this, which is longer than the patience.
    let held = here.acquire(&key, LONG).sticky(LONG).await?;
    let works = here.acquire(&worked, LONG).sticky(LONG);
    drop(works.clone().await?);
    let (begun, has_begun) = oneshot::channel();
    let works = spawn(works.with(async move |_| {
        begun.send(()).ok();
        pending::<Result<(), Error>>().await
    }));
    ensure!(
        has_begun.await.is_ok(),
        "work under a lease that stays has not begun"
    );
    let mut nexts = Vec::new();
    for key in [&worked, &key] {
        let evicted = there.evict(key).await?.map(|it| it.evicted.len());
        ensure!(evicted == Some(1), "{evicted:?} leases were evicted");
        let Attempt::Acquired(next) = there.try_acquire(key, LONG).await? else {
            return violation("a key was held after its eviction");
        };
        nexts.push(next);
    }
    let start = Instant::now();
    loop {
        let Attempt::Held(by) = here.try_acquire(&key, LONG).await? else {
            return violation("a key was granted beside its holder");
        };
        if by.owner() == there.owner() {
            break;
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "an evicted lease is still held here, by {by:?}"
        );
        sleep(LOOK).await;
    }
    for told in [held.renew().await, held.release().await] {
        let is_told = matches!(
            told,
            Err(Error::Lost {
                reason: LossReason::TakenOver,
                ..
            })
        );
        ensure!(is_told, "a holder was told {told:?} after its eviction");
    }
    let worked = timeout(PATIENCE, works).await;
    let is_told = matches!(
        worked,
        Ok(Ok(Err(WithError::Lost {
            reason: LossReason::TakenOver,
            ..
        })))
    );
    ensure!(is_told, "work under an evicted lease ended with {worked:?}");
    for next in nexts {
        ensure!(next.is_live(), "the next holder has lost its lease");
        next.release().await?;
    }
    here.close().await;
    there.close().await;
    Ok(())
}

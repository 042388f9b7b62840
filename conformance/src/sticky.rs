//! Leases that stay with their process after their last use, on a store.

use leasehold::{Attempt, Error, Fence, Leases};

use super::{Clients, LONG, Outcome, PATIENCE, ensure, fresh_key, violation};

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

//! The races that an article on `MongoDistributedLock` describes, step by step.

use super::{
    Clients, LONG, Outcome, ensure, expired, granted, refused, request, sole_holder, state,
};
use leasehold::store::{ReleaseAnswer, ReleaseRequest};

/// The first race of the article on `MongoDistributedLock`. A and B both see an expired lock. B removes it and takes
/// the key. Then A comes to remove "the expired lock". If that removal were not bounded by the expiry, B would lose the
/// lock that it has just taken, and would not know.
pub async fn two_contenders_see_an_expired_lock(clients: &Clients) -> Outcome {
    let (dead, _) = expired(&clients.first, "two contenders", "dead").await?;
    let key = dead.key;
    let (a, b) = (&clients.first, &clients.second);

    ensure!(state(a, &key).await?.is_free(), "A does not see the expiry");
    ensure!(state(b, &key).await?.is_free(), "B does not see the expiry");

    ensure!(
        b.remove_expired(&key).await?,
        "B could not remove the expired lock"
    );
    let of_b = request(&key, "B", LONG);
    let grant = granted(b, &of_b).await?;

    ensure!(
        !a.remove_expired(&key).await?,
        "A removed the lock that B had just taken"
    );
    let held = refused(a, &request(&key, "A", LONG)).await?;
    ensure!(
        held.owner() == "B",
        "A was told of {} and not of B",
        held.owner()
    );

    let holder = sole_holder(b, &key).await?;
    ensure!(
        (holder.lease, holder.fence, holder.expires_at)
            == (of_b.lease, grant.fence, grant.expires_at),
        "A changed the lock of B: {holder:?}"
    );
    Ok(())
}

/// The second race. The lease of a slow holder expires during its work, the next holder takes the key, and then the
/// slow one releases. A release by key alone would free the lock of the next holder.
pub async fn a_slow_holder_releases_late(clients: &Clients) -> Outcome {
    let (slow, first) = expired(&clients.first, "slow holder", "slow").await?;
    let key = slow.key;

    let next = request(&key, "next", LONG);
    let second = granted(&clients.second, &next).await?;
    ensure!(
        second.fence > first.fence,
        "the resource could not tell the slow holder from the next one: fences {} and {}",
        first.fence,
        second.fence
    );

    let late = ReleaseRequest::new(key.clone(), slow.lease);
    ensure!(
        clients.first.release(&late).await? == ReleaseAnswer::NotHeld,
        "the late release was not refused"
    );
    ensure!(
        sole_holder(&clients.first, &key).await?.lease == next.lease,
        "the late release freed the lock of the next holder"
    );
    refused(&clients.first, &request(&key, "third", LONG)).await?;

    let release = ReleaseRequest::new(key.clone(), next.lease);
    ensure!(
        clients.second.release(&release).await? == ReleaseAnswer::Released,
        "the next holder could not release its own lock"
    );
    granted(&clients.first, &request(&key, "third", LONG)).await?;
    Ok(())
}

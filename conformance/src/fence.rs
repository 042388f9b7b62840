//! The fencing token rises, whatever happens to the lock.

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, ensure, fresh_key, granted, renew, request,
    sole_holder, state, until_free, violation,
};
use leasehold::{
    Fence, Key, Store,
    store::{
        AcquireAnswer, ConvertAnswer, ConvertRequest, LeaseId, ReleaseAnswer, ReleaseRequest,
        RenewAnswer, RenewRequest,
    },
};
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// Each grant has a greater fence than the one before it: after a release, a takeover, an eviction, and even after the
/// document was removed.
pub async fn the_fence_always_rises(clients: &Clients) -> Outcome {
    let key = fresh_key("fence")?;
    let mut last = Fence::new(0);
    let mut rises = |fence: Fence, after: &str| {
        ensure!(
            fence > last,
            "after {after} the fence went from {last} to {fence}"
        );
        last = fence;
        Ok(())
    };
    for _ in 0..20 {
        let lease = request(&key, "quick", LONG);
        rises(granted(&clients.first, &lease).await?.fence, "a release")?;
        let release = ReleaseRequest::new(key.clone(), lease.lease);
        clients.first.release(&release).await?;
    }
    rises(
        granted(&clients.second, &request(&key, "dies", SHORT))
            .await?
            .fence,
        "a release",
    )?;
    until_free(&clients.first, &key).await?;
    rises(
        granted(&clients.first, &request(&key, "heir", LONG))
            .await?
            .fence,
        "an expiry",
    )?;
    match clients.second.evict(&key).await? {
        Some(eviction) => rises(eviction.fence, "an eviction")?,
        None => return violation("a key with a holder had nothing to evict"),
    }
    let stored = state(&clients.first, &key).await?.fence;
    let lease = request(&key, "after the eviction", SHORT);
    let grant = granted(&clients.first, &lease).await?;
    ensure!(
        grant.fence > stored,
        "the fence {stored} after an eviction was given out again as {}",
        grant.fence
    );
    rises(grant.fence, "an eviction")?;
    until_free(&clients.first, &key).await?;
    until_removed(&clients.first, &key).await?;
    rises(
        granted(&clients.second, &request(&key, "anew", LONG))
            .await?
            .fence,
        "the removal of the document",
    )
}

/// Waits until a clean-up removes the document, which it does once the clock has passed the fence.
async fn until_removed(store: &Arc<dyn Store>, key: &Key) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if store.remove_expired(key).await? {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    violation("an expired lock was not removed")
}

/// An eviction removes the leases from the document. An evicted lease cannot be renewed, converted, released or
/// replaced, even if nobody was granted the key since, and whatever the time is.
pub async fn an_evicted_lease_is_no_holder_any_more(clients: &Clients) -> Outcome {
    let key = fresh_key("evicted")?;
    let alone = || request(&key, "alone", LONG);
    for evicted in [vec![alone()], vec![alone().shared(), alone().shared()]] {
        for lease in &evicted {
            granted(&clients.first, lease).await?;
        }
        clients.second.evict(&key).await?;
        for lease in &evicted {
            let lease = lease.lease;
            let renewal = RenewRequest::new(key.clone(), lease, LONG);
            for times in [1, 2] {
                let answers = clients.first.renew(&vec![renewal.clone(); times]).await?;
                let lost = |answer| matches!(answer, Ok(RenewAnswer::TakenOver));
                ensure!(
                    answers.into_iter().all(lost),
                    "an evicted lease was renewed"
                );
            }
            for conversion in [
                ConvertRequest::upgrade(key.clone(), lease),
                ConvertRequest::downgrade(key.clone(), lease),
            ] {
                let answer = clients.first.convert(&conversion).await?;
                ensure!(
                    answer == ConvertAnswer::TakenOver,
                    "the conversion of an evicted lease was answered {answer:?}"
                );
            }
            let next = alone().in_place_of(lease);
            let answer = clients.first.acquire(&next).await?;
            ensure!(
                matches!(answer, AcquireAnswer::Held(_)),
                "a key was granted in the place of an evicted lease: {answer:?}"
            );
            for release in [
                ReleaseRequest::new(key.clone(), lease),
                ReleaseRequest::new(key.clone(), lease).likely_sole(),
                ReleaseRequest::new(key.clone(), lease).min_hold(LONG, LeaseId::random()),
            ] {
                let answer = clients.first.release(&release).await?;
                ensure!(
                    answer == ReleaseAnswer::NotHeld,
                    "the release of an evicted lease was answered {answer:?}"
                );
            }
        }
        ensure!(
            state(&clients.second, &key).await?.is_free(),
            "an evicted key is not free"
        );
    }
    Ok(())
}

/// An eviction names the holders that it evicted, and frees the key at once. The evicted lease stays lost.
pub async fn an_eviction_frees_the_key(clients: &Clients) -> Outcome {
    let key = fresh_key("eviction")?;
    let none = clients.first.evict(&key).await?;
    ensure!(
        none.is_none(),
        "a key without a document was evicted: {none:?}"
    );
    let evicted = request(&key, "evicted", LONG);
    let grant = granted(&clients.first, &evicted).await?;
    let Some(eviction) = clients.second.evict(&key).await? else {
        return violation("a key with a holder had nothing to evict");
    };
    ensure!(
        eviction
            .evicted
            .iter()
            .map(|holder| holder.lease)
            .eq([evicted.lease]),
        "the eviction of one holder names {:?}",
        eviction.evicted
    );
    ensure!(
        eviction.fence > grant.fence,
        "the eviction of the fence {} has the fence {}",
        grant.fence,
        eviction.fence
    );
    ensure!(
        state(&clients.first, &key).await?.is_free(),
        "an evicted key is not free"
    );
    let answer = renew(&clients.first, &key, evicted.lease, LONG).await?;
    ensure!(
        answer == RenewAnswer::TakenOver,
        "the renewal of an evicted lease was answered {answer:?}"
    );
    let next = request(&key, "next", LONG);
    granted(&clients.first, &next).await?;
    let release = ReleaseRequest::new(key.clone(), evicted.lease);
    ensure!(
        clients.first.release(&release).await? == ReleaseAnswer::NotHeld,
        "an evicted lease could be released"
    );
    ensure!(
        sole_holder(&clients.first, &key).await?.lease == next.lease,
        "the release of an evicted lease freed the next holder's"
    );
    Ok(())
}

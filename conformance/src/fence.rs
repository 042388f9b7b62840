//! The fencing token rises, whatever happens to the lock.

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, Violation, ensure, fresh_key, granted, refused,
    release, renew, request, sole_holder, state, until_free, violation,
};
use leasehold::{
    Fence, Key, Store,
    store::{
        Access, AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer,
        ConvertRequest, Grant, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
        Turn,
    },
};
use std::{num::NonZeroU16, sync::Arc};
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

/// How many fences a grant takes in a property. They put the fence ahead of the clock, by 59 ms.
const BLOCK: NonZeroU16 = NonZeroU16::new(60_000).unwrap();

/// How many fences there are for each millisecond of the server's clock.
const FENCES_PER_MILLI: i64 = 1_024;

/// A grant takes as many fences in a row as its request asks for, and has the last of them. The first of them is above
/// all earlier ones, and the next grant is above all of them, however the lease ended. A repeated request takes none
/// again, and a refused one takes none.
pub async fn a_grant_takes_as_many_fences_as_it_asks_for(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let other = request(&fresh_key("one fence")?, "one", LONG);
    let time = granted(first, &other).await?.fence;
    for fresh in [false, true] {
        let mut new = request(&fresh_key("many fences, new")?, "new", LONG).fences(BLOCK);
        if fresh {
            new = new.fresh();
        }
        // The fence of a new key is the time, so that of the other key is a time before.
        let before = Fence::new(time.get() - 1);
        in_a_row(&granted_once(clients, &new).await?, &new, before)?;
    }

    let key = fresh_key("many fences")?;
    let ask = || request(&key, "holder", LONG).fences(BLOCK);
    let one = request(&key, "one", LONG);
    let mut last = granted(first, &one).await?.fence;
    release(second, &one).await?;
    let (waiter, stays) = (LeaseId::random(), SHORT);
    let mut held = None;
    for request in [
        ask(),
        ask().likely_held(),
        ask().fresh(),
        ask().turn(Turn::Barging),
        ask().turn(Turn::in_turn(waiter, stays)),
        ask().permits(1, 2)?,
        ask().fences(NonZeroU16::MIN),
        ask().fences(NonZeroU16::MAX),
        ask().shared(),
        ask().shared(),
    ] {
        // Readers share the key. All others are alone.
        let shares = request.access == Access::Shared;
        if let Some(held) =
            held.take_if(|held: &mut AcquireRequest| held.access != Access::Shared || !shares)
        {
            release(first, &held).await?;
        }
        let grant = granted_once(clients, &request).await?;
        in_a_row(&grant, &request, last)?;
        last = grant.fence;
        held = Some(request);
    }
    // A refused request takes none, in its place or without one.
    for request in [ask(), ask().turn(Turn::in_turn(waiter, SHORT))] {
        refused(second, &request).await?;
    }
    let stored = state(first, &key).await?.fence;
    ensure!(
        stored == last,
        "two refused requests took the fence from {last} to {stored}"
    );
    second.leave(&key, waiter).await?;
    let Some(eviction) = first.evict(&key).await? else {
        return violation("a key with two readers had nothing to evict");
    };
    ensure!(
        eviction.fence > last,
        "the eviction of the fence {last} has the fence {}",
        eviction.fence
    );
    let expires = request(&key, "expires", SHORT).fences(BLOCK);
    let grant = granted(first, &expires).await?;
    in_a_row(&grant, &expires, eviction.fence)?;
    until_free(first, &key).await?;
    let after = ask();
    let before = grant.fence;
    let grant = granted_once(clients, &after).await?;
    in_a_row(&grant, &after, before)?;
    // The lease of an owner that enters its own has the same fence. It takes none.
    let enters = ask().reentrant();
    let entered = granted_once(clients, &enters).await?;
    ensure!(
        entered.fence == grant.fence,
        "the fence {} was entered with {}",
        grant.fence,
        entered.fence
    );
    for lease in [&after, &enters] {
        release(first, lease).await?;
    }
    let last = request(&key, "last", LONG).fences(NonZeroU16::MIN);
    in_a_row(&granted(first, &last).await?, &last, grant.fence)?;
    in_a_batch(clients).await
}

/// Several grants of one call take as many fences as each of them asks for.
async fn in_a_batch(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let mut requests = Vec::new();
    let mut last = Vec::new();
    for fences in [BLOCK, NonZeroU16::MIN, NonZeroU16::MAX, BLOCK] {
        let early = request(&fresh_key("many fences, in a batch")?, "early", LONG);
        let early = early.fences(BLOCK);
        last.push(granted(first, &early).await?.fence);
        release(first, &early).await?;
        requests.push(request(&early.key, "holder", LONG).fences(fences));
    }
    // A reader beside another.
    let [early, late] = ["early", "late"].map(|owner| request(&requests[0].key, owner, LONG));
    let (early, late) = (early.shared().fences(BLOCK), late.shared().fences(BLOCK));
    let grant = granted(first, &early).await?;
    in_a_row(&grant, &early, last[0])?;
    (last[0], requests[0]) = (grant.fence, late);
    let calls = requests.iter().cloned();
    let calls: Vec<_> = calls
        .map(|it| BatchRequest::Acquire(Arc::new(it)))
        .collect();
    let mut fences = Vec::new();
    for again in [false, true] {
        let answers = second.batch(&calls).await?;
        ensure!(
            answers.len() == calls.len(),
            "{} requests have {} answers",
            calls.len(),
            answers.len()
        );
        for (number, answer) in answers.into_iter().enumerate() {
            let BatchAnswer::Acquire(AcquireAnswer::Granted(grant)) = answer? else {
                return violation(format!("{:?} was not granted", requests[number]));
            };
            if again {
                ensure!(
                    fences[number] == grant.fence,
                    "a repeated request in a batch has the fence {} after {}",
                    grant.fence,
                    fences[number]
                );
            } else {
                in_a_row(&grant, &requests[number], last[number])?;
                fences.push(grant.fence);
            }
        }
    }
    Ok(())
}

/// The grant of a request that is sent twice, by two clients. Its fence must be the same, and the stored one.
async fn granted_once(clients: &Clients, request: &AcquireRequest) -> Result<Grant, Violation> {
    let grant = granted(&clients.first, request).await?;
    let again = granted(&clients.second, request).await?;
    ensure!(
        again.fence == grant.fence,
        "a repeated request has the fence {} after {}",
        again.fence,
        grant.fence
    );
    let seen = state(&clients.second, &request.key).await?;
    let mut holders = seen.holders.iter();
    let holder = holders.find(|holder| holder.lease == request.lease);
    ensure!(
        holder.is_some_and(|holder| holder.fence == grant.fence) && seen.fence >= grant.fence,
        "the fence {} is stored as {seen:?}",
        grant.fence
    );
    Ok(grant)
}

/// Checks that the first fence of this grant is the one after the last, or later if the clock has passed that.
fn in_a_row(grant: &Grant, request: &AcquireRequest, last: Fence) -> Outcome {
    let end = last.get() + i64::from(request.fences.get());
    let is_right = match grant.acquired_at.timestamp_millis() > last.get() / FENCES_PER_MILLI {
        true => grant.fence.get() >= end,
        false => grant.fence.get() == end,
    };
    ensure!(
        is_right,
        "after the fence {last}, a grant that takes {} has {}",
        request.fences,
        grant.fence
    );
    Ok(())
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

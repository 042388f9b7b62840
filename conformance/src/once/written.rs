//! When a release marks a tick as done, and when it does not.

use super::{asks, complete, does, last, told_done};
use crate::{
    Clients, LONG, Outcome, SHORT, ensure, fresh_key, granted, release, renew, request, until_free,
};
use leasehold::{
    jobs::Tick,
    store::{ReleaseAnswer, ReleaseRequest, RenewAnswer},
};

/// The release of a lease that has expired, was evicted or was taken over does not mark its tick as done, and says so.
/// The next request is granted the tick.
pub async fn nothing_is_done_under_a_lease_that_is_lost(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let tick = Tick::counter(7);
    for before in [None, Some(Tick::counter(6))] {
        for shared in [false, true] {
            let is_lost = async |key, lost, what: &str| {
                let answer = complete(first, lost).await?;
                ensure!(
                    answer == ReleaseAnswer::NotHeld,
                    "a lease that {what} was released with its tick: {answer:?}"
                );
                let done = last(second, key).await?.map(|done| done.tick);
                ensure!(
                    done == before,
                    "{before:?} was done, and under a lease that {what} {done:?} was"
                );
                Ok(())
            };
            let key = fresh_key("lost")?;
            if let Some(before) = before {
                does(first, &key, "before", before).await?;
            }
            let of = |mut lease: leasehold::store::AcquireRequest| {
                if shared {
                    lease = lease.shared();
                }
                lease.tick(tick)
            };
            let lost = of(request(&key, "too slow", SHORT));
            granted(first, &lost).await?;
            until_free(second, &key).await?;
            is_lost(&key, &lost, "has expired").await?;
            let renewed = renew(second, &key, lost.lease, LONG).await?;
            ensure!(
                renewed == RenewAnswer::Expired,
                "a release that wrote nothing has a renewal answered {renewed:?}"
            );
            let next = of(request(&key, "the next", LONG));
            granted(second, &next).await?;
            is_lost(&key, &lost, "was taken over").await?;
            second.evict(&key).await?;
            is_lost(&key, &next, "was evicted").await?;
            does(second, &key, "in the end", tick).await?;
            is_done_by(clients, &key, "in the end").await?;
        }
    }
    // Two leases that share the key are for two ticks, and the later tick is done first.
    let key = fresh_key("two ticks")?;
    let [older, newer] = [7, 8].map(|it| asks(&key, "one of two", Tick::counter(it)).shared());
    granted(first, &older).await?;
    granted(second, &newer).await?;
    let answers = [
        complete(second, &newer).await?,
        complete(first, &older).await?,
    ];
    let done = last(first, &key).await?.map(|done| done.tick);
    ensure!(
        answers == [ReleaseAnswer::Released, ReleaseAnswer::NotHeld]
            && done == Some(Tick::counter(8)),
        "the releases of a later and of an older tick were answered {answers:?}, and left {done:?}"
    );
    let key = fresh_key("nobody had it")?;
    let answer = complete(first, &asks(&key, "nobody", tick)).await?;
    ensure!(
        answer == ReleaseAnswer::NotHeld && second.inspect(&key).await?.is_none(),
        "the release of a lease that never was is answered {answer:?}"
    );
    Ok(())
}

async fn is_done_by(clients: &Clients, key: &leasehold::Key, owner: &str) -> Outcome {
    for store in [&clients.first, &clients.second] {
        let done = told_done(store, &asks(key, "another", Tick::counter(7))).await?;
        ensure!(&*done.by == owner, "{owner} has done it, and not {done:?}");
    }
    Ok(())
}

/// A release that is repeated because its answer was lost finds what the first one wrote, and leaves it as it is, even
/// while another lease holds the key. If a later tick was done, it finds that one.
pub async fn a_repeated_release_finds_the_tick_that_it_wrote(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("repeated")?;
    let tick = Tick::counter;
    let earlier = does(first, &key, "who does it", tick(7)).await?;
    let written = last(first, &key).await?;
    let again = async |expected: ReleaseAnswer, place: &str| {
        for store in [first, second, first] {
            let answer = complete(store, &earlier).await?;
            ensure!(
                answer == expected,
                "{place} a repeated release was answered {answer:?}"
            );
        }
        Ok::<_, crate::Violation>(())
    };
    again(ReleaseAnswer::Released, "after the first one").await?;
    let later = asks(&key, "the next", tick(8));
    let grant = granted(second, &later).await?;
    again(ReleaseAnswer::Released, "while the next has the key").await?;
    let holder = crate::sole_holder(first, &key).await?;
    ensure!(
        (holder.lease, holder.fence) == (later.lease, grant.fence),
        "a repeated release has left {holder:?}"
    );
    let found = last(second, &key).await?;
    ensure!(found == written, "{written:?} became {found:?}");
    for (lease, number) in [(earlier.lease, 9), (leasehold::store::LeaseId::random(), 7)] {
        let other = ReleaseRequest::new(key.clone(), lease).done(tick(number), LONG);
        let answer = first.release(&other).await?;
        ensure!(
            answer == ReleaseAnswer::NotHeld,
            "a release that wrote nothing was answered {answer:?}"
        );
    }
    let answer = complete(second, &later).await?;
    ensure!(answer == ReleaseAnswer::Released, "{answer:?}");
    again(ReleaseAnswer::NotHeld, "after a later tick was done").await?;
    let found = last(first, &key).await?.map(|done| done.tick);
    ensure!(found == Some(tick(8)), "8 is done, and not {found:?}");
    Ok(())
}

/// A job that fails releases its lease, or lets it expire. The next request is then granted the same tick.
pub async fn a_tick_that_was_not_done_is_granted_to_the_next(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("not done")?;
    let tick = Tick::counter(7);
    let fails = asks(&key, "it fails", tick);
    granted(first, &fails).await?;
    release(first, &fails).await?;
    let fails = asks(&key, "it fails alone", tick);
    granted(second, &fails).await?;
    let alone = ReleaseRequest::new(key.clone(), fails.lease).likely_sole();
    second.release(&alone).await?;
    let dies = request(&key, "it dies", SHORT).tick(tick);
    granted(first, &dies).await?;
    until_free(first, &key).await?;
    let hangs = asks(&key, "it hangs", tick);
    granted(second, &hangs).await?;
    first.evict(&key).await?;
    let done = last(second, &key).await?;
    ensure!(done.is_none(), "nothing was done, and {done:?} is");
    does(second, &key, "it works", tick).await?;
    is_done_by(clients, &key, "it works").await
}

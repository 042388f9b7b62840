//! Renewals that tell whether the holder uses its key.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep};

use super::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, Violation, ensure, fresh_key, granted, refused,
    release, request, state, until_free, violation, with_time_enough,
};
use leasehold::{
    Filter, Holder, Key,
    store::{
        AcquireRequest, ConvertAnswer, ConvertRequest, Grant, KnownGrant, ListRequest, RenewAnswer,
        RenewRequest, Usage,
    },
};

/// A renewal tells since when the holder does not use the key, and the state, the list and each refusal show it. It is
/// the time of the first renewal that says so, until one says that the key is in use. A renewal that does not say it
/// changes nothing. The next lease begins without that time, however the one before it ended.
pub async fn a_renewal_tells_whether_the_lease_is_in_use(clients: &Clients) -> Outcome {
    a_sole_holder_is_idle(clients).await?;
    one_of_several_is_idle(clients).await?;
    a_holder_stays_idle_beside_another(clients).await?;
    usages_of_one_call_are_told_apart(clients).await?;
    no_lease_inherits_the_usage(clients).await
}

/// How many locks a store reads for a page. The property has fewer.
const READ: usize = 100;

fn renewal(lease: &AcquireRequest, usage: Usage) -> RenewRequest {
    RenewRequest::new(lease.key.clone(), lease.lease, LONG).usage(usage)
}

fn known(grant: &Grant) -> KnownGrant {
    KnownGrant {
        fence: grant.fence,
        acquired_at: grant.acquired_at,
    }
}

/// Renews all of these leases in one call.
async fn renewed(clients: &Clients, renewals: &[RenewRequest]) -> Outcome {
    let answers = clients.second.renew(renewals).await?;
    ensure!(
        answers.len() == renewals.len(),
        "{} renewals have {} answers",
        renewals.len(),
        answers.len()
    );
    for (renewal, answer) in renewals.iter().zip(answers) {
        let answer = answer?;
        ensure!(
            matches!(answer, RenewAnswer::Renewed(_)),
            "{renewal:?} of a live lease was answered {answer:?}"
        );
    }
    Ok(())
}

/// Since when the holder of this lease does not use its key. The state, a refusal and the list must agree.
async fn idle_since(
    clients: &Clients,
    lease: &AcquireRequest,
) -> Result<Option<DateTime<Utc>>, Violation> {
    let of_lease = |holders: &[Holder]| {
        let mut holders = holders.iter();
        let mine = holders.find(|holder| holder.lease == lease.lease);
        mine.map(|holder| holder.idle_since)
    };
    let stored = of_lease(&state(&clients.first, &lease.key).await?.holders);
    let Some(idle_since) = stored else {
        return violation(format!("{} is no holder", lease.owner));
    };
    let held = refused(&clients.second, &request(&lease.key, "asks", LONG)).await?;
    ensure!(
        of_lease(held.holders()) == stored,
        "a holder that is idle since {idle_since:?} is shown by a refusal as {:?}",
        held.holders()
    );
    // The list of a search engine may be a moment out of date.
    let start = Instant::now();
    let filter = Filter::new().prefix(lease.key.as_str());
    loop {
        let page = ListRequest::new(filter.clone(), None, READ);
        let listed = clients.second.list(&page).await?.locks;
        match &listed[..] {
            [lock] if of_lease(&lock.holders) == stored => return Ok(idle_since),
            _ if start.elapsed() > PATIENCE => {
                return violation(format!(
                    "a holder that is idle since {idle_since:?} is listed as {listed:?}"
                ));
            }
            _ => sleep(LOOK).await,
        }
    }
}

/// Waits until the server's clock is past this time, so that a later time differs from it.
async fn until_past(clients: &Clients, key: &Key, at: DateTime<Utc>) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if state(&clients.first, key).await?.now > at {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    violation(format!("the server's clock did not pass {at}"))
}

/// Renews this lease with each usage, alone and with what its holder knows of its grant.
async fn tells_each_usage(clients: &Clients, lease: &AcquireRequest, grant: &Grant) -> Outcome {
    for knows in [false, true] {
        let renew = async |usage| {
            let mut renewal = renewal(lease, usage);
            if knows {
                renewal = renewal.known(known(grant));
            }
            renewed(clients, &[renewal]).await?;
            idle_since(clients, lease).await
        };
        for usage in [Usage::Unmarked, Usage::InUse] {
            let shown = renew(usage).await?;
            ensure!(
                shown.is_none(),
                "a holder that never was idle was renewed with {usage:?}, and is idle since {shown:?}"
            );
        }
        let before = state(&clients.first, &lease.key).await?.now;
        let since = renew(Usage::Idle).await?;
        let now = state(&clients.first, &lease.key).await?.now;
        let Some(at) = since else {
            return violation("a renewal said that the holder is idle, and it was not stored");
        };
        ensure!(
            before <= at && at <= now,
            "a holder that was idle from a time between {before} and {now} is idle since {at}"
        );
        until_past(clients, &lease.key, at).await?;
        for usage in [Usage::Idle, Usage::Unmarked] {
            let shown = renew(usage).await?;
            ensure!(
                shown == since,
                "a holder that is idle since {at} was renewed with {usage:?}, and is idle since \
                 {shown:?}"
            );
        }
        let shown = renew(Usage::InUse).await?;
        ensure!(
            shown.is_none(),
            "a holder that uses its key is idle since {shown:?}"
        );
    }
    Ok(())
}

async fn a_sole_holder_is_idle(clients: &Clients) -> Outcome {
    let lease = request(&fresh_key("idle, alone")?, "alone", LONG);
    let grant = granted(&clients.first, &lease).await?;
    let shown = idle_since(clients, &lease).await?;
    ensure!(shown.is_none(), "a new holder is idle since {shown:?}");
    tells_each_usage(clients, &lease, &grant).await
}

async fn one_of_several_is_idle(clients: &Clients) -> Outcome {
    let key = fresh_key("idle, shared")?;
    let [early, one, late] =
        ["early", "one", "late"].map(|owner| request(&key, owner, LONG).shared());
    granted(&clients.first, &early).await?;
    let grant = granted(&clients.first, &one).await?;
    granted(&clients.first, &late).await?;
    renewed(clients, &[renewal(&late, Usage::Idle)]).await?;
    let before = idle_since(clients, &late).await?;
    ensure!(before.is_some(), "the last of three readers is not idle");
    tells_each_usage(clients, &one, &grant).await?;
    // The other holders are as they were.
    for (lease, expected) in [(&early, None), (&late, before)] {
        let shown = idle_since(clients, lease).await?;
        ensure!(
            shown == expected,
            "a reader was renewed, and another that is idle since {expected:?} is idle since \
             {shown:?}"
        );
    }
    Ok(())
}

/// A store may write a sole holder in another way than several.
async fn a_holder_stays_idle_beside_another(clients: &Clients) -> Outcome {
    let lease = request(&fresh_key("idle, re-entered")?, "both", LONG);
    granted(&clients.first, &lease).await?;
    renewed(clients, &[renewal(&lease, Usage::Idle)]).await?;
    let since = idle_since(clients, &lease).await?;
    ensure!(since.is_some(), "a sole holder is not idle");
    let beside = request(&lease.key, "both", LONG).reentrant();
    granted(&clients.second, &beside).await?;
    let shown = [
        idle_since(clients, &lease).await?,
        idle_since(clients, &beside).await?,
    ];
    ensure!(
        shown == [since, None],
        "a holder that is idle since {since:?} and one that entered its lease are idle since \
         {shown:?}"
    );
    renewed(clients, &[renewal(&lease, Usage::InUse)]).await?;
    let shown = idle_since(clients, &lease).await?;
    ensure!(
        shown.is_none(),
        "a holder that uses its key again is idle since {shown:?}"
    );

    let lease = request(&fresh_key("idle, downgraded")?, "reads", LONG);
    granted(&clients.first, &lease).await?;
    renewed(clients, &[renewal(&lease, Usage::Idle)]).await?;
    let since = idle_since(clients, &lease).await?;
    let downgrade = ConvertRequest::downgrade(lease.key.clone(), lease.lease);
    let answer = clients.first.convert(&downgrade).await?;
    ensure!(
        matches!(answer, ConvertAnswer::Converted(_)),
        "a downgrade was answered {answer:?}"
    );
    let shown = idle_since(clients, &lease).await?;
    ensure!(
        shown == since && since.is_some(),
        "a holder that was idle since {since:?} is idle since {shown:?} after its downgrade"
    );
    Ok(())
}

async fn usages_of_one_call_are_told_apart(clients: &Clients) -> Outcome {
    use Usage::{Idle, InUse, Unmarked};
    // What each holder said before the call, and what it says in the call.
    let said = [
        (Unmarked, Idle),
        (Idle, InUse),
        (Idle, Unmarked),
        (Idle, Idle),
        (Unmarked, Unmarked),
        (Unmarked, InUse),
    ];
    let mut leases = Vec::new();
    for (number, (before, usage)) in said.into_iter().enumerate() {
        let lease = request(&fresh_key(&format!("usage {number}"))?, "alone", LONG);
        let grant = granted(&clients.first, &lease).await?;
        leases.push((lease, Some(known(&grant)), before, usage));
    }
    let shared = fresh_key("usages of readers")?;
    for (before, usage) in said {
        let lease = request(&shared, "a reader", LONG).shared();
        granted(&clients.first, &lease).await?;
        leases.push((lease, None, before, usage));
    }
    let first = leases.iter();
    let first = first.map(|(lease, _, before, _)| renewal(lease, *before));
    renewed(clients, &first.collect::<Vec<_>>()).await?;
    let mut earlier = Vec::new();
    for (lease, _, before, _) in &leases {
        let since = idle_since(clients, lease).await?;
        ensure!(
            since.is_some() == (*before == Idle),
            "a holder that was renewed with {before:?} is idle since {since:?}"
        );
        earlier.push(since);
    }
    if let Some(last) = earlier.iter().flatten().max() {
        until_past(clients, &shared, *last).await?;
    }
    let next = leases.iter().map(|(lease, known, _, usage)| {
        let renewal = renewal(lease, *usage);
        match known {
            Some(grant) => renewal.known(*grant),
            None => renewal,
        }
    });
    renewed(clients, &next.collect::<Vec<_>>()).await?;
    for ((lease, _, _, usage), since) in leases.iter().zip(earlier) {
        let shown = idle_since(clients, lease).await?;
        let right = match (usage, since) {
            (InUse, _) => shown.is_none(),
            (Idle, None) => shown.is_some(),
            (Idle | Unmarked, since) => shown == since,
        };
        ensure!(
            right,
            "in a call with other renewals, a holder that was idle since {since:?} was renewed \
             with {usage:?}, and is idle since {shown:?}"
        );
    }
    Ok(())
}

async fn no_lease_inherits_the_usage(clients: &Clients) -> Outcome {
    let (first, second) = (&clients.first, &clients.second);
    let is_new = async |next: &AcquireRequest, after: &str| {
        let shown = idle_since(clients, next).await?;
        ensure!(
            shown.is_none(),
            "after {after} of an idle holder, the next one is idle since {shown:?}"
        );
        Ok::<_, Violation>(())
    };
    // The next lease is a sole holder, or is stored as one of several may be.
    for shares in [false, true] {
        let key = fresh_key("idle, and over")?;
        let ask = || match shares {
            true => request(&key, "holder", LONG).shared(),
            false => request(&key, "holder", LONG),
        };
        let mut idle = request(&key, "holder", LONG);
        for after in ["a release", "an eviction", "a handover", "a release"] {
            granted(first, &idle).await?;
            renewed(clients, &[renewal(&idle, Usage::Idle)]).await?;
            let mut next = ask();
            match after {
                "a release" => release(second, &idle).await?,
                "an eviction" => {
                    second.evict(&key).await?;
                }
                _ => next = next.in_place_of(idle.lease),
            }
            granted(second, &next).await?;
            is_new(&next, after).await?;
            release(first, &next).await?;
            // The last round begins with a holder that shares the key, if the others do.
            idle = ask();
        }
    }
    with_time_enough(async |ttl: Duration| {
        let idle = request(&fresh_key("idle, and expired")?, "expires", ttl);
        granted(first, &idle).await?;
        let renewal = RenewRequest::new(idle.key.clone(), idle.lease, ttl).usage(Usage::Idle);
        let answers = second.renew(&[renewal]).await?;
        if !matches!(&answers[..], [Ok(RenewAnswer::Renewed(_))]) {
            return Ok(Lived::TooShort);
        }
        until_free(first, &idle.key).await?;
        let next = request(&idle.key, "next", LONG);
        granted(second, &next).await?;
        is_new(&next, "the expiry").await?;
        Ok(Lived::LongEnough)
    })
    .await
}

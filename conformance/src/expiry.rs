//! A lease ends by the server's clock, and a lease that has ended stays ended.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{Instant, sleep};

use super::{
    Clients, LONG, LOOK, Outcome, PATIENCE, SHORT, after, ensure, expired, fresh_key, granted,
    no_tick, refused, renew, request, sole_holder, state, until_free, violation,
};
use leasehold::{
    Store,
    store::{
        AcquireAnswer, AcquireRequest, Grant, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewRequest,
    },
};

/// A second client that keeps asking is granted the key at the expiry by the server's clock, not earlier, and not much
/// later.
pub async fn takeover_only_after_expiry_on_the_servers_clock(clients: &Clients) -> Outcome {
    let key = fresh_key("takeover")?;
    let first = granted(&clients.first, &request(&key, "first", SHORT)).await?;
    let lifetime = first.expires_at - first.acquired_at;
    ensure!(
        TimeDelta::from_std(SHORT) == Ok(lifetime),
        "a lease of {SHORT:?} lives for {lifetime}"
    );
    let second = request(&key, "second", LONG);
    let start = Instant::now();
    let takeover = loop {
        match clients.second.acquire(&second).await? {
            AcquireAnswer::Granted(grant) => break grant,
            AcquireAnswer::Held(_) if start.elapsed() > PATIENCE => {
                return violation("an expired lease was never taken over");
            }
            AcquireAnswer::Held(_) => sleep(LOOK).await,
            AcquireAnswer::Done(done) => return no_tick(&done),
        }
    };
    ensure!(
        takeover.acquired_at >= first.expires_at,
        "the key was taken over at {}, before the expiry at {}",
        takeover.acquired_at,
        first.expires_at
    );
    // If a takeover's date came from a clock that is ahead, it would look late enough. A third inspection, by the clock
    // of the first client, reveals that.
    let state = state(&clients.first, &key).await?;
    ensure!(
        state.now >= first.expires_at,
        "the key was taken over when the server's clock said {}, before the expiry at {}",
        state.now,
        first.expires_at
    );
    ensure!(
        takeover.fence > first.fence,
        "a takeover has the fence {}, the lease before it {}",
        takeover.fence,
        first.fence
    );
    Ok(())
}

/// If a lease was taken over, its release frees nothing and changes nothing.
pub async fn a_stale_release_is_refused(clients: &Clients) -> Outcome {
    let (stale, _) = expired(&clients.first, "stale release", "stale").await?;
    let next = granted(&clients.second, &request(&stale.key, "next", LONG)).await?;
    let release = ReleaseRequest::new(stale.key.clone(), stale.lease);
    for _ in 0..3 {
        let answer = clients.first.release(&release).await?;
        ensure!(
            answer == ReleaseAnswer::NotHeld,
            "a lease that was taken over could be released"
        );
        holds_as_granted(&clients.first, &stale, &next).await?;
    }
    refused(&clients.first, &request(&stale.key, "third", LONG)).await?;
    Ok(())
}

/// If a lease has expired or was taken over, its renewal revives nothing and changes nothing.
pub async fn a_stale_renewal_is_refused(clients: &Clients) -> Outcome {
    let (stale, _) = expired(&clients.first, "stale renewal", "stale").await?;
    let answer = renew(&clients.first, &stale.key, stale.lease, LONG).await?;
    ensure!(
        answer == RenewAnswer::Expired,
        "the renewal of an expired lease was answered {answer:?}"
    );
    let next = granted(&clients.second, &request(&stale.key, "next", LONG)).await?;
    let answer = renew(&clients.first, &stale.key, stale.lease, LONG).await?;
    ensure!(
        answer == RenewAnswer::TakenOver,
        "the renewal of a lease that was taken over was answered {answer:?}"
    );
    holds_as_granted(&clients.first, &stale, &next).await
}

async fn holds_as_granted(
    store: &std::sync::Arc<dyn Store>,
    stale: &AcquireRequest,
    next: &Grant,
) -> Outcome {
    let holder = sole_holder(store, &stale.key).await?;
    ensure!(
        holder.lease != stale.lease
            && (holder.fence, holder.expires_at) == (next.fence, next.expires_at),
        "a stale holder changed the lease of the next one: {holder:?}"
    );
    Ok(())
}

/// A renewal keeps the fence and the time of the grant, and sets the expiry to a ttl from now.
pub async fn a_renewal_counts_from_now(clients: &Clients) -> Outcome {
    let key = fresh_key("renewal")?;
    let request = request(&key, "holder", LONG);
    let grant = granted(&clients.first, &request).await?;
    for ttl in [LONG * 2, LONG * 3] {
        let answer = renew(&clients.second, &key, request.lease, ttl).await?;
        let RenewAnswer::Renewed(renewed) = answer else {
            return violation(format!("a live lease was not renewed: {answer:?}"));
        };
        // The answer may show a later time than the one that the renewal counts from.
        let counts_from_now =
            renewed.expires_at >= after(grant.now, ttl) && renewed.expires_in() <= ttl;
        ensure!(
            counts_from_now
                && (renewed.fence, renewed.acquired_at) == (grant.fence, grant.acquired_at),
            "a renewal for {ttl:?} made {grant:?} into {renewed:?}"
        );
        let holder = sole_holder(&clients.first, &key).await?;
        ensure!(
            holder.expires_at == renewed.expires_at,
            "a renewal was answered, but not stored: {holder:?}"
        );
    }
    a_renewed_lease_ends(clients).await
}

/// A renewed lease ends when its ttl is over. Its key is then free.
async fn a_renewed_lease_ends(clients: &Clients) -> Outcome {
    let mut ttl = SHORT;
    let key = loop {
        let brief = request(&fresh_key("renewal")?, "brief", ttl);
        granted(&clients.first, &brief).await?;
        match renew(&clients.second, &brief.key, brief.lease, ttl).await? {
            RenewAnswer::Renewed(_) => break brief.key,
            // The machine or the server was so slow that the lease expired first.
            RenewAnswer::Expired if ttl < PATIENCE => ttl *= 4,
            answer => return violation(format!("a live lease was not renewed: {answer:?}")),
        }
    };
    until_free(&clients.first, &key).await?;
    granted(&clients.second, &request(&key, "next", LONG)).await?;
    Ok(())
}

/// A renewal for less time than a lease has left keeps its expiry, and answers with that expiry. So two renewals that
/// cross cannot take back each other's time.
pub async fn a_renewal_never_shortens_a_lease(clients: &Clients) -> Outcome {
    let alone = request(&fresh_key("crossing renewals")?, "holder", LONG);
    let reader = request(&fresh_key("crossing renewals")?, "reader", LONG).shared();
    let other = request(&reader.key, "other", LONG / 2).shared();
    let mut expiries = Vec::new();
    for lease in [&alone, &reader, &other] {
        expiries.push(granted(&clients.first, lease).await?.expires_at);
    }
    let renewal = |lease: &AcquireRequest| RenewRequest::new(lease.key.clone(), lease.lease, SHORT);
    let shorter = [&alone, &reader].map(renewal);
    let mut last = None;
    // Each renewal by itself, and both in one call.
    for requests in [&shorter[..1], &shorter[1..], &shorter[..]] {
        let answers = clients.second.renew(requests).await?;
        ensure!(answers.len() == requests.len(), "renewals without answers");
        for (request, answer) in requests.iter().zip(answers) {
            let first = request.lease == alone.lease;
            let expiry = expiries[usize::from(!first)];
            let RenewAnswer::Renewed(renewed) = answer? else {
                return violation("a live lease was not renewed");
            };
            ensure!(
                renewed.expires_at == expiry,
                "a lease until {expiry} was renewed for {SHORT:?} at {}, and answered until {}",
                renewed.now,
                renewed.expires_at
            );
            last = last.max(Some(renewed.now));
        }
    }
    let shortened = last.map_or(DateTime::<Utc>::MAX_UTC, |last| after(last, SHORT));
    let start = Instant::now();
    // The expiry of the key is as late as that of its holders.
    while state(&clients.first, &alone.key).await?.now <= shortened {
        ensure!(start.elapsed() < PATIENCE, "the server's clock stands");
        sleep(LOOK).await;
    }
    for key in [&alone.key, &reader.key] {
        refused(&clients.second, &request(key, "next", LONG)).await?;
    }
    let mut stored = state(&clients.first, &alone.key).await?.holders;
    stored.extend(state(&clients.first, &reader.key).await?.holders);
    let stored: Vec<_> = stored.iter().map(|holder| holder.expires_at).collect();
    ensure!(
        stored == expiries,
        "renewals for {SHORT:?} made the expiries {expiries:?} into {stored:?}"
    );
    Ok(())
}

/// Many renewals in one call are answered in their order. A renewal of a lost lease does not stop the others.
pub async fn many_renewals_go_in_one_call(clients: &Clients) -> Outcome {
    let mut requests = Vec::new();
    let mut alive = Vec::new();
    for number in 0..20 {
        let lease = request(&fresh_key("batch")?, "holder", LONG);
        match number % 4 {
            // This lease was never granted.
            0 => {}
            // This lease was released.
            1 => {
                granted(&clients.first, &lease).await?;
                let release = ReleaseRequest::new(lease.key.clone(), lease.lease);
                clients.first.release(&release).await?;
            }
            _ => {
                granted(&clients.first, &lease).await?;
            }
        }
        alive.push(number % 4 >= 2);
        requests.push(RenewRequest::new(lease.key, lease.lease, LONG * 2));
    }
    let answers = clients.first.renew(&requests).await?;
    let renewed: Vec<_> = answers
        .iter()
        .map(|answer| matches!(answer, Ok(RenewAnswer::Renewed(grant)) if is_fresh(grant)))
        .collect();
    ensure!(
        renewed == alive,
        "of 20 renewals these should have succeeded: {alive:?}; the answers: {answers:?}"
    );
    let none = clients.first.renew(&[]).await?;
    ensure!(none.is_empty(), "no renewals were answered with {none:?}");
    Ok(())
}

/// A batch is carried out and read back in two steps, so a moment may lie in between.
fn is_fresh(grant: &Grant) -> bool {
    let left = grant.expires_in();
    left > LONG && left <= LONG * 2 + Duration::from_millis(1)
}

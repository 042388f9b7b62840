//! Renewals of leases whose holder knows its grant. A store may count the changed documents instead of reading them,
//! and its answers must still be right.

use super::{
    Clients, LONG, Outcome, SHORT, ensure, expired, fresh_key, granted, request, sole_holder, state,
};
use leasehold::store::{AcquireRequest, Grant, KnownGrant, RenewAnswer, RenewRequest};

/// How many live leases are in the same call as the lost ones.
const NEIGHBOURS: usize = 20;

fn renewal(lease: &AcquireRequest, grant: &Grant) -> RenewRequest {
    let known = KnownGrant {
        fence: grant.fence,
        acquired_at: grant.acquired_at,
    };
    RenewRequest::new(lease.key.clone(), lease.lease, LONG * 2).known(known)
}

/// In a call with many leases whose grants are known, the live ones are renewed, and no others: not a lease that has
/// expired, was taken over, evicted or cleaned up. Each of the leases that share a key is renewed.
pub async fn renewals_of_known_grants_tell_the_live_from_the_dead(clients: &Clients) -> Outcome {
    let mut live = Vec::new();
    for number in 0..NEIGHBOURS {
        let lease = request(&fresh_key(&format!("known {number}"))?, "holder", LONG);
        let grant = granted(&clients.first, &lease).await?;
        live.push((renewal(&lease, &grant), grant));
    }
    // All of these leases are live at first. Then some of them end.
    renewed(clients, &live, &[]).await?;
    let (gone, at) = expired(&clients.first, "known, expired", "gone").await?;
    let (stale, before) = expired(&clients.first, "known, taken over", "stale").await?;
    let next = request(&stale.key, "next", LONG);
    let after = granted(&clients.second, &next).await?;
    let out = request(&fresh_key("known, evicted")?, "out", LONG);
    let evicted = granted(&clients.first, &out).await?;
    clients.second.evict(&out.key).await?;
    let none = request(&fresh_key("known, without a document")?, "none", SHORT);
    let dead = [
        renewal(&gone, &at),
        renewal(&stale, &before),
        renewal(&out, &evicted),
        renewal(&none, &at),
    ];
    // A lease that was exclusive until its owner acquired the key again by re-entry.
    let shared = request(&fresh_key("known, shared")?, "both", LONG);
    let first = granted(&clients.first, &shared).await?;
    let mut beside = request(&shared.key, "both", LONG).reentrant();
    beside.owner = shared.owner.clone();
    granted(&clients.second, &beside).await?;
    live.push((renewal(&shared, &first), first));
    renewed(clients, &live, &dead).await?;
    let holder = sole_holder(&clients.first, &stale.key).await?;
    ensure!(
        (holder.fence, holder.expires_at) == (after.fence, after.expires_at),
        "the renewal of a lease that was taken over changed the next one: {holder:?}"
    );
    Ok(())
}

/// Renews all of these leases in one call, and checks that exactly the live ones are renewed.
async fn renewed(
    clients: &Clients,
    live: &[(RenewRequest, Grant)],
    dead: &[RenewRequest],
) -> Outcome {
    let mut requests: Vec<_> = live.iter().map(|(request, _)| request.clone()).collect();
    requests.extend(dead.iter().cloned());
    let answers = clients.second.renew(&requests).await?;
    ensure!(
        answers.len() == requests.len(),
        "renewals without an answer"
    );
    let mut answers = answers.into_iter();
    for ((request, grant), answer) in live.iter().zip(&mut answers) {
        let answer = answer?;
        let RenewAnswer::Renewed(renewed) = answer else {
            return super::violation(format!("a live lease was not renewed: {answer:?}"));
        };
        ensure!(
            (renewed.fence, renewed.acquired_at) == (grant.fence, grant.acquired_at)
                && renewed.expires_in() <= request.ttl,
            "{grant:?} was renewed for {:?} as {renewed:?}",
            request.ttl
        );
        let state = state(&clients.first, &request.key).await?;
        let stored = state
            .holders
            .iter()
            .find(|holder| holder.lease == request.lease);
        // The answer may promise an earlier expiry than the stored one, but not a later one.
        ensure!(
            stored.is_some_and(|holder| {
                holder.expires_at - state.now >= renewed.expires_at - renewed.now
                    || holder.expires_at >= renewed.expires_at
            }),
            "a renewal was answered as {renewed:?}, and stored as {stored:?}"
        );
    }
    for (request, answer) in dead.iter().zip(answers) {
        let answer = answer?;
        ensure!(
            !matches!(answer, RenewAnswer::Renewed(_)),
            "a lease on {} that is over was renewed: {answer:?}",
            request.key
        );
    }
    Ok(())
}

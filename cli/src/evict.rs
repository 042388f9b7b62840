//! `evict` and `purge`.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use leasehold::{
    Error, Key, Leases, LockState, Store,
    store::{LeaseId, ReleaseAnswer, ReleaseRequest},
};

use super::{
    args::Evict,
    exit::{Code, Failure},
    out, state, text,
};

pub async fn evict(evict: Evict, leases: &Leases, store: &dyn Store) -> Result<Code, Failure> {
    if evict.yes && !evict.names_a_holder() {
        return evict_all(&evict.key, leases).await;
    }
    let Some(mut lock) = held(&evict.key, leases).await? else {
        return free(&evict.key);
    };
    lock.holders.retain(|holder| evict.names(holder));
    if lock.holders.is_empty() {
        return nobody(&evict.key, "has another holder");
    }
    if !evict.yes && !is_confirmed(&evict.key, &lock)? {
        out::line("nobody was evicted")?;
        return Ok(Code::No);
    }
    let mut owners = Vec::new();
    for holder in &lock.holders {
        if evict_lease(&lock.key, holder.lease, store).await? {
            owners.push(text::visible(&holder.owner));
        }
    }
    let now = held(&evict.key, leases).await?;
    let (key, owners) = (text::visible(&evict.key), owners.join(", "));
    match now {
        None if owners.is_empty() => free(&evict.key),
        None => out::line(&format!("{key} is free: {owners} lost it")),
        Some(_) if owners.is_empty() => nobody(&evict.key, "has another holder by now"),
        Some(_) => out::line(&format!("{owners} lost {key}, which others hold")),
    }
}

/// Takes the key from this lease, and returns whether the lease had it. A release names its lease, so a process that was
/// granted the key meanwhile keeps it.
pub async fn evict_lease(key: &Key, lease: LeaseId, store: &dyn Store) -> Result<bool, Error> {
    let request = ReleaseRequest::new(key.clone(), lease);
    Ok(store.release(&request).await? == ReleaseAnswer::Released)
}

/// Evicts all present holders of the key.
async fn evict_all(key: &str, leases: &Leases) -> Result<Code, Failure> {
    match leases.evict(key).await? {
        Some(eviction) if !eviction.evicted.is_empty() => {
            let owners = eviction.evicted.iter().map(|it| text::visible(&it.owner));
            let owners = Vec::from_iter(owners).join(", ");
            let (key, fence) = (text::visible(key), eviction.fence);
            out::line(&format!(
                "{key} is free: {owners} lost it; the next fence is above {fence}"
            ))
        }
        _ => free(key),
    }
}

/// Shows the holders, and asks whether to evict them.
fn is_confirmed(key: &str, lock: &LockState) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let key = text::name(key);
        let text = format!("{key} is held; to evict its holders without being asked, add --yes");
        return Err(Failure::Usage(text));
    }
    let table = state::table(std::slice::from_ref(lock));
    let question = "They go on working until they hear of it. Evict them? [y/N] ";
    // It removes the colours if standard error does not show them.
    write!(anstream::stderr(), "{table}\n{question}")?;
    let mut answer = String::new();
    // This blocks the only thread, but nothing else runs on it now.
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn held(key: &str, leases: &Leases) -> Result<Option<LockState>, Failure> {
    Ok(leases.inspect(key).await?.filter(|lock| !lock.is_free()))
}

fn free(key: &str) -> Result<Code, Failure> {
    out::line(&format!("{} is free", text::visible(key)))?;
    Ok(Code::No)
}

fn nobody(key: &str, why: &str) -> Result<Code, Failure> {
    let key = text::visible(key);
    out::line(&format!(
        "nobody was evicted: {key} {why}; --yes alone evicts whoever holds it"
    ))?;
    Ok(Code::No)
}

pub async fn purge(older_than: Duration, leases: &Leases) -> Result<Code, Failure> {
    let removed = leases.purge(older_than).await?;
    out::line(&format!("removed {removed}"))
}

//! `evict` and `purge`.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use leasehold::{Leases, LockState, store::LeaseId};

use super::{
    args::Evict,
    exit::{Code, Failure},
    out, state, text,
};

pub async fn evict(evict: Evict, leases: &Leases) -> Result<Code, Failure> {
    let key = text::visible(&evict.key).into_owned();
    if !evict.yes {
        let Some(lock) = leases
            .inspect(&evict.key)
            .await?
            .filter(|lock| !lock.is_free())
        else {
            out::line(&format!("{key} is free"))?;
            return Ok(Code::No);
        };
        if !io::stdin().is_terminal() {
            let text = format!(
                "{} is held; to evict its holders without being asked, add --yes",
                text::name(&evict.key)
            );
            return Err(Failure::Usage(text));
        }
        let shown = leases_of(&lock);
        let table = state::table(&[lock]);
        let question = "They go on working until they hear of it. Evict them? [y/N] ";
        // It removes the colours if standard error does not show them.
        write!(anstream::stderr(), "{table}\n{question}")?;
        let mut answer = String::new();
        // This blocks the only thread, but nothing else runs on it now.
        io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            out::line("nobody was evicted")?;
            return Ok(Code::No);
        }
        let now = leases.inspect(&evict.key).await?;
        if now.is_some_and(|lock| leases_of(&lock).iter().any(|lease| !shown.contains(lease))) {
            out::line(&format!(
                "nobody was evicted: {key} has another holder by now; --yes evicts whoever holds it"
            ))?;
            return Ok(Code::No);
        }
    }
    match leases.evict(&evict.key).await? {
        Some(eviction) if !eviction.evicted.is_empty() => {
            let owners: Vec<_> = eviction
                .evicted
                .iter()
                .map(|it| text::visible(&it.owner))
                .collect();
            let (owners, fence) = (owners.join(", "), eviction.fence);
            out::line(&format!(
                "{key} is free: {owners} lost it; the next fence is above {fence}"
            ))
        }
        _ => {
            out::line(&format!("{key} is free"))?;
            Ok(Code::No)
        }
    }
}

fn leases_of(lock: &LockState) -> Vec<LeaseId> {
    lock.holders.iter().map(|holder| holder.lease).collect()
}

pub async fn purge(older_than: Duration, leases: &Leases) -> Result<Code, Failure> {
    let removed = leases.purge(older_than).await?;
    out::line(&format!("removed {removed}"))
}

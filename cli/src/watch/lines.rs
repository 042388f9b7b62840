//! A line for each holder that comes or goes, for a pipe or a program.

use std::collections::BTreeMap;

use chrono::Utc;
use futures::TryStreamExt;
use leasehold::{Holder, Leases, LockState, store::LeaseId};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    args::Watch,
    exit::{Code, Failure},
    out, text,
};

/// The holders that the last look found, by key and lease.
type Seen = BTreeMap<(String, LeaseId), Holder>;

/// Prints lines until a signal ends the process. An error that a retry can fix is printed, and the next look may
/// succeed.
pub async fn print(watch: &Watch, leases: &Leases) -> Result<Code, Failure> {
    let mut seen = None;
    let mut looks = interval(watch.interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let filter = watch.which.filter().live();
        let locks: Result<Vec<LockState>, _> = leases.list(filter).try_collect().await;
        match locks {
            Ok(locks) => seen = Some(tell(&locks, seen, watch.json)?),
            Err(error) if error.is_retryable() => {
                out::say(&Failure::from(error).to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints what has changed since the last look. At the first look, prints all holders.
fn tell(locks: &[LockState], seen: Option<Seen>, json: bool) -> Result<Seen, Failure> {
    let before = seen.unwrap_or_default();
    let holders = locks.iter().flat_map(|lock| {
        let key = lock.key.to_string();
        let of = move |holder: &Holder| ((key.clone(), holder.lease), holder.clone());
        lock.holders.iter().map(of)
    });
    let now: Seen = holders.collect();
    let gone = before.iter().filter(|(name, _)| !now.contains_key(name));
    let come = now.iter().filter(|(name, _)| !before.contains_key(name));
    let gone = gone.map(|change| ("gone", change));
    for (what, ((key, lease), holder)) in gone.chain(come.map(|change| ("held", change))) {
        if json {
            out::endless_json_line(&json!({
                "at": Utc::now().to_rfc3339(), "event": what, "key": key,
                "lease": lease.to_string(), "owner": &*holder.owner,
                "mode": holder.mode.as_str(), "fence": holder.fence.get(),
            }))?
        } else {
            let (key, owner) = (text::visible(key), text::visible(&holder.owner));
            let (mode, fence) = (holder.mode.as_str(), holder.fence);
            out::endless_line(&format!("{what} {key} {mode} {owner} fence {fence}"))?
        };
    }
    Ok(now)
}

//! What `run --wait` says while it waits: who holds the key, and how many come first.

use std::{convert::Infallible, future::pending, time::Duration};

use leasehold::{Leases, LockState};
use tokio::time::{Instant, interval_at};

use super::{args::Run, out, text};

/// How often this process looks at the key. A look is one read.
const LOOKS: Duration = Duration::from_secs(3);
/// When it looks first. A key that is held for a moment only is not worth a line.
const FIRST: Duration = Duration::from_secs(1);

/// Says what the process waits for, at first and when it changes, until the future is dropped.
pub async fn tell(run: &Run, leases: &Leases) -> Infallible {
    if run.quiet || run.lease.wait <= FIRST {
        return pending().await;
    }
    let owner = run.lease.owner.as_deref().unwrap_or(leases.owner());
    let mut looks = interval_at(Instant::now() + FIRST, LOOKS);
    let mut said = None;
    loop {
        looks.tick().await;
        // The acquire reports an error of the store.
        let Ok(Some(lock)) = leases.inspect(&run.key).await else {
            continue;
        };
        let now = described(&lock, owner);
        if now.is_some() && now != said {
            out::say(&format!(
                "{} waits: {}",
                text::name(&run.key),
                now.as_deref().unwrap_or_default()
            ));
            said = now;
        }
    }
}

/// Who holds the key, and how many processes come before the one of this owner. `None` if the key is free, and no process
/// comes before. If several processes of this owner wait, the place of the first of them counts, because a look does not
/// tell which one this process is.
fn described(lock: &LockState, owner: &str) -> Option<String> {
    let place = lock.waiters.iter().position(|it| &*it.owner == owner);
    let ahead = place.unwrap_or(lock.waiters.len());
    let first = match ahead {
        0 => String::new(),
        1 => ", and 1 process comes first".to_owned(),
        ahead => format!(", and {ahead} processes come first"),
    };
    match &*lock.holders {
        [] if ahead == 0 => None,
        [] => Some(format!("it is free{first}")),
        [holder] => Some(format!("{} holds it{first}", text::visible(&holder.owner))),
        [holder, others @ ..] => Some(format!(
            "{} and {} more hold it{first}",
            text::visible(&holder.owner),
            others.len()
        )),
    }
}

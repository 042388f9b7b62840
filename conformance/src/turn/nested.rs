//! A task that has a lease of a key and requests another one, while another process waits for the first.

use leasehold::{Acquire, Error};
use tokio::time::sleep;

use super::{binding, in_time};
use crate::{
    Clients, LONG, Lived, Outcome, PATIENCE, SHORT, Violation, ensure, fresh_key, guard::pair,
    state, steps::until_waited_for, violation,
};

/// A nested request to share a key waits behind a writer, and one for permits behind a process that wants more than are
/// left. Both wait for the first lease, so the nested wait ends only by its bound. A reentrant request is granted, and
/// a barging one too.
pub async fn a_nested_request_waits_behind_who_waits_for_its_lease(clients: &Clients) -> Outcome {
    let [shared, exclusive]: [fn(Acquire) -> Acquire; 2] = [Acquire::shared, |whole| whole];
    in_time(async || nested(clients, shared, exclusive).await).await?;
    let [one, two]: [fn(Acquire) -> Acquire; 2] =
        [|some| some.permits(1, 4), |all| all.permits(4, 4)];
    in_time(async || nested(clients, one, two).await).await
}

async fn nested(
    clients: &Clients,
    some: fn(Acquire) -> Acquire,
    whole: fn(Acquire) -> Acquire,
) -> Result<Lived, Violation> {
    let (first, second) = pair(clients);
    let key = fresh_key("nested")?;
    let mine = || some(first.acquire(&key, LONG).owner("we").wait_for(PATIENCE));
    let outer = mine().await?;
    // For 30 ms after a process was granted a key in its turn, readers of that process come before a writer.
    sleep(SHORT).await;
    let waiting = whole(second.acquire(&key, LONG).wait_for(PATIENCE));
    let waiting = tokio::spawn(waiting.into_future());
    until_waited_for(&clients.first, &key).await?;
    let before = state(&clients.first, &key).await?;
    match mine().wait_for(SHORT).await {
        Err(Error::WaitTimedOut { .. }) => {}
        Ok(nested) if nested.acquired_at() < binding(&before) => {
            return violation(format!("{nested:?} passed {:?}", before.waiters));
        }
        Ok(nested) => {
            // The place of the waiting process had ended, because this machine stood still.
            nested.release().await?;
            outer.release().await?;
            waiting.await??.release().await?;
            return Ok(Lived::TooShort);
        }
        Err(error) => return Err(error.into()),
    }
    let inner = [mine().reentrant().await?, mine().barging().await?];
    ensure!(
        !waiting.is_finished(),
        "who waits for all of {key} has a part"
    );
    outer.release().await?;
    for lease in inner {
        lease.release().await?;
    }
    waiting.await??.release().await?;
    Ok(Lived::LongEnough)
}

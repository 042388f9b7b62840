//! Which of several keys have processes that wait for them.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::{Instant, sleep};

use super::{binding_if_free, comes_first, in_time, processes, release, waiters, waiting};
use crate::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, SHORT, Violation, ensure, fresh_key, granted,
    refused, request, state, violation,
};
use leasehold::{
    Key, Store,
    store::{LeaseId, LookRequest, Turn},
};

/// A store tells for which of several keys a process waits: those with a place that counts. A refusal without a place
/// is none. A place that was given back, is over, or ended with its grant is told no more.
pub async fn a_store_tells_which_keys_are_waited_for(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let names = ["unknown", "awaited", "refused", "left", "quiet", "free"];
        let keys = names.map(|name| fresh_key(&format!("waits / {name}")));
        let keys: Vec<_> = keys.into_iter().collect::<Result<_, _>>()?;
        let [_, awaited, asked, left, quiet, free] = &keys[..] else {
            return violation("there are six keys");
        };
        let holder = request(awaited, "the holder", LONG);
        granted(first, &holder).await?;
        granted(first, &request(left, "a reader", LONG).shared()).await?;
        for key in [asked, quiet] {
            granted(first, &request(key, "the holder", LONG)).await?;
        }
        let released = request(free, "the holder", LONG);
        granted(first, &released).await?;
        release(first, &released).await?;
        tells(first, &keys, &[]).await?;

        let [one, two, three] = processes();
        refused(second, &request(asked, "a try", LONG)).await?;
        refused(second, &waiting(awaited, one)).await?;
        refused(second, &waiting(left, two)).await?;
        refused(second, &waiting(left, three)).await?;
        if tells(first, &keys, &[awaited, left]).await? == Lived::TooShort {
            return Ok(Lived::TooShort);
        }
        // A place counts as long as there is another.
        second.leave(left, two).await?;
        if tells(first, &keys, &[awaited, left]).await? == Lived::TooShort {
            return Ok(Lived::TooShort);
        }
        second.leave(left, three).await?;
        if tells(first, &keys, &[awaited]).await? == Lived::TooShort {
            return Ok(Lived::TooShort);
        }
        // Who waits asks for the key alone.
        tells(first, &[quiet.clone(), left.clone()], &[]).await?;

        let [waiter] = processes();
        let soon_over = waiting(quiet, waiter).turn(Turn::in_turn(waiter, SHORT));
        refused(second, &soon_over).await?;
        until_nobody_waits(first, quiet).await?;
        tells(first, std::slice::from_ref(quiet), &[]).await?;

        let seen = state(first, awaited).await?;
        release(first, &holder).await?;
        let until = binding_if_free(&seen);
        or_too_late!(comes_first(second, &waiting(awaited, one), until).await?);
        ensure!(
            waiters(&state(first, awaited).await?).is_empty(),
            "a process that was granted the key waits for it"
        );
        tells(first, &keys, &[]).await
    })
    .await
}

/// Waits until exactly these of the keys are told to be waited for. The answer may be a moment out of date. The attempt
/// came too late if a place is over by then.
async fn tells(
    store: &Arc<dyn Store>,
    keys: &[Key],
    expected: &[&Key],
) -> Result<Lived, Violation> {
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    let start = Instant::now();
    loop {
        let looks = keys
            .iter()
            .map(|key| LookRequest::new(key.clone(), LeaseId::random()));
        let answers = store.look(&looks.collect::<Vec<_>>()).await?;
        ensure!(
            answers.len() == keys.len(),
            "of {keys:?}, a look tells {answers:?}"
        );
        let told = keys.iter().zip(&answers).filter(|(_, it)| it.is_waited_for);
        let told: BTreeSet<_> = told.map(|(key, _)| key).collect();
        if told == expected {
            return Ok(Lived::LongEnough);
        }
        for key in &expected {
            if state(store, key).await?.waiters.is_empty() {
                return Ok(Lived::TooShort);
            }
        }
        if start.elapsed() > PATIENCE {
            return violation(format!(
                "{expected:?} are waited for, and the store tells {told:?}"
            ));
        }
        sleep(LOOK).await;
    }
}

/// Waits until all places are over.
async fn until_nobody_waits(store: &Arc<dyn Store>, key: &Key) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if state(store, key).await?.waiters.is_empty() {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    violation(format!("a place for {SHORT:?} was not over"))
}

//! The requests that come before all waiting processes.

use super::{behind, binding, binding_if_free, in_time, processes, release, waiting};
use crate::{Clients, LONG, Lived, Outcome, ensure, fresh_key, granted, refused, request, state};
use leasehold::store::{AcquireRequest, ConvertAnswer, ConvertRequest, Turn};

/// An upgrade does not queue behind the waiting processes, and after a downgrade no reader passes them.
pub async fn an_upgrade_does_not_queue(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("an upgrade")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer] = processes();
        refused(second, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        for conversion in [
            ConvertRequest::upgrade(key.clone(), reader.lease),
            ConvertRequest::downgrade(key.clone(), reader.lease),
        ] {
            let answer = first.convert(&conversion).await?;
            ensure!(
                matches!(answer, ConvertAnswer::Converted(_)),
                "{conversion:?} was answered {answer:?} while a writer waits"
            );
        }
        let late = request(&key, "a late reader", LONG).shared();
        or_too_late!(behind(second, &late, binding(&before)).await?);
        release(first, &reader).await?;
        granted(second, &waiting(&key, writer)).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// An owner that holds the key enters again before all waiting processes, and does not queue behind its own places.
pub async fn an_owner_does_not_queue_behind_itself(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let ours = |mut request: AcquireRequest| {
            request.owner = "we".into();
            request.reentrant()
        };
        let key = fresh_key("enters again")?;
        let outer = ours(request(&key, "", LONG));
        granted(first, &outer).await?;
        let [writer, own] = processes();
        refused(second, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        granted(second, &ours(request(&key, "", LONG))).await?;
        granted(second, &ours(waiting(&key, own)).shared()).await?;
        let after = state(first, &key).await?;
        ensure!(
            after.waiters == before.waiters || after.now >= binding(&before),
            "an owner entered again, and {:?} became {:?}",
            before.waiters,
            after.waiters
        );

        let key = fresh_key("own place")?;
        let holder = request(&key, "the holder", LONG);
        granted(first, &holder).await?;
        refused(first, &ours(waiting(&key, own))).await?;
        let before = state(first, &key).await?;
        release(first, &holder).await?;
        let until = binding_if_free(&before);
        or_too_late!(behind(second, &request(&key, "a try", LONG), until).await?);
        let tries = ours(request(&key, "", LONG));
        granted(second, &tries).await?;
        let left = state(first, &key).await?;
        ensure!(
            left.waiters.first() == before.waiters.first() || left.now >= binding(&before),
            "who passed its own owner's place left {:?}",
            left.waiters
        );
        granted(first, &ours(waiting(&key, own))).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// A request that barges passes the waiting processes, which keep their places.
pub async fn who_passes_the_queue_leaves_it_as_it_is(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("passes the queue")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer, own] = processes();
        refused(first, &waiting(&key, writer)).await?;
        let before = state(first, &key).await?;
        refused(second, &waiting(&key, own).shared()).await?;
        let barges = request(&key, "in a hurry", LONG).shared();
        let barges = barges.turn(Turn::Barging);
        granted(second, &barges).await?;
        first.leave(&key, own).await?;
        let left = state(first, &key).await?;
        ensure!(
            left.waiters == before.waiters || left.now >= binding(&before),
            "{:?} were passed, and {:?} are left",
            before.waiters,
            left.waiters
        );
        ensure!(left.holders.len() == 2, "{:?} read", left.holders);
        Ok(Lived::LongEnough)
    })
    .await
}

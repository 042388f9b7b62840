//! The order in which processes are granted a key.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::{
    behind, binding, binding_if_free, comes_first, in_time, processes, release, waiters, waiting,
};
use crate::{
    Clients, LONG, LOOK, Lived, Outcome, PATIENCE, SHORT, Violation, after, ensure, fresh_key,
    granted, no_tick, refused, request, state, violation,
};
use leasehold::{
    Mode,
    rules::turn::MAX_BIND_TIME,
    store::{AcquireAnswer, BatchAnswer, BatchRequest},
};

/// Each waiting process takes a place, and is granted the key in the order of the places. Its grant ends the place.
pub async fn processes_are_granted_a_key_in_the_order_in_which_they_came(
    clients: &Clients,
) -> Outcome {
    in_time(async || in_order(clients).await).await
}

async fn in_order(clients: &Clients) -> Result<Lived, Violation> {
    let (first, second) = (&clients.first, &clients.second);
    let key = fresh_key("in order")?;
    let mut holder = request(&key, "the holder", LONG);
    granted(first, &holder).await?;
    let order: [_; 3] = processes();
    for (number, waiter) in order.into_iter().enumerate() {
        let waiting = waiting(&key, waiter);
        let held = refused(&clients.of_task(number), &waiting).await?;
        let seen = state(first, &key).await?;
        let is_told = held.ahead() == number && held.holders().len() == 1;
        ensure!(
            is_told || seen.waiters.len() <= number,
            "the process {number} was answered {held:?}"
        );
    }
    let mut left = &order[..];
    while let [next, later @ ..] = left {
        let seen = state(second, &key).await?;
        if seen.now >= binding(&seen) || waiters(&seen).len() < left.len() {
            return Ok(Lived::TooShort);
        }
        ensure!(
            waiters(&seen) == left,
            "{left:?} wait, and {:?} are shown",
            seen.waiters
        );
        release(first, &holder).await?;
        let until = binding_if_free(&seen);
        for (ahead, waiter) in (1..).zip(later) {
            let held = or_too_late!(behind(second, &waiting(&key, *waiter), until).await?);
            let is_told = held.ahead() == ahead && held.holders().is_empty();
            ensure!(
                is_told && held.binds_for() > Duration::ZERO && held.binds_for() <= MAX_BIND_TIME,
                "who is behind {ahead} on a free key was answered {held:?}"
            );
        }
        or_too_late!(behind(first, &request(&key, "a try", LONG), until).await?);
        holder = waiting(&key, *next);
        or_too_late!(comes_first(second, &holder, binding(&seen)).await?);
        let seen = state(first, &key).await?;
        ensure!(
            !waiters(&seen).contains(next),
            "a process waits for the key that it has: {seen:?}"
        );
        left = later;
    }
    Ok(Lived::LongEnough)
}

/// Readers share the key, but do not pass a writer that waits.
pub async fn a_reader_queues_behind_a_writer(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("a writer waits")?;
        let reader = request(&key, "a reader", LONG).shared();
        granted(first, &reader).await?;
        let [writer, one, two] = processes();
        let writes = waiting(&key, writer);
        let [one, two] = [one, two].map(|waiter| waiting(&key, waiter).shared());
        refused(first, &writes).await?;
        let until = binding(&state(first, &key).await?);
        for late in [&one, &two, &request(&key, "a try", LONG).shared()] {
            let held = or_too_late!(behind(second, late, until).await?);
            ensure!(
                held.holders().len() == 1 && held.binds_for() == Duration::ZERO,
                "a reader behind a writer was answered {held:?}"
            );
        }
        release(first, &reader).await?;
        or_too_late!(comes_first(second, &writes, until).await?);
        release(second, &writes).await?;
        let seen = state(first, &key).await?;
        // Whichever reader asks first, the other one shares the key with it.
        granted(second, &two).await?;
        granted(first, &two).await?;
        let left = state(second, &key).await?;
        if seen.waiters.len() == 2 && left.now < binding(&seen) {
            ensure!(
                waiters(&left) == [seen.waiters[0].waiter],
                "a reader that passed another left {:?} of {:?}",
                left.waiters,
                seen.waiters
            );
        }
        granted(second, &one).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// A free key is kept for the waiting processes from the release of its last holder on, even if others of its holders
/// had expired long before. Those holders can still be released.
pub async fn a_key_is_kept_from_the_release_of_its_last_holder(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("an expired reader")?;
        let expires = request(&key, "a reader that expires", SHORT).shared();
        let reads = request(&key, "a reader", LONG).shared();
        let over = after(granted(first, &expires).await?.expires_at, MAX_BIND_TIME);
        granted(second, &reads).await?;
        let [writer] = processes();
        refused(first, &waiting(&key, writer)).await?;
        while state(first, &key).await?.now < over {
            sleep(LOOK).await;
        }
        let until = binding_if_free(&state(first, &key).await?);
        release(second, &reads).await?;
        let tries = request(&key, "a try", LONG).shared();
        or_too_late!(behind(first, &tries, until).await?);
        release(first, &expires).await?;
        or_too_late!(behind(second, &tries, until).await?);
        or_too_late!(comes_first(second, &waiting(&key, writer), until).await?);
        Ok(Lived::LongEnough)
    })
    .await
}

/// Small requests for permits wait behind a large one, and share the key with it.
pub async fn permits_queue_behind_a_large_request(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let key = fresh_key("many permits")?;
        let holder = request(&key, "the holder", LONG).permits(2, 4)?;
        granted(first, &holder).await?;
        let [large, small] = processes();
        let large = waiting(&key, large).permits(3, 4)?;
        let small = waiting(&key, small).permits(1, 4)?;
        refused(first, &large).await?;
        let until = binding(&state(first, &key).await?);
        // Two permits are left.
        or_too_late!(behind(second, &small, until).await?);
        let tries = request(&key, "a try", LONG).permits(2, 4)?;
        or_too_late!(behind(second, &tries, until).await?);
        release(first, &holder).await?;
        or_too_late!(comes_first(first, &large, until).await?);
        granted(second, &small).await?;
        Ok(Lived::LongEnough)
    })
    .await
}

/// In a batch, an acquire queues behind the waiting processes, and takes a place.
pub async fn a_batch_keeps_the_queue(clients: &Clients) -> Outcome {
    in_time(async || {
        let (first, second) = (&clients.first, &clients.second);
        let [read, free, held] = [fresh_key("read")?, fresh_key("free")?, fresh_key("held")?];
        granted(first, &request(&read, "a reader", LONG).shared()).await?;
        granted(first, &request(&held, "the holder", LONG)).await?;
        let [writer, other] = processes();
        refused(first, &waiting(&read, writer)).await?;
        refused(first, &waiting(&held, writer)).await?;
        let before = state(first, &read).await?;
        let requests = [
            request(&read, "a late reader", LONG).shared(),
            waiting(&free, other),
            waiting(&held, other).shared(),
        ];
        let batch = requests.map(|request| BatchRequest::Acquire(Arc::new(request)));
        let answers = second.batch(&batch).await?;
        let waits = state(first, &held).await?;
        let left = state(first, &read).await?;
        if left.now >= binding(&before) {
            return Ok(Lived::TooShort);
        }
        use AcquireAnswer::{Granted, Held};
        let is_right = matches!(
            &answers[..],
            [
                Ok(BatchAnswer::Acquire(Held(behind))),
                Ok(BatchAnswer::Acquire(Granted(_))),
                Ok(BatchAnswer::Acquire(Held(waits))),
            ] if behind.ahead() == 1 && waits.ahead() == 1
        );
        ensure!(is_right, "{batch:?} were answered {answers:?}");
        ensure!(
            waiters(&waits) == [writer, other] && waits.waiters[1].mode == Mode::Shared,
            "in a batch a process took no place: {:?}",
            waits.waiters
        );
        ensure!(
            left.waiters == before.waiters,
            "{:?} became {:?}",
            before.waiters,
            left.waiters
        );
        let free = state(first, &free).await?.waiters;
        ensure!(free.is_empty(), "{free:?} wait for a key that was free");
        Ok(Lived::LongEnough)
    })
    .await
}

/// How many processes race for a key, and how often each of them acquires it.
const RACERS: usize = 8;
const ROUNDS: usize = 3;

/// If several processes all keep asking at the same time, each of them is granted the key in the end, one after the
/// other, and no place is left.
pub async fn all_that_go_on_asking_are_granted_the_key(clients: &Clients) -> Outcome {
    let key = fresh_key("all take turns")?;
    let race = (0..RACERS).map(|number| {
        let (store, key) = (clients.of_task(number), key.clone());
        let [waiter] = processes();
        tokio::spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..ROUNDS {
                let asks = waiting(&key, waiter);
                let start = Instant::now();
                let grant = loop {
                    match store.acquire(&asks).await? {
                        AcquireAnswer::Granted(grant) => break grant,
                        AcquireAnswer::Held(held) if start.elapsed() > PATIENCE => {
                            return violation(format!("a process waits for ever: {held:?}"));
                        }
                        AcquireAnswer::Held(_) => sleep(LOOK).await,
                        AcquireAnswer::Done(done) => return no_tick(&done),
                    }
                };
                fences.push(grant.fence);
                sleep(LOOK).await;
                let holders = state(&store, &key).await?.holders;
                ensure!(
                    holders.len() == 1 && holders[0].lease == asks.lease,
                    "{holders:?} have a key that {} has",
                    asks.owner
                );
                release(&store, &asks).await?;
            }
            Ok(fences)
        })
    });
    let mut fences = Vec::new();
    for granted in join_all(race).await {
        fences.extend(granted??);
    }
    fences.sort_unstable();
    fences.dedup();
    ensure!(
        fences.len() == RACERS * ROUNDS,
        "{RACERS} processes have had {} grants",
        fences.len()
    );
    let left = state(&clients.first, &key).await?.waiters;
    ensure!(left.is_empty(), "nobody asks any more, and {left:?} wait");
    Ok(())
}

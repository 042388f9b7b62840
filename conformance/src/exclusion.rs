//! At most one lease on a key, however many requests there are.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{sync::Barrier, task::JoinSet};

use super::{
    Clients, LONG, Outcome, PATIENCE, ensure, fresh_key, granted, guard::pair, no_tick, refused,
    request, state,
};
use leasehold::{
    Leases,
    store::{AcquireAnswer, AcquireRequest, ReleaseRequest},
};

const TASKS: usize = 32;
const ROUNDS: usize = 10;
const LOSERS: usize = 20;

/// If 32 tasks ask for a free key at the same moment, through two clients, exactly one gets it. This is tried on a new
/// key and on one that was released.
pub async fn of_32_racing_tasks_one_wins(clients: &Clients) -> Outcome {
    let key = fresh_key("race")?;
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(TASKS));
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let (store, barrier) = (clients.of_task(number), barrier.clone());
            let request = request(&key, &format!("task {number}"), LONG);
            tasks.spawn(async move {
                barrier.wait().await;
                let answer = store.acquire(&request).await;
                (request, answer)
            });
        }
        let mut winners = Vec::new();
        let mut seen = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (request, answer) = done?;
            match answer? {
                AcquireAnswer::Granted(_) => winners.push(request),
                AcquireAnswer::Held(held) => {
                    seen.extend(held.holders().iter().map(|holder| holder.lease));
                }
                AcquireAnswer::Done(done) => return no_tick(&done),
            }
        }
        ensure!(
            winners.len() == 1,
            "round {round}: {} of {TASKS} racing tasks were granted the key",
            winners.len()
        );
        for winner in winners {
            ensure!(
                seen.len() == TASKS - 1 && seen.iter().all(|lease| *lease == winner.lease),
                "round {round}: a loser was told of a holder that is not the winner"
            );
            let release = ReleaseRequest::new(key.clone(), winner.lease);
            clients.first.release(&release).await?;
        }
    }
    Ok(())
}

/// Tasks that wait for the same key, each with a guard, never hold it at the same time, and all of them get it.
pub async fn critical_sections_never_overlap(clients: &Clients) -> Outcome {
    let key = fresh_key("section")?;
    let inside = Arc::new(AtomicBool::new(false));
    let entered = Arc::new(AtomicUsize::new(0));
    let leases = <[Leases; 2]>::from(pair(clients));
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let leases = leases[number % 2].clone();
        let (key, inside, entered) = (key.clone(), inside.clone(), entered.clone());
        tasks.spawn(async move {
            let lease = leases.acquire(&key, LONG).wait_for(PATIENCE).await?;
            let overlap = inside.swap(true, Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            lease.release().await?;
            ensure!(!overlap, "two tasks were inside at the same time");
            entered.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let entered = entered.load(Ordering::SeqCst);
    ensure!(entered == 8, "{entered} of 8 tasks got in");
    Ok(())
}

/// If a request is sent again, after the first one or at the same time, the answer is the same grant: the same fence
/// and the same expiry.
pub async fn a_repeated_request_is_granted_once(clients: &Clients) -> Outcome {
    let key = fresh_key("repeat")?;
    let once = Arc::new(request(&key, "first", LONG));
    let mut tasks = JoinSet::new();
    for number in 0..16 {
        let (store, once) = (clients.of_task(number), once.clone());
        tasks.spawn(async move { granted(&store, &once).await });
    }
    let mut grants = Vec::new();
    while let Some(done) = tasks.join_next().await {
        grants.push(done??);
    }
    grants.push(granted(&clients.second, &once).await?);
    let same = grants.windows(2).all(|pair| {
        (pair[0].fence, pair[0].acquired_at, pair[0].expires_at)
            == (pair[1].fence, pair[1].acquired_at, pair[1].expires_at)
    });
    ensure!(same, "a repeated request was granted anew: {grants:?}");
    let state = state(&clients.first, &key).await?;
    ensure!(
        state.holders.len() == 1 && state.fence == grants[0].fence,
        "a repeated request left {} holders and the fence {}",
        state.holders.len(),
        state.fence
    );
    Ok(())
}

/// Refused requests do not change the holder's expiry, however many there are.
pub async fn a_loser_never_extends_the_expiry(clients: &Clients) -> Outcome {
    let key = fresh_key("loser")?;
    let winner = request(&key, "winner", LONG);
    let grant = granted(&clients.first, &winner).await?;
    for _ in 0..LOSERS {
        let loser = request(&key, "loser", LONG * 2);
        let held = refused(&clients.second, &loser).await?;
        ensure!(
            held.owner() == "winner" && held.expires_in() <= LONG,
            "a loser was told that {} holds the key for {:?}",
            held.owner(),
            held.expires_in()
        );
    }
    let holder = super::sole_holder(&clients.first, &key).await?;
    ensure!(
        holder.expires_at == grant.expires_at,
        "losers moved the expiry from {} to {}",
        grant.expires_at,
        holder.expires_at
    );
    Ok(())
}

/// A refused request changes nothing that the interface shows, including the fence.
///
/// A store's interface does not show whether a request causes a write, so each store needs a test of its own for that.
pub async fn a_loser_writes_nothing(clients: &Clients) -> Outcome {
    let key = fresh_key("no write")?;
    granted(&clients.first, &request(&key, "winner", LONG)).await?;
    let before = state(&clients.first, &key).await?;
    for number in 0..LOSERS {
        let loser: AcquireRequest = request(&key, "loser", LONG);
        refused(&clients.of_task(number), &loser).await?;
    }
    let after = state(&clients.second, &key).await?;
    ensure!(
        (before.fence, &before.holders) == (after.fence, &after.holders),
        "refused requests changed {before:?} into {after:?}"
    );
    Ok(())
}

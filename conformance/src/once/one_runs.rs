//! If many processes try to do the same tick at the same time, one of them does it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::{asks, complete};
use crate::{Clients, LOOK, Outcome, PATIENCE, ensure, fresh_key, release, sole_holder, violation};
use leasehold::{
    Leases,
    jobs::{Once, OnceError, Tick},
    store::{AcquireAnswer, ReleaseAnswer},
};

/// How many clients race for a tick.
const RACERS: usize = 8;
/// How many of them fail before one does the tick.
const FAILURES: usize = 2;

/// If 8 clients ask for the same tick at once, one at a time has it. After a client that fails another one has it, and
/// after the tick is done no client is granted it.
pub async fn of_8_clients_one_does_a_tick(clients: &Clients) -> Outcome {
    for number in 1..=5 {
        let key = fresh_key("a race for a tick")?;
        let grants = Arc::new(AtomicUsize::new(0));
        let race = (0..RACERS).map(|racer| {
            let (store, key, grants) = (clients.of_task(racer), key.clone(), grants.clone());
            tokio::spawn(async move {
                let start = Instant::now();
                loop {
                    let lease = asks(&key, &format!("racer {racer}"), Tick::counter(number));
                    match store.acquire(&lease).await? {
                        AcquireAnswer::Granted(_) => {}
                        AcquireAnswer::Done(done) => return Ok(done.lease),
                        AcquireAnswer::Held(held) if start.elapsed() > PATIENCE => {
                            return violation(format!("the tick is never done: {held:?}"));
                        }
                        AcquireAnswer::Held(_) => {
                            sleep(LOOK).await;
                            continue;
                        }
                    }
                    let before = grants.fetch_add(1, SeqCst);
                    // The other clients check in the meantime.
                    sleep(LOOK * 2).await;
                    let holder = sole_holder(&store, &key).await?;
                    ensure!(
                        holder.lease == lease.lease,
                        "another has it too: {holder:?}"
                    );
                    if before < FAILURES {
                        release(&store, &lease).await?;
                        continue;
                    }
                    let answer = complete(&store, &lease).await?;
                    ensure!(
                        answer == ReleaseAnswer::Released,
                        "what was done in a race was answered {answer:?}"
                    );
                    return Ok(lease.lease);
                }
            })
        });
        let mut told = Vec::new();
        for ended in join_all(race).await {
            told.push(ended??);
        }
        let granted = grants.load(SeqCst);
        ensure!(
            granted == FAILURES + 1,
            "after {FAILURES} failures a tick was granted {granted} times"
        );
        ensure!(
            told.iter().all(|lease| *lease == told[0]),
            "different leases have done it: {told:?}"
        );
    }
    Ok(())
}

/// If 8 jobs run once per tick, one at a time runs. After a job that fails another one runs, and after one that
/// succeeds none does.
pub async fn of_8_jobs_one_runs(clients: &Clients) -> Outcome {
    let key = fresh_key("a race of jobs")?;
    let grants = Arc::new(AtomicUsize::new(0));
    let race = (0..RACERS).map(|racer| {
        let leases = Leases::new(clients.of_task(racer));
        let (key, grants) = (key.clone(), grants.clone());
        tokio::spawn(async move {
            let job = leases.once(&key, 7_i64).wait_for(PATIENCE);
            let ran = job.run(async |_lease| {
                let before = grants.fetch_add(1, SeqCst);
                sleep(LOOK * 2).await;
                if before < FAILURES {
                    Err(leasehold::Error::Closed)
                } else {
                    Ok(())
                }
            });
            ran.await
        })
    });
    let [mut ran, mut failed, mut done] = [0; 3];
    for ended in join_all(race).await {
        match ended? {
            Ok(Once::Ran(())) => ran += 1,
            Ok(Once::Done(_)) => done += 1,
            Err(OnceError::Work(_)) => failed += 1,
            Ok(Once::Superseded { done, .. }) => {
                return violation(format!("no tick but 7 was done: {done}"));
            }
            Ok(Once::Running(held)) => return violation(format!("it runs for ever: {held:?}")),
            Err(error) => return Err(error.merge().into()),
        }
    }
    ensure!(
        (ran, failed, done) == (1, FAILURES, RACERS - 1 - FAILURES),
        "{ran} jobs ended well, {failed} failed, {done} had nothing to do"
    );
    Ok(())
}

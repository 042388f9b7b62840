//! A process is killed while it waits for a key.

use std::{sync::Arc, time::Duration};

use leasehold::{Leases, LockState, Store};
use tokio::time::sleep;

use super::{LONG, PATIENCE, Place, Process, patient};

/// A place counts for about this long, unless answers are slow.
const PLACE_TIME: Duration = Duration::from_millis(1_500);
/// How many processes wait and are killed.
const KILLED: usize = 3;

/// Processes that are killed while they wait do not give up their places. The place of the first one counts for at most
/// [`PLACE_TIME`], and a process behind all of them is granted the key when their places are over.
pub async fn waiting_processes_are_killed(place: &Place, store: Arc<dyn Store>) {
    let leases = patient(store.clone());
    let holder = leases.acquire("key", LONG).await.unwrap();
    let mut killed = Vec::new();
    for number in 1..=KILLED {
        killed.push(Process::start(place, "wait"));
        until(&leases, |state| state.waiters.len() == number).await;
    }
    let waiter = patient(store);
    let waiter = tokio::spawn(waiter.acquire("key", LONG).into_future());
    until(&leases, |state| state.waiters.len() == KILLED + 1).await;
    until(&leases, |state| {
        let first = state.waiters.first();
        let left = first.and_then(|place| (place.until - state.now).to_std().ok());
        left.is_some_and(|left| left <= PLACE_TIME)
    })
    .await;
    for process in &mut killed {
        process.kill().await;
    }
    holder.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders[0].lease, lease.id());
    lease.release().await.unwrap();
}

/// Waits until the state of the key is as it is wanted.
async fn until(leases: &Leases, is_wanted: impl Fn(&LockState) -> bool) {
    let wait = async {
        loop {
            let state = leases.inspect("key").await.unwrap();
            if state.as_ref().is_some_and(&is_wanted) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

//! How long the tasks of a process keep a key from another process.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold::{LockState, Store};
use tokio::time::{sleep, timeout};

use super::{LONG, PATIENCE, patient};

/// The tasks of a process hand the key on among themselves, and another process waits. It is granted the key after a
/// bounded number of leases of the first one, unless its place expires because this machine stands still. So most of
/// several tries count.
pub async fn handoffs_within_a_process_have_a_bound(store: Arc<dyn Store>) {
    // The lease that there is when the other process begins to wait, and one more, because the place of its process may
    // be ahead of the other one.
    const MOST: usize = 2;
    const TRIES: usize = 9;
    let mut between = Vec::new();
    for _ in 0..TRIES {
        between.push(leases_before_another_process(&store).await);
    }
    let kept = between.iter().filter(|leases| **leases <= MOST).count();
    println!("leases of one process while another waits: {between:?}");
    assert!(kept > TRIES / 2, "{between:?}");
}

/// How many leases the tasks of a process have while another process waits for the key.
async fn leases_before_another_process(store: &Arc<dyn Store>) -> usize {
    let [many, other] = [(); 2].map(|()| patient(store.clone()));
    let (grants, over) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks = (0..8).map(|_| {
        let (many, grants, over) = (many.clone(), grants.clone(), over.clone());
        tokio::spawn(async move {
            while !over.load(Relaxed) {
                let lease = many.acquire("key", LONG).await.unwrap();
                grants.lock().unwrap().push(lease.id());
                lease.release().await.unwrap();
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let count = || grants.lock().unwrap().len();
    while count() < 10 {
        sleep(Duration::from_millis(1)).await;
    }
    let mine = tokio::spawn(other.acquire("key", LONG).into_future());
    // They count from here, unless its place is seen.
    let mut before = count();
    let waits = |state: &LockState| state.waiters.iter().any(|it| *it.owner == *other.owner());
    while !mine.is_finished() {
        let state = other.inspect("key").await.unwrap();
        if state.is_some_and(|state| waits(&state)) {
            before = count();
            break;
        }
    }
    let lease = timeout(PATIENCE, mine).await.expect("it waits for ever");
    let after = count();
    over.store(true, Relaxed);
    lease.unwrap().unwrap().release().await.unwrap();
    let ended = timeout(PATIENCE, join_all(tasks)).await;
    ended
        .expect("they wait for ever")
        .into_iter()
        .for_each(Result::unwrap);
    let grants = grants.lock().unwrap();
    let between: HashSet<_> = grants[before..after].iter().collect();
    between.len()
}

//! Places that were taken by requests of tasks that have left, while the key is handed on within the process.

use super::*;

/// Two processes on a store with faults.
fn two_processes() -> (FlakyStore, [Leases; 2]) {
    let store = FlakyStore::new();
    let processes = [(); 2].map(|()| Leases::new(store.clone()));
    (store, processes)
}

/// Releases this lease, and checks that the document has no place then. No task of its process wants the key any more.
async fn release_without_a_place_left(last: Lease, there: &Leases) {
    last.release().await.unwrap();
    sleep(MOMENT).await;
    assert!(queue(there).await.is_empty());
}

/// The request of a task that has left takes its place when the next handoff is under way, which says that there is no
/// place. The answer to the handoff comes, or is lost.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_taken_during_a_handoff_is_given_up() {
    for (fate, is_answered) in [
        (Fate::Late(MOMENT * 5), true),
        (Fate::LateAndCut(MOMENT * 5), false),
    ] {
        let (store, [here, there]) = two_processes();
        store.next([Fate::Late(MOMENT * 6)]);
        let first = waits(&here).await;
        let second = waits(&here).await;
        let next = waits(&here).await;
        first.abort();
        let holder = second.await.unwrap();
        store.next([fate]);
        let released = tokio::spawn(holder.release());
        sleep(MOMENT * 4).await;
        assert_eq!(queue(&there).await, [Mode::Exclusive]);
        assert!(!next.is_finished());
        store.calls();
        let lease = next.await.unwrap();
        // If the holder does not know whether it has handed its lease over, it releases it as well.
        assert!(!is_answered || !store.calls().contains(&"release"));
        released.await.unwrap().unwrap();
        release_without_a_place_left(lease, &there).await;
    }
}

/// A task leaves when it does not know whether its request has taken a place.
#[tokio::test(start_paused = true)]
async fn a_place_that_may_be_taken_is_ended_by_a_handoff() {
    let (store, [here, there]) = two_processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLost]);
    let first = tokio::spawn(here.acquire("key", TTL).into_future());
    let next = tokio::spawn(here.acquire("key", TTL).into_future());
    // This is shorter than the pause after the error.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(queue(&there).await, [Mode::Exclusive]);
    first.abort();
    holder.release().await.unwrap();
    let lease = next.await.unwrap().unwrap();
    release_without_a_place_left(lease, &there).await;
}

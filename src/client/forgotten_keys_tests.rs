//! A handle forgets the keys for which it was used.

use std::time::Duration;

use futures::future::join_all;

use super::Leases;
use crate::store::memory::MemoryStore;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn keys_that_were_used_once_leave_nothing() {
    let leases = Leases::new(MemoryStore::new());
    let use_once = async |number: usize| {
        let key = format!("key {number}");
        let lease = leases.acquire(key.as_str(), TTL).await.unwrap();
        let held = leases.try_acquire(key, TTL).await.unwrap();
        assert!(held.acquired().is_err());
        lease.release().await.unwrap();
    };
    for hundred in 0..100 {
        join_all((0..100).map(|number| use_once(hundred * 100 + number))).await;
    }
    let keys = &leases.acquires.keys;
    assert!(keys.is_empty());
    // The same for what stays until it is not used for a moment, and for a task that does not wait any more.
    let stays = leases
        .acquire("stays", TTL)
        .sticky(Duration::from_millis(1));
    let lease = stays.await.unwrap();
    assert!(!keys.is_empty());
    let waited = leases
        .acquire("stays", TTL)
        .wait_for(Duration::from_millis(1));
    assert!(waited.await.is_err());
    lease.release().await.unwrap();
    while !keys.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

//! Processes that are killed at any point.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::{Error, Leases, Store};
use leasehold_tests::{long, processes::Process};
use rusqlite::Connection;

use super::{LONG, between_processes::place, path, store_at};

const KEYS: usize = 4;
/// The ttl of the leases that the killed processes hold.
const TTL: Duration = Duration::from_millis(50);

/// Acquires and releases keys for ever, and tells each grant after it was acknowledged.
pub async fn churn(store: Arc<dyn Store>) {
    let leases = Leases::new(store);
    for number in 0.. {
        let key = number % KEYS;
        let lease = match leases.acquire(format!("key {key}"), TTL).await {
            // This process stood still for longer than the ttl.
            Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => continue,
            acquired => acquired.unwrap(),
        };
        println!("\ntold granted {key} {}", lease.fence().get());
        // The lease may have expired before it was told.
        let _ = lease.release().await;
    }
}

/// Two processes run, and one is killed again and again, at any point. All grants that were acknowledged are there, the
/// file is intact, and the next processes go on with greater fences.
#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_in_the_middle_of_anything() {
    let path = path();
    let mut greatest = BTreeMap::new();
    let mut lives = Process::start(&place(&path), "churn");
    let kills = if long() { 200 } else { 12 };
    for kill in 0..kills {
        let mut dies = Process::start(&place(&path), "churn");
        let mut told = 0;
        // Some processes are killed when they have hardly begun.
        while told < 1 + kill * 3 % 32 {
            let (what, key, fence) = dies.next().await;
            assert_eq!(what, "granted");
            let before = greatest.insert(key, fence);
            assert!(before < Some(fence), "{fence} after {before:?}");
            told += 1;
        }
        dies.kill().await;
        // These are the grants that it told before its end and that were not read yet.
        for (_, key, fence) in dies.rest().await {
            let before = greatest.insert(key, fence);
            assert!(before < Some(fence), "{fence} after {before:?}");
        }
        // The other process goes on.
        assert_eq!(lives.next().await.0, "granted");
    }
    lives.kill().await;

    let leases = Leases::new(store_at(&path).await);
    for (key, fence) in greatest {
        let key = format!("key {key}");
        let kept = leases.inspect(&key).await.unwrap().unwrap();
        assert!(kept.fence.get() >= fence, "{key}: {kept:?} after {fence}");
        let lease = leases.acquire(&key, LONG).await.unwrap();
        assert!(lease.fence() > kept.fence);
    }
    let whole: String = Connection::open(&path)
        .unwrap()
        .pragma_query_value(None, "integrity_check", |row| row.get(0))
        .unwrap();
    assert_eq!(whole, "ok");
}

//! Processes that are killed in the middle of what they do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::{Error, Leases, Store};
use leasehold_tests::{long, processes::Process};
use rusqlite::Connection;

use super::{LONG, between_processes::place, path, store_at};

const KEYS: usize = 4;
/// Of what they hold as they die.
const TTL: Duration = Duration::from_millis(50);

/// Takes and leaves keys for ever, and tells each grant after it was acknowledged.
pub async fn churn(store: Arc<dyn Store>) {
    let leases = Leases::new(store);
    for number in 0.. {
        let key = number % KEYS;
        let lease = match leases.acquire(format!("key {key}"), TTL).await {
            // This process stood still for longer than the lease is.
            Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => continue,
            acquired => acquired.unwrap(),
        };
        println!("\ntold granted {key} {}", lease.fence().get());
        // It may have taken so long to tell that it is over.
        let _ = lease.release().await;
    }
}

/// Two at a time, of which one is killed again and again, in whatever it does: what was acknowledged is
/// there, the file is whole, and who comes next goes on with greater fences.
#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_in_the_middle_of_anything() {
    let path = path();
    let mut greatest = BTreeMap::new();
    let mut lives = Process::start(&place(&path), "churn");
    let kills = if long() { 200 } else { 12 };
    for kill in 0..kills {
        let mut dies = Process::start(&place(&path), "churn");
        let mut told = 0;
        // Some have hardly begun.
        while told < 1 + kill * 3 % 32 {
            let (what, key, fence) = dies.next().await;
            assert_eq!(what, "granted");
            let before = greatest.insert(key, fence);
            assert!(before < Some(fence), "{fence} after {before:?}");
            told += 1;
        }
        dies.kill().await;
        // What it told before its death and nobody has read.
        for (_, key, fence) in dies.rest().await {
            let before = greatest.insert(key, fence);
            assert!(before < Some(fence), "{fence} after {before:?}");
        }
        // The other goes on.
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

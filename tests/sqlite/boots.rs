//! The boot of the host has another id than when the file was last used: the host has booted, and its time of day is
//! behind, or another container of the host uses the file.

use std::{path::Path, time::Duration};

use leasehold::{Error, Leases, SqliteStore};
use rusqlite::Connection;
use tokio::time::{Instant, sleep, timeout};

use super::{LONG, path, store_at};

/// The ttl that the last holder before the boot asked for.
const TTL: Duration = Duration::from_secs(1);
/// Ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// Holds a key for the ttl, by the clock of the file. A grant that comes too late for its caller holds the key as well,
/// until it is released.
async fn hold(leases: &Leases, key: &str) {
    let acquired = async {
        loop {
            match leases.acquire(key, TTL).await {
                // It may be over by now.
                Ok(lease) => return drop(lease.detach()),
                Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(PATIENCE, acquired).await.unwrap();
}

/// A file whose clock is an hour ahead, with a key that was held before the host booted.
async fn held_before_a_boot(path: &Path) {
    let leases = Leases::new(store_at(path).await);
    // The file has been written to before its clock is put ahead.
    hold(&leases, "other").await;
    let connection = Connection::open(path).unwrap();
    let set = |clock: &str| {
        let set = format!("UPDATE clock SET {clock}");
        assert_eq!(connection.execute(&set, []).unwrap(), 1);
    };
    set("base = base + 3600000, last = last + 3600000");
    hold(&leases, "key").await;
    set("boot = 'another', base = 0");
}

#[tokio::test]
async fn who_waits_alone_gets_past_a_lease_from_before_a_boot() {
    let path = path();
    let waits = Leases::new(store_at(&path).await);
    held_before_a_boot(&path).await;
    let lease = waits.acquire("key", LONG).wait_for(PATIENCE);
    lease.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn who_only_looks_sees_a_lease_from_before_a_boot_end() {
    let path = path();
    held_before_a_boot(&path).await;
    let leases = Leases::new(SqliteStore::open_existing(&path).await.unwrap());
    let ends = async {
        while !leases.inspect("key").await.unwrap().unwrap().is_free() {
            sleep(TTL / 50).await;
        }
    };
    timeout(PATIENCE, ends).await.unwrap();
}

/// The clock of the file is an hour behind the time of day, as after a step of that. So a process that took another id
/// for a boot would set it ahead, and end leases early.
#[tokio::test]
async fn another_container_has_the_same_clock() {
    const STEP: Duration = Duration::from_secs(3_600);
    let path = path();
    let leases = Leases::new(store_at(&path).await);
    let lease = leases.acquire("key", LONG).await.unwrap();
    let connection = Connection::open(&path).unwrap();
    let set = "UPDATE clock SET base = base - 3600000, last = last - 3600000";
    assert_eq!(connection.execute(set, []).unwrap(), 1);
    let start = Instant::now();
    let now = async || leases.inspect("key").await.unwrap().unwrap().now;
    let before = now().await;
    for _ in 0..3 {
        let set = "UPDATE clock SET boot = 'another'";
        assert_eq!(connection.execute(set, []).unwrap(), 1);
        lease.renew().await.unwrap();
    }
    let passed = (now().await - before).to_std().unwrap();
    assert!(passed < start.elapsed() + STEP / 2, "{passed:?}");
}

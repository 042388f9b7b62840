//! What the doctor finds out by trying, with locks of its own.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use futures::future::join_all;
use leasehold::{Attempt, Error, Leases, Store, store::LeaseId};
use serde_json::json;
use tokio::time::timeout;

use super::finding::{Finding, Grade};
use crate::address::message;

/// The ttl of the lock that the doctor acquires.
const TTL: Duration = Duration::from_secs(10);
/// How many acquires of one key are sent at the same time.
const RACERS: usize = 8;
/// How long a store may take to open a stream of freed keys.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// A difference between the clocks from which on the doctor warns. No lease depends on it, because the server's clock
/// decides.
pub(super) const FAR_OFF: TimeDelta = TimeDelta::seconds(2);

/// Acquires a lock, renews, inspects, releases and removes it, to see whether this user may.
pub(super) async fn allowed(leases: &Leases) -> Vec<Finding> {
    let bad = |what: &str, error: Error| {
        let text = format!("no, {what} failed: {}", message(&error));
        vec![Finding::new("allowed", Grade::Bad, text)]
    };
    let key = format!("leasehold doctor {}", LeaseId::random());
    let lease = match leases.acquire(&key, TTL).wait_for(Duration::ZERO).await {
        Ok(lease) => lease,
        Err(error) => return bad("an acquire", error),
    };
    if let Err(error) = lease.renew().await {
        return bad("a renewal", error);
    }
    let before = Utc::now();
    let looked = leases.inspect(&key).await;
    let after = Utc::now();
    let clock = match looked {
        Ok(Some(lock)) => clock(lock.now - (before + (after - before) / 2)),
        Ok(None) => Finding::new("clock", Grade::Bad, "the lock is not there"),
        Err(error) => return bad("a look at a lock", error),
    };
    if let Err(error) = lease.release().await {
        return bad("a release", error);
    }
    // The check leaves no document behind.
    if let Err(error) = leases.remove_expired(&key).await {
        return bad("the removal of a free lock", error);
    }
    let text = "yes: a lock was acquired, renewed, seen, released and removed";
    vec![Finding::new("allowed", Grade::Good, text), clock]
}

fn clock(ahead: TimeDelta) -> Finding {
    let millis = ahead.num_milliseconds();
    let (grade, text) = if ahead.abs() > FAR_OFF {
        (
            Grade::Mind,
            "; leases do not depend on it, times for people do",
        )
    } else {
        (Grade::Good, "")
    };
    let text = format!("the store's is {millis:+} ms off this host's{text}");
    Finding::new("clock", grade, text).with(json!({ "ahead_ms": millis }))
}

/// Acquires one key several times at once, to see that it is granted once. On an engine whose upserts are not atomic
/// more than one would be.
pub(super) async fn race(leases: &Leases) -> Finding {
    let key = format!("leasehold doctor {}", LeaseId::random());
    let racers = (0..RACERS).map(|_| leases.try_acquire(&key, TTL).into_future());
    let mut granted = Vec::new();
    for attempt in join_all(racers).await {
        match attempt {
            Ok(Attempt::Acquired(lease)) => granted.push(lease),
            Ok(_) => {}
            Err(error) => {
                let text = format!("an acquire among {RACERS} failed: {}", message(&error));
                return Finding::new("race", Grade::Bad, text);
            }
        }
    }
    let count = granted.len();
    for lease in granted {
        // The lease ends with its ttl, and the lock is the doctor's own.
        let _ = lease.release().await;
    }
    let _ = leases.remove_expired(&key).await;
    let (grade, text) = granted_of_a_race(count);
    let text = format!("{RACERS} acquires of one key were sent at the same time, and {text}");
    Finding::new("race", grade, text).with(json!({ "sent": RACERS, "granted": count }))
}

/// What it means that this many acquires of one key were granted.
fn granted_of_a_race(count: usize) -> (Grade, String) {
    match count {
        0 => (Grade::Bad, "none of them was granted".to_owned()),
        1 => (Grade::Good, "one of them was granted".to_owned()),
        _ => (
            Grade::Bad,
            format!("{count} of them were granted: no lock holds here"),
        ),
    }
}

/// Opens a stream of freed keys, as a client with waiters does.
pub(super) async fn told(store: &dyn Store) -> Finding {
    let asks = "the first waiter of another process asks from time to time, at least once a second";
    let finding = |grade, text: String, told: bool| {
        Finding::new("releases", grade, text).with(json!({ "told": told }))
    };
    match timeout(STREAM_TIMEOUT, store.freed()).await {
        Ok(Ok(Some(_))) => {
            let text = "a waiter of another process is told of a release at once";
            finding(Grade::Good, text.to_owned(), true)
        }
        Ok(Ok(None)) => finding(Grade::Good, asks.to_owned(), false),
        Ok(Err(error)) => {
            let text = format!(
                "{asks}, because there is no change stream: {}",
                message(&error)
            );
            finding(Grade::Mind, text, false)
        }
        Err(_) => {
            let text =
                format!("{asks}, because a change stream did not open in {STREAM_TIMEOUT:?}");
            finding(Grade::Mind, text, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_grant_of_a_race_is_good_and_the_others_are_counted() {
        assert_eq!(granted_of_a_race(1).0, Grade::Good);
        for count in [0, 2, 8] {
            assert_eq!(granted_of_a_race(count).0, Grade::Bad, "{count}");
        }
        assert!(granted_of_a_race(2).1.starts_with("2 of them were granted"));
    }
}

//! Many leases that are kept alive at the same time.

use std::{future::IntoFuture, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{Lease, Leases, Store};
use tokio::time::{Instant, sleep};

/// How many are asked for at the same time.
const AT_ONCE: usize = 64;
/// A sample shows how fast the engine and this machine are today. With so much more time than the
/// acquires take, all are acquired within a third of the ttl, and renewed within a sixth.
const SAMPLE: usize = 10;
const SPARE: u32 = 4;
const SHORTEST: Duration = Duration::from_secs(45);
const LONGEST: Duration = Duration::from_secs(120);
/// A time to live that outlasts any test.
const LONG: Duration = Duration::from_secs(600);
/// A machine that stands still for a sixth of the ttl splits batches; the next period is as good as
/// any.
const PERIODS: usize = 3;

/// Keeps so many leases alive, and says how many requests they cost in one period, a third of the
/// ttl, once they are in step: in the first that costs no more than `enough`, or else in the last.
pub async fn cost_of_a_period(
    store: impl Store,
    number: usize,
    enough: usize,
    sent: impl Fn() -> usize,
) -> usize {
    let leases = Leases::new(store);
    // With connections and scripts in place.
    acquire(&leases, "first", AT_ONCE, LONG)
        .await
        .into_iter()
        .for_each(Lease::detach);
    let start = Instant::now();
    let sample = acquire(&leases, "sample", number / SAMPLE, LONG).await;
    let ttl = (start.elapsed() * SAMPLE as u32 * SPARE).clamp(SHORTEST, LONGEST);
    sample.into_iter().for_each(Lease::detach);
    let start = Instant::now();
    let kept = acquire(&leases, "key", number, ttl).await;
    println!(
        "{number} leases of {ttl:?} are acquired in {:?}",
        start.elapsed()
    );
    sent();
    while sent() == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    // As far from the renewals before as from those after.
    sleep(ttl / 6).await;
    sent();
    let mut costs = Vec::new();
    while costs.len() < PERIODS && costs.last().is_none_or(|cost| *cost > enough) {
        sleep(ttl / 3).await;
        costs.push(sent());
    }
    println!("{number} leases cost {costs:?} requests a period");
    assert!(kept.iter().all(Lease::is_live), "some are lost");
    *costs.last().unwrap()
}

async fn acquire(leases: &Leases, name: &str, number: usize, ttl: Duration) -> Vec<Lease> {
    let acquire = |number| {
        let acquire = leases.acquire(format!("{name} {number}"), ttl);
        acquire.keep_alive().into_future()
    };
    let acquires = stream::iter((0..number).map(acquire)).buffer_unordered(AT_ONCE);
    acquires.try_collect().await.unwrap()
}

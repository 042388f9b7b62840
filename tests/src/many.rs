//! Many leases that are kept alive at the same time.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Error, Lease, Leases, LossReason, Store,
    store::{RenewAnswers, RenewRequest},
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{
    layer::{Layer, Layered},
    patient,
    stalls::Stalls,
};

/// How many acquires are under way at the same time.
const AT_ONCE: usize = 64;
/// A sample of the leases shows how fast the engine and the machine are today. With this much more time than the
/// acquires take, all leases are acquired within a third of the ttl, and renewed within a sixth.
const SAMPLE: usize = 10;
const SPARE: u32 = 4;
const SHORTEST: Duration = Duration::from_secs(15);
/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// If the machine stands still for a sixth of the ttl, batches are split. Any later round is as good as the first.
const ROUNDS: usize = 5;
/// If the machine was seen to stand still for a third of the ttl, leases may be lost. They then get a ttl that is this
/// many times longer. Without such a stall no lease may be lost, nor with a ttl that is longer than anything takes.
const MORE: u32 = 3;
/// A limit that only ends a hang: whatever is waited for comes sooner.
const PATIENCE: Duration = Duration::from_secs(900);

/// Keeps this many leases alive, and returns how many requests it takes to renew each of them once, when they are in
/// step: in the first round that takes no more than `enough`, or else in the last. It does not matter how long that
/// takes.
pub async fn cost_of_renewals(
    store: impl Store,
    number: usize,
    enough: usize,
    sent: impl Fn() -> usize,
) -> usize {
    let store: Arc<dyn Store> = Arc::new(store);
    let leases = patient(store.clone());
    let stalls = Stalls::of_the_machine();
    // This opens the connections and loads the scripts.
    acquire(&leases, "first", AT_ONCE, LONG)
        .await
        .into_iter()
        .for_each(|lease| lease.detach().unwrap());
    let start = Instant::now();
    let sample = acquire(&leases, "sample", number / SAMPLE, LONG).await;
    let mut ttl = (start.elapsed() * SAMPLE as u32 * SPARE).max(SHORTEST);
    sample.into_iter().for_each(|lease| lease.detach().unwrap());
    loop {
        let (cost, lost, slowest) = round(store.clone(), number, enough, ttl, &sent).await;
        if lost == 0 {
            return cost;
        }
        let stalled = stalls.since(Instant::now() - ttl * 2).await.max(slowest);
        println!("{lost} of {number} leases of {ttl:?} are lost, beside stalls of {stalled:?}");
        assert!(stalled >= ttl / 3, "they are lost without a cause");
        ttl *= MORE;
        assert!(ttl < PATIENCE, "they are lost again and again");
    }
}

/// The cost of the last round, how many leases were lost, and how long the slowest renewal took until it was answered.
/// A lease may be lost only by its expiry.
async fn round(
    store: Arc<dyn Store>,
    number: usize,
    enough: usize,
    ttl: Duration,
    sent: &impl Fn() -> usize,
) -> (usize, usize, Duration) {
    let renewed = Arc::new(AtomicUsize::new(0));
    let slowest = Arc::new(Mutex::default());
    let counts = Counts {
        store,
        renewed: renewed.clone(),
        slowest: slowest.clone(),
    };
    let leases = patient(Layered(counts));
    let start = Instant::now();
    let kept = acquire(&leases, &format!("kept {ttl:?}"), number, ttl).await;
    println!(
        "{number} leases of {ttl:?} are acquired in {:?}",
        start.elapsed()
    );
    let lost = || kept.iter().filter(|lease| !lease.is_live()).count();
    let start = Instant::now();
    let mut costs = Vec::new();
    let mut before = (renewed.load(Relaxed), sent());
    while costs.len() < ROUNDS && lost() == 0 {
        let all = before.0 + number;
        while renewed.load(Relaxed) < all && lost() == 0 {
            assert!(start.elapsed() < PATIENCE, "too few are renewed: {costs:?}");
            sleep(Duration::from_millis(50)).await;
        }
        // After the last renewal of a round nothing is sent for a while, so the requests counted now belong to the
        // renewals counted now.
        sleep(ttl / 100).await;
        let after = renewed.load(Relaxed);
        costs.push(sent() * number / (after - before.0).max(1));
        before = (after, 0);
        // The leases of the first round are not in step yet.
        if costs.len() > 1 && costs.last() <= Some(&enough) {
            break;
        }
    }
    println!("to renew {number} leases costs {costs:?} requests");
    let (kept, lost): (Vec<_>, Vec<_>) = kept.into_iter().partition(Lease::is_live);
    // Meanwhile more of them may be lost.
    kept.into_iter().for_each(|lease| drop(lease.detach()));
    for lease in &lost {
        let expired = match lease.lost().await {
            LossReason::Expired => true,
            LossReason::Unreachable(error) => error.is_retryable(),
            _ => false,
        };
        assert!(expired, "{} was lost wrongly", lease.key());
    }
    let cost = costs.last().copied().unwrap_or(usize::MAX);
    (cost, lost.len(), *slowest.lock())
}

async fn acquire(leases: &Leases, name: &str, number: usize, ttl: Duration) -> Vec<Lease> {
    let acquire = |number| {
        let acquire = leases.acquire(format!("{name} {number}"), ttl);
        acquire.keep_alive().into_future()
    };
    let acquires = stream::iter((0..number).map(acquire)).buffer_unordered(AT_ONCE);
    acquires.try_collect().await.unwrap()
}

/// A store that counts how many leases it is asked to renew, and measures how long that takes.
#[derive(Debug)]
struct Counts {
    store: Arc<dyn Store>,
    renewed: Arc<AtomicUsize>,
    slowest: Arc<Mutex<Duration>>,
}

#[async_trait]
impl Layer for Counts {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.renewed.fetch_add(requests.len(), Relaxed);
        let start = Instant::now();
        let answers = self.store.renew(requests).await;
        let mut slowest = self.slowest.lock();
        *slowest = slowest.max(start.elapsed());
        answers
    }
}

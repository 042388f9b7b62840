//! Permits on any store: a comparison with the memory store as the model, the experiment of the seed document, and a
//! bad network.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::future::join_all;
use leasehold::{
    Error, Key, Leases, MemoryStore, PermitAttempt, Store,
    store::{GiveBackRequest, PermitAnswer, PermitId, PermitRequest, Quota, WindowKind},
};
use proptest::{
    collection::vec,
    prelude::{Strategy, any},
    sample::select,
    test_runner::{Config, TestCaseError, TestError, TestRunner},
};
use tokio::runtime::Runtime;

use super::patient;

/// How many permits a window has in the seed document.
pub const LIMIT: u32 = 10;
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A step: a request with one of a few ids, and what it asks for.
#[derive(Clone, Debug)]
pub struct Step {
    key: usize,
    id: usize,
    quota: Quota,
    permits: u32,
    times: u32,
    /// Whether this many permits are given back first, as if the newest grant of the limiter had so many.
    gives_back: bool,
}

/// The windows are longer than the comparison, whatever day it is. Permits come back after whole days: half days would
/// be rounded up or down, depending on the moment of the request.
fn quotas() -> Vec<Quota> {
    let fixed = |limit, days| Quota::fixed(limit, DAY * days).unwrap();
    vec![
        fixed(3, 365),
        fixed(5, 365),
        fixed(4, 304),
        fixed(4, 304).smooth(4).unwrap(),
        fixed(4, 304).smooth(1).unwrap(),
        fixed(7, 200).smooth(3).unwrap(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let many = (select(vec![1_u32, 1, 2, 3]), 1..4_u32);
    (
        0..2_usize,
        0..6_usize,
        select(quotas()),
        many,
        any::<(bool, bool)>(),
    )
        .prop_map(
            |(key, id, quota, (permits, times), (single, gives_back))| Step {
                key,
                id,
                quota,
                permits: permits.min(quota.most_at_once()),
                times: if single { 1 } else { times },
                gives_back: gives_back && single,
            },
        )
}

/// Runs this many random sequences against the memory store and another one. The error is the shortest sequence found
/// on which they differ.
pub fn compare(runtime: &Runtime, other: &Arc<dyn Store>, cases: u32) -> Result<(), String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&vec(step(), 1..25), |steps| {
            let told = runtime.block_on(same_answers(other, &steps));
            told.map_err(TestCaseError::fail)
        })
        .map_err(|error| match error {
            TestError::Fail(why, steps) => format!("{why}, after {steps:#?}"),
            TestError::Abort(why) => why.to_string(),
        })
}

async fn same_answers(other: &Arc<dyn Store>, steps: &[Step]) -> Result<(), String> {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // These keys are new, so a shared store is as good as a new one.
    let name = PermitId::random();
    let ids: Vec<_> = (0..6).map(|_| PermitId::random()).collect();
    let mut grants = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let key = Key::new(format!("{name} {}", step.key)).unwrap();
        let request = PermitRequest::new(key, ids[step.id], step.quota, step.permits);
        let request = request.up_to(step.times);
        let is_fixed = step.quota.window_kind() == WindowKind::Fixed;
        let series = (step.key, step.quota.window(), is_fixed);
        let newest: &mut Newest = grants.entry(series).or_default();
        let given_back = newest.times.take_if(|_| step.gives_back);
        let told = async |store: &Arc<dyn Store>, given_back: Option<DateTime<Utc>>| {
            if let Some(granted_at) = given_back {
                let key = request.key.clone();
                let back = GiveBackRequest::new(key, step.quota, step.permits, granted_at);
                let given = store.give_back(&back).await;
                given.map_err(|error| format!("{error:?}"))?;
            }
            let answer = store.permit(&request).await;
            let answer = answer.map_err(|error| format!("{error:?}"))?;
            let left = store.peek(&request.key, &step.quota).await;
            let left = left.map_err(|error| format!("{error:?}"))?;
            let reset = in_days(left.reset_in, &step.quota);
            let told = (days(answer, &step.quota), left.remaining, reset);
            Ok::<_, String>((told, granted_at(&answer)))
        };
        let (here, granted_here) = told(&memory, given_back.map(|it| it[0])).await?;
        let (there, granted_there) = told(other, given_back.map(|it| it[1])).await?;
        if here != there {
            return Err(format!(
                "step {number}, {step:?}: memory answers {here:?}, the other {there:?}"
            ));
        }
        if newest.id != Some(request.id)
            && let (Some(here), Some(there)) = (granted_here, granted_there)
        {
            let times = Some([here, there]);
            let id = Some(request.id);
            *newest = Newest { id, times };
        }
    }
    Ok(())
}

/// The newest grant of a limiter.
#[derive(Default)]
struct Newest {
    id: Option<PermitId>,
    /// When it was granted by each store, until permits of it are given back. Twice would leave a part of a permit that
    /// depends on the moment.
    times: Option<[DateTime<Utc>; 2]>,
}

fn granted_at(answer: &PermitAnswer) -> Option<DateTime<Utc>> {
    match answer {
        PermitAnswer::Granted { granted_at, .. } => Some(*granted_at),
        PermitAnswer::Full { .. } => None,
    }
}

/// An answer, without what may differ: how many permits, and in how many days there will be more. The clocks may be
/// years apart, so for a fixed window this says only whether it has to end first.
fn days(answer: PermitAnswer, quota: &Quota) -> (Option<u32>, u64) {
    match answer {
        PermitAnswer::Granted {
            permits, retry_in, ..
        } => (Some(permits), in_days(retry_in, quota)),
        PermitAnswer::Full { retry_in, .. } => (None, in_days(retry_in, quota)),
    }
}

fn in_days(time: Duration, quota: &Quota) -> u64 {
    match quota.window_kind() {
        WindowKind::Fixed => u64::from(!time.is_zero()),
        WindowKind::Smooth { .. } => (time + DAY / 2).as_secs() / DAY.as_secs(),
    }
}

/// How many permits were granted in each window, by the server's clock.
#[derive(Debug)]
pub struct Table {
    window: Duration,
    permits: BTreeMap<i64, u32>,
}

impl Table {
    pub fn new(window: Duration) -> Self {
        let permits = BTreeMap::new();
        Self { window, permits }
    }

    pub fn count(&mut self, granted_at: DateTime<Utc>) {
        self.count_millis(granted_at.timestamp_millis());
    }

    pub fn count_millis(&mut self, granted_at: i64) {
        let number = granted_at.div_euclid(self.window.as_millis() as i64);
        *self.permits.entry(number).or_default() += 1;
    }

    /// Adds the permits of another table with windows of the same length.
    pub fn add(&mut self, other: &Self) {
        for (number, permits) in &other.permits {
            *self.permits.entry(*number).or_default() += permits;
        }
    }

    pub fn total(&self) -> u32 {
        self.permits.values().sum()
    }

    /// Prints the table as the seed document does.
    pub fn print(&self, of: &str) {
        println!("{of}");
        println!("+-------------+-------------------------+");
        println!("| total_count | window                  |");
        println!("+-------------+-------------------------+");
        for (number, permits) in &self.permits {
            let start = number * self.window.as_millis() as i64;
            let start = DateTime::from_timestamp_millis(start).unwrap();
            println!(
                "| {permits:11} | {} |",
                start.format("%Y-%m-%d %H:%M:%S%.3f")
            );
        }
        println!("+-------------+-------------------------+");
    }

    /// The greatest number of permits in a window.
    pub fn most(&self) -> u32 {
        self.permits.values().max().copied().unwrap_or_default()
    }

    /// The numbers of the windows from the first to the last, including those without a grant.
    pub fn windows(&self) -> impl Iterator<Item = i64> {
        let first = self.permits.keys().min().copied().unwrap_or_default();
        let last = self.permits.keys().max().copied().unwrap_or_default();
        first..=last
    }

    /// The share of the permits of these windows that was granted.
    pub fn share_of(&self, windows: &[i64]) -> f64 {
        let granted = windows.iter().filter_map(|number| self.permits.get(number));
        let granted: u32 = granted.sum();
        f64::from(granted) / (windows.len() as f64 * f64::from(LIMIT))
    }
}

/// Two clients with ten tasks each are behind a network that loses answers. No window grants more than its permits, and
/// a lost answer costs permits of its window at most.
pub async fn through_a_bad_network(clients: [Arc<dyn Store>; 2], calls: usize) -> Table {
    let window = Duration::from_millis(500);
    let limiters = clients.map(|store| {
        // A call waits this long for an answer that never comes.
        let leases = Leases::builder(store).call_timeout(CALL_TIMEOUT).build();
        leases.limiter("key", LIMIT, window)
    });
    let caller = async |number: usize| {
        let mut granted = Vec::new();
        while granted.len() < calls {
            match limiters[number % 2].permit().await {
                Ok(permit) => granted.push(permit.granted_at()),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        granted
    };
    let mut table = Table::new(window);
    for at in join_all((0..20).map(caller)).await.concat() {
        table.count(at);
    }
    table
}

/// Takes all permits that are left, and returns how many they were.
pub async fn left(store: Arc<dyn Store>, key: &str, limit: u32, window: Duration) -> u32 {
    let limiter = patient(store).limiter(key, limit, window);
    let mut left = 0;
    loop {
        match limiter.try_permit().await {
            Ok(PermitAttempt::Granted(permit)) => left += permit.permits(),
            Ok(PermitAttempt::Full { .. }) => return left,
            Err(error) => assert!(matches!(error, Error::Interrupted { .. }), "{error:?}"),
        }
    }
}

//! The memory store as the model of another: random commands go to both, and every answer must be
//! the same.
//!
//! Clocks differ between the two, so times are compared loosely and fences by their order. The only
//! leases that expire are those of [`Step::AcquireBriefly`], which ends when they have, in both stores.

mod steps;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use leasehold::{
    Fence, Holder, Key, LockState, MemoryStore, Mode, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        Grant, LeaseId, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};
use proptest::{
    collection::vec,
    test_runner::{Config, TestError, TestRunner},
};
use tokio::{runtime::Runtime, time::sleep};

use self::steps::{Claim, KEYS, LEASES, Step, TTL, step};

const BRIEF: Duration = Duration::from_millis(1);

/// Runs this many random sequences against the memory store and another one. The error is the
/// shortest sequence found on which they differ.
pub fn compare(runtime: &Runtime, other: &Arc<dyn Store>, cases: u32) -> Result<(), String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let sequences = vec(step(), 1..40);
    TestRunner::new(config)
        .run(&sequences, |steps| {
            let run = async { Run::new(other.clone()).all(&steps).await };
            runtime
                .block_on(run)
                .map_err(proptest::test_runner::TestCaseError::fail)
        })
        .map_err(|error| match error {
            TestError::Fail(why, steps) => format!("{why}, after {steps:#?}"),
            TestError::Abort(why) => why.to_string(),
        })
}

struct Run {
    sides: [Side; 2],
    keys: Vec<Key>,
    leases: Vec<LeaseId>,
}

struct Side {
    store: Arc<dyn Store>,
    /// The fences of each key in the order in which they were seen.
    fences: HashMap<Key, Vec<Fence>>,
    /// The pairs of a key and a lease that were asked for.
    asked: HashSet<(usize, usize)>,
}

/// The holders of a key without what may differ.
type Holders = Vec<Entry>;

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    lease: LeaseId,
    owner: String,
    mode: Mode,
    permits: i64,
    fence: usize,
    minutes: u64,
    note: Option<String>,
}

/// An answer without what may differ.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted { fence: usize, minutes: u64 },
    Held(Holders),
    Lost(String),
    Released(String),
    Evicted(Option<(usize, Vec<LeaseId>)>),
    Removed(bool),
    State(Option<(usize, Holders)>),
    All(Vec<Told>),
    Nothing,
}

/// Several leases have the same owner.
fn ask(key: &Key, leases: &[LeaseId], lease: usize, claim: Claim) -> AcquireRequest {
    let owner = format!("owner {}", lease % 2);
    let request = AcquireRequest::exclusive(key.clone(), leases[lease], owner.into(), TTL);
    claim.request(request)
}

impl Run {
    fn new(other: Arc<dyn Store>) -> Self {
        // Keys of its own, so that a shared store is as good as a new one.
        let name = LeaseId::random();
        let key = |number| Key::new(format!("{name} {number}")).unwrap();
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        Self {
            sides: [memory, other].map(|store| Side {
                store,
                fences: HashMap::new(),
                asked: HashSet::new(),
            }),
            keys: (0..KEYS).map(key).collect(),
            leases: (0..LEASES).map(|_| LeaseId::random()).collect(),
        }
    }

    async fn all(&mut self, steps: &[Step]) -> Result<(), String> {
        for (number, step) in steps.iter().enumerate() {
            // What stays of a grant that is released early.
            let under = LeaseId::random();
            let mut told = Vec::new();
            for side in &mut self.sides {
                let answer = side.run(step, &self.keys, &self.leases, under).await;
                told.push(answer.map_err(|error| format!("step {number}, {step:?}: {error}"))?);
            }
            if told[0] != told[1] {
                return Err(format!(
                    "step {number}, {step:?}: memory answers {:?}, the other {:?}",
                    told[0], told[1]
                ));
            }
        }
        Ok(())
    }
}

impl Side {
    async fn run(
        &mut self,
        step: &Step,
        keys: &[Key],
        leases: &[LeaseId],
        under: LeaseId,
    ) -> Result<Told, String> {
        let store = self.store.clone();
        let failed = |error: leasehold::Error| format!("{error:?}");
        Ok(match *step {
            Step::Acquire(key, lease, claim) => {
                let mut request = ask(&keys[key], leases, lease, claim);
                request.fresh = self.asked.insert((key, lease));
                let answer = store.acquire(&request).await.map_err(failed)?;
                self.acquired(&keys[key], &answer)?
            }
            Step::InPlaceOf(key, lease, from, claim) => {
                let mut request = ask(&keys[key], leases, lease, claim).in_place_of(leases[from]);
                request.fresh = self.asked.insert((key, lease));
                let answer = store.acquire(&request).await.map_err(failed)?;
                self.acquired(&keys[key], &answer)?
            }
            Step::Batch(ref asked) => {
                let request = |(key, &(lease, claim)): (&Key, &(usize, Option<Claim>))| match claim
                {
                    Some(claim) => BatchRequest::Acquire(ask(key, leases, lease, claim).into()),
                    None => {
                        let release = ReleaseRequest::new(key.clone(), leases[lease]);
                        BatchRequest::Release(release.likely_sole())
                    }
                };
                let requests: Vec<_> = keys.iter().zip(asked).map(request).collect();
                let pairs = asked.iter().enumerate();
                self.asked
                    .extend(pairs.map(|(key, (lease, _))| (key, *lease)));
                let answers = store.batch(&requests).await.map_err(failed)?;
                let mut told = Vec::new();
                for (key, answer) in keys.iter().zip(answers) {
                    told.push(match answer.map_err(failed)? {
                        BatchAnswer::Acquire(answer) => self.acquired(key, &answer)?,
                        BatchAnswer::Release(answer) => Told::Released(format!("{answer:?}")),
                    });
                }
                Told::All(told)
            }
            Step::AcquireBriefly(key, lease, claim) => {
                let mut request = ask(&keys[key], leases, lease, claim);
                (request.ttl, request.fresh) = (BRIEF, self.asked.insert((key, lease)));
                let answer = store.acquire(&request).await.map_err(failed)?;
                let told = self.acquired(&keys[key], &answer)?;
                self.until_expired(&keys[key]).await.map_err(failed)?;
                told
            }
            Step::Renew(key, lease, ttl) => {
                let request = [RenewRequest::new(keys[key].clone(), leases[lease], ttl)];
                let answers = store.renew(&request).await.map_err(failed)?;
                self.renewed(&keys[key], &answers[0])?
            }
            Step::RenewAll(lease, ttl) => {
                let request = |key: &Key| RenewRequest::new(key.clone(), leases[lease], ttl);
                let requests: Vec<_> = keys.iter().map(request).collect();
                let answers = store.renew(&requests).await.map_err(failed)?;
                let mut told = Vec::new();
                for (key, answer) in keys.iter().zip(&answers) {
                    told.push(self.renewed(key, answer)?);
                }
                Told::All(told)
            }
            Step::Convert(key, lease, mode) => {
                let (key, lease) = (&keys[key], leases[lease]);
                let request = match mode {
                    Mode::Exclusive => ConvertRequest::upgrade(key.clone(), lease),
                    _ => ConvertRequest::downgrade(key.clone(), lease),
                };
                match store.convert(&request).await.map_err(failed)? {
                    ConvertAnswer::Converted(grant) => self.granted(key, &grant)?,
                    ConvertAnswer::Held(held) => Told::Held(self.holders(key, held.holders())?),
                    lost => Told::Lost(format!("{lost:?}")),
                }
            }
            Step::Release(key, lease, alone) => {
                let mut request = ReleaseRequest::new(keys[key].clone(), leases[lease]);
                request.likely_sole = alone;
                let answer = store.release(&request).await.map_err(failed)?;
                Told::Released(format!("{answer:?}"))
            }
            Step::ReleaseHolding(key, lease, time) => {
                let request = ReleaseRequest::new(keys[key].clone(), leases[lease]);
                let request = request.min_hold(time, under);
                let answer = store.release(&request).await.map_err(failed)?;
                Told::Released(format!("{answer:?}"))
            }
            Step::Evict(key) => {
                let key = &keys[key];
                let eviction = store.evict(key).await.map_err(failed)?;
                Told::Evicted(match eviction {
                    None => None,
                    Some(eviction) => {
                        let evicted = eviction.evicted.iter().map(|holder| holder.lease);
                        Some((self.fence(key, eviction.fence)?, evicted.collect()))
                    }
                })
            }
            Step::RemoveExpired(key) => {
                self.until_past_the_fence(&keys[key])
                    .await
                    .map_err(failed)?;
                Told::Removed(store.remove_expired(&keys[key]).await.map_err(failed)?)
            }
            Step::PurgeOld => {
                // Others may use the store, so the number says nothing; the keys do, later on.
                store.purge(TTL).await.map_err(failed)?;
                Told::Nothing
            }
            Step::PurgeDead => {
                for key in keys {
                    while let Some(state) = store.inspect(key).await.map_err(failed)?
                        && state.is_free()
                    {
                        store.purge(Duration::ZERO).await.map_err(failed)?;
                        sleep(Duration::from_millis(1)).await;
                    }
                }
                Told::Nothing
            }
            Step::Inspect(key) => {
                let state = store.inspect(&keys[key]).await.map_err(failed)?;
                Told::State(match state {
                    None => None,
                    Some(LockState {
                        key,
                        fence,
                        holders,
                        ..
                    }) => Some((self.fence(&key, fence)?, self.holders(&key, &holders)?)),
                })
            }
        })
    }

    /// Waits until those have expired that were granted for a moment only, and a little longer: a server's clock is the
    /// machine's, which may be set back by a moment.
    async fn until_expired(&self, key: &Key) -> Result<(), leasehold::Error> {
        let is_brief = |holder: &Holder| (holder.expires_at - holder.acquired_at).num_seconds() < 1;
        while let Some(state) = self.store.inspect(key).await?
            && state.holders.iter().any(is_brief)
        {
            sleep(BRIEF).await;
        }
        sleep(BRIEF * 5).await;
        Ok(())
    }

    /// A removal waits for the clock to pass the fence, which is another moment on each side.
    async fn until_past_the_fence(&self, key: &Key) -> Result<(), leasehold::Error> {
        while let Some(state) = self.store.inspect(key).await?
            && state.now.timestamp_millis() <= state.fence.get()
        {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn acquired(&mut self, key: &Key, answer: &AcquireAnswer) -> Result<Told, String> {
        match answer {
            AcquireAnswer::Granted(grant) => self.granted(key, grant),
            AcquireAnswer::Held(held) => Ok(Told::Held(self.holders(key, held.holders())?)),
        }
    }

    fn granted(&mut self, key: &Key, grant: &Grant) -> Result<Told, String> {
        Ok(Told::Granted {
            fence: self.fence(key, grant.fence)?,
            minutes: minutes(grant.expires_in()),
        })
    }

    fn renewed(
        &mut self,
        key: &Key,
        answer: &Result<RenewAnswer, leasehold::Error>,
    ) -> Result<Told, String> {
        match answer.as_ref().map_err(|error| format!("{error:?}"))? {
            RenewAnswer::Renewed(grant) => self.granted(key, grant),
            lost => Ok(Told::Lost(format!("{lost:?}"))),
        }
    }

    fn holders(&mut self, key: &Key, holders: &[Holder]) -> Result<Holders, String> {
        let entry = |holder: &Holder| {
            let lifetime = (holder.expires_at - holder.acquired_at).to_std();
            let lifetime = lifetime.map_err(|_| format!("{holder:?} ends before it begins"))?;
            Ok(Entry {
                lease: holder.lease,
                owner: holder.owner.to_string(),
                mode: holder.mode,
                permits: holder.permits,
                fence: self.fence(key, holder.fence)?,
                minutes: minutes(lifetime),
                note: holder.note.as_ref().map(ToString::to_string),
            })
        };
        holders.iter().map(entry).collect()
    }

    /// The number of a fence among those of its key. A new one must be greater than all before.
    fn fence(&mut self, key: &Key, fence: Fence) -> Result<usize, String> {
        let seen = self.fences.entry(key.clone()).or_default();
        if let Some(number) = seen.iter().position(|earlier| *earlier == fence) {
            return Ok(number);
        }
        if seen.last().is_some_and(|last| fence < *last) {
            return Err(format!("the fence {fence} comes after {seen:?}"));
        }
        seen.push(fence);
        Ok(seen.len() - 1)
    }
}

/// Close enough for two clocks: ten minutes are ten minutes, however slow the machine is.
fn minutes(duration: Duration) -> u64 {
    (duration.as_secs() + 300) / 600
}

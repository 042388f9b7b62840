//! The memory store as the model of another store: random commands go to both, and every answer has to be the same.
//!
//! The clocks of the two differ, so times are compared roughly, and fences by their order. The only leases that expire
//! are those of `Step::AcquireBriefly`, which ends when they have expired in both stores.
//!
//! A free key is kept for its waiters for a moment, which ends at about the same time in both stores. So with a queue
//! no step begins when that moment may be over in only one store, and a sequence that comes into that time is not
//! judged.

mod steps;
mod told;

use std::{cell::Cell, collections::HashMap, num::NonZeroU16, sync::Arc, time::Duration};

use leasehold::{
    Error, Fence, Holder, Key, LockState, MemoryStore, Mode, Store,
    rules::turn::MAX_BIND_TIME,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        Earlier, LeaseId, ReleaseRequest, RenewRequest,
    },
};
use proptest::{
    collection::vec,
    test_runner::{Config, TestError, TestRunner},
};
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, sleep_until},
};

use self::{
    steps::{Claim, LEASES, STAYS, Stance, Step, TTL, WAITERS, step},
    told::{Told, done_tick, waits},
};

const BRIEF: Duration = Duration::from_millis(1);
/// How many fences some of the requests take. Few, because a removal waits until the clock has passed them.
const FENCES: NonZeroU16 = NonZeroU16::new(3).unwrap();

/// Runs this many random sequences against the memory store and another one. The error is the shortest sequence found
/// on which they differ.
pub fn compare(runtime: &Runtime, other: &Arc<dyn Store>, cases: u32) -> Result<(), String> {
    run(runtime, other, cases, 3, false)
}

/// The same with processes that wait for one key.
pub fn compare_in_turn(
    runtime: &Runtime,
    other: &Arc<dyn Store>,
    cases: u32,
) -> Result<(), String> {
    run(runtime, other, cases, 1, true)
}

fn run(
    runtime: &Runtime,
    other: &Arc<dyn Store>,
    cases: u32,
    keys: usize,
    queue: bool,
) -> Result<(), String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let (planned, compared) = (Cell::new(0), Cell::new(0));
    let sequences = vec(step(keys, queue), 1..if queue { 80 } else { 40 });
    TestRunner::new(config)
        .run(&sequences, |steps| {
            let run = async { Run::new(other.clone(), keys, queue).all(&steps).await };
            let done = runtime
                .block_on(run)
                .map_err(proptest::test_runner::TestCaseError::fail)?;
            planned.set(planned.get() + steps.len());
            compared.set(compared.get() + done);
            Ok(())
        })
        .map_err(|error| match error {
            TestError::Fail(why, steps) => format!("{why}, after {steps:#?}"),
            TestError::Abort(why) => why.to_string(),
        })?;
    // Otherwise this would have shown nothing.
    let (planned, compared) = (planned.get(), compared.get());
    if compared < planned / 20 {
        return Err(format!(
            "the machine is too slow: of {planned} steps {compared} were compared"
        ));
    }
    Ok(())
}

struct Run {
    sides: [Side; 2],
    names: Names,
    /// The queue for the one key that processes wait for, if any do.
    queue: Option<Queue>,
}

/// The names behind the numbers of the steps.
struct Names {
    keys: Vec<Key>,
    leases: Vec<LeaseId>,
    waiters: Vec<LeaseId>,
}

struct Queue {
    started: Instant,
    /// The instants between which the key has become free in both stores, if it is free.
    freed: Option<(Instant, Instant)>,
    is_awaited: bool,
}

/// How long after the release a step may begin, if the free key has to be kept for its waiters still.
const EARLY: Duration = MAX_BIND_TIME.checked_div(2).unwrap();
/// How long after the release a step begins otherwise.
const LATE: Duration = MAX_BIND_TIME.saturating_add(Duration::from_millis(100));

impl Queue {
    /// Waits until the key is kept for its waiters in both stores, or in neither.
    async fn until_clear(&self, step: &Step) {
        let Some((first, last)) = self.freed.filter(|_| self.is_awaited) else {
            return;
        };
        if matches!(step, Step::Linger) || first.elapsed() > EARLY {
            sleep_until(last + LATE).await;
        }
    }

    /// Whether a step that began at this instant has ended before the two stores could differ again.
    fn is_clear(&self, began: Instant) -> bool {
        let is_kept = |(first, last): (Instant, Instant)| {
            began > last + MAX_BIND_TIME || first.elapsed() < MAX_BIND_TIME
        };
        self.started.elapsed() < STAYS / 2 && (!self.is_awaited || self.freed.is_none_or(is_kept))
    }

    /// Notes what a step that began at this instant has left in the memory store.
    fn note(&mut self, began: Instant, told: &Told, state: Option<&LockState>) {
        self.is_awaited = state.is_some_and(|state| !state.waiters.is_empty());
        if !state.is_some_and(LockState::is_free) {
            self.freed = None;
        } else if told.may_free() || self.freed.is_none() {
            self.freed = Some((began, Instant::now()));
        }
    }
}

struct Side {
    store: Arc<dyn Store>,
    /// The fences of each key, in the order in which they were seen.
    fences: HashMap<Key, Vec<Fence>>,
    /// The key and lease of each request so far.
    asked: HashMap<(usize, usize), Earlier>,
}

impl Names {
    /// A request for this key and lease. Several leases have the same owner, and some take several fences.
    fn ask(&self, key: usize, lease: usize, claim: Claim, stance: Stance) -> AcquireRequest {
        let (key, owner) = (self.keys[key].clone(), format!("owner {}", lease % 2));
        let request = AcquireRequest::exclusive(key, self.leases[lease], owner.into(), TTL);
        let mut request = claim
            .request(request, &self.leases)
            .turn(stance.turn(&self.waiters));
        request.fences = [NonZeroU16::MIN, FENCES][lease % 2];
        request
    }
}

impl Run {
    fn new(other: Arc<dyn Store>, keys: usize, queue: bool) -> Self {
        // These keys are new, so a shared store is as good as a new one.
        let name = LeaseId::random();
        let key = |number| Key::new(format!("{name} {number}")).unwrap();
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        Self {
            sides: [memory, other].map(|store| Side {
                store,
                fences: HashMap::new(),
                asked: HashMap::new(),
            }),
            names: Names {
                keys: (0..keys).map(key).collect(),
                leases: (0..LEASES).map(|_| LeaseId::random()).collect(),
                waiters: (0..WAITERS).map(|_| LeaseId::random()).collect(),
            },
            queue: queue.then(|| Queue {
                started: Instant::now(),
                freed: None,
                is_awaited: false,
            }),
        }
    }

    /// Compares the answers to these steps, as far as the machine is fast enough. Returns how many were compared.
    async fn all(&mut self, steps: &[Step]) -> Result<usize, String> {
        for (number, step) in steps.iter().enumerate() {
            if let Some(queue) = &self.queue {
                queue.until_clear(step).await;
            }
            let began = Instant::now();
            // This is the lease that remains of a grant with a minimum hold.
            let under = LeaseId::random();
            let place = format!("step {number}, {step:?}");
            let told = self.told(step, under, &place).await?;
            if self
                .queue
                .as_ref()
                .is_some_and(|queue| !queue.is_clear(began))
            {
                return Ok(number);
            }
            same(&told, &place)?;
            if let Some(queue) = &mut self.queue {
                let state = self.sides[0].store.inspect(&self.names.keys[0]).await;
                queue.note(began, &told[0], state.unwrap().as_ref());
                let after = format!("after {place}");
                same(&self.told(&Step::Inspect(0), under, &after).await?, &after)?;
            }
        }
        Ok(steps.len())
    }

    /// The answers of both stores.
    async fn told(
        &mut self,
        step: &Step,
        under: LeaseId,
        place: &str,
    ) -> Result<[Told; 2], String> {
        let failed = |error| format!("{place}: {error}");
        let [memory, other] = &mut self.sides;
        Ok([
            memory.run(step, &self.names, under).await.map_err(failed)?,
            other.run(step, &self.names, under).await.map_err(failed)?,
        ])
    }
}

fn same([memory, other]: &[Told; 2], place: &str) -> Result<(), String> {
    if memory == other {
        return Ok(());
    }
    Err(format!(
        "{place}: memory answers {memory:?}, the other {other:?}"
    ))
}

impl Side {
    /// What became of the earlier requests for this lease of this key. One more is sent now.
    fn asks(&mut self, lease: (usize, usize)) -> Earlier {
        let earlier = self.asked.insert(lease, Earlier::Unclear);
        earlier.unwrap_or(Earlier::None)
    }

    /// Records the answer to a request.
    fn was_told(&mut self, lease: (usize, usize), earlier: Earlier, answer: &AcquireAnswer) {
        if let AcquireAnswer::Held(_) = answer {
            self.asked.insert(lease, earlier.max(Earlier::Refused));
        }
    }

    async fn run(&mut self, step: &Step, names: &Names, under: LeaseId) -> Result<Told, String> {
        let store = self.store.clone();
        let (keys, leases) = (&names.keys, &names.leases);
        let failed = |error: leasehold::Error| format!("{error:?}");
        Ok(match *step {
            Step::Acquire(key, lease, claim, stance) => {
                let mut request = names.ask(key, lease, claim, stance);
                request.earlier = self.asks((key, lease));
                let answer = store.acquire(&request).await.map_err(failed)?;
                self.was_told((key, lease), request.earlier, &answer);
                self.acquired(&request, &answer)?
            }
            Step::AcquireFor(key, lease, tick, (claim, stance)) => {
                let mut request = names.ask(key, lease, claim, stance).tick(tick);
                request.earlier = self.asks((key, lease));
                match store.acquire(&request).await {
                    Err(Error::OtherTickKind { .. }) => Told::OtherTickKind,
                    answer => self.acquired(&request, &answer.map_err(failed)?)?,
                }
            }
            Step::Batch(ref asked) => {
                let request = |(key, &(lease, asks)): (usize, &(usize, Option<_>))| match asks {
                    Some((claim, stance)) => {
                        BatchRequest::Acquire(names.ask(key, lease, claim, stance).into())
                    }
                    None => {
                        let release = ReleaseRequest::new(keys[key].clone(), leases[lease]);
                        BatchRequest::Release(release.likely_sole())
                    }
                };
                let requests: Vec<_> = asked.iter().enumerate().map(request).collect();
                let pairs = asked.iter().enumerate();
                let unclear =
                    |(key, (lease, _)): (usize, &(usize, _))| ((key, *lease), Earlier::Unclear);
                self.asked.extend(pairs.map(unclear));
                let answers = store.batch(&requests).await.map_err(failed)?;
                let mut told = Vec::new();
                for (request, answer) in requests.iter().zip(answers) {
                    told.push(match (request, answer.map_err(failed)?) {
                        (BatchRequest::Acquire(request), BatchAnswer::Acquire(answer)) => {
                            self.acquired(request, &answer)?
                        }
                        (_, answer) => Told::Released(format!("{answer:?}")),
                    });
                }
                Told::All(told)
            }
            Step::Leave(key, process) => {
                let left = store.leave(&keys[key], names.waiters[process]).await;
                left.map_err(failed)?;
                Told::Nothing
            }
            Step::Linger => Told::Nothing,
            Step::AcquireBriefly(key, lease, claim, stance) => {
                let mut request = names.ask(key, lease, claim, stance);
                (request.ttl, request.earlier) = (BRIEF, self.asks((key, lease)));
                let answer = store.acquire(&request).await.map_err(failed)?;
                let told = self.acquired(&request, &answer)?;
                self.until_expired(&keys[key]).await.map_err(failed)?;
                told
            }
            Step::Renew(key, lease, ttl) => {
                let request = RenewRequest::new(keys[key].clone(), leases[lease], ttl);
                let answers = store.renew(&[request]).await.map_err(failed)?;
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
            Step::Convert(key, lease, mode, by) => {
                let (key, lease) = (&keys[key], leases[lease]);
                let mut request = match mode {
                    Mode::Exclusive => ConvertRequest::upgrade(key.clone(), lease),
                    _ => ConvertRequest::downgrade(key.clone(), lease),
                };
                let state = store.inspect(key).await.map_err(failed)?;
                let holders = state.map(|state| state.holders).unwrap_or_default();
                let mine = holders.iter().find(|holder| holder.lease == lease);
                if let (Some(by), Some(mine)) = (by, mine) {
                    request = request.of_fence(Fence::new(mine.fence.get() + by));
                }
                match store.convert(&request).await.map_err(failed)? {
                    ConvertAnswer::Converted(grant) => self.granted(key, &grant)?,
                    ConvertAnswer::Held(held) => self.held(key, &held)?,
                    ConvertAnswer::OtherFence(_) => Told::OtherFence,
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
            Step::ReleaseDone(key, lease, tick, time) => {
                let request = ReleaseRequest::new(keys[key].clone(), leases[lease]);
                let request = request.done(tick, time);
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
                // Other tests may use the store, so the number means nothing. Later steps read the keys.
                store.purge(TTL).await.map_err(failed)?;
                Told::Nothing
            }
            Step::PurgeDead => {
                for key in keys {
                    let mut pause = BRIEF;
                    while let Some(state) = store.inspect(key).await.map_err(failed)?
                        && state.is_free()
                        && state.done.is_none_or(|done| done.until <= state.now)
                    {
                        store.purge(Duration::ZERO).await.map_err(failed)?;
                        sleep(pause).await;
                        pause *= 2;
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
                        waiters,
                        done,
                        ..
                    }) => {
                        let waits = waiters.iter().map(waits).collect();
                        let fence = self.fence(&key, fence)?;
                        let done = done.as_ref().map(done_tick).transpose()?;
                        Some((fence, self.holders(&key, &holders)?, waits, done))
                    }
                })
            }
        })
    }

    /// Waits until the leases that were granted for a moment have expired, and a little longer: a server uses the
    /// machine's clock, which may be set back a little.
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

    /// Waits until the clock has passed the fence, because a removal waits for that, and it comes at another moment in
    /// each store.
    async fn until_past_the_fence(&self, key: &Key) -> Result<(), leasehold::Error> {
        let mut pause = BRIEF;
        while let Some(state) = self.store.inspect(key).await?
            && state.now.timestamp_millis() <= state.fence.get() / 1_024
        {
            sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }
}

//! A client whose requests arrive late, and whose answers are late or lost, on a real engine, in real time: none of that
//! keeps a key from others, or a task waiting.
//!
//! The simulation and the suite of the client have the same with a store in memory, for many more orders of events.

mod answers;
mod tasks;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use leasehold::{
    Acquire, Error, Key, Lease, Leases, LockState, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, Cause, ConvertAnswer,
        ConvertRequest, LeaseId, ReleaseAnswer, ReleaseRequest, Turn,
    },
};
use parking_lot::Mutex;
use tokio::{spawn, sync::Notify, task::JoinHandle, time::sleep};

pub use self::{answers::*, tasks::*};
use super::layer::{Layer, Layered};

/// A ttl that is longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// What is waited for comes much sooner, and without it only at the end of the ttl.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);
/// The time between two steps of a test, if they are to come in this order.
pub(crate) const STEP: Duration = Duration::from_millis(50);
/// How often a test tries what has to be done in time, if each attempt shows that the machine was too slow.
const ATTEMPTS: usize = 4;

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It takes these times, before and after it is carried out.
    Takes(Duration, Duration),
    /// It is carried out this much later, and the place that it takes counts for a minute.
    TakesLongPlace(Duration),
    /// It is reentrant. The connection breaks, and the request is carried out when the test
    /// [says so](Delayed::carry_out_kept).
    ReentrantIsKept,
    /// The connection breaks, and the request is carried out when the test [says so](Delayed::carry_out_kept).
    CutAndKept,
    /// It is carried out this much later, and then the connection breaks.
    AnswerLost(Duration),
    /// It is carried out, and never answered.
    Unanswered,
}

/// A real store whose next requests meet these fates.
#[derive(Clone, Debug)]
pub struct Delayed {
    store: Arc<dyn Store>,
    pub(crate) acquires: Arc<Mutex<VecDeque<Fate>>>,
    pub(crate) releases: Arc<Mutex<VecDeque<Fate>>>,
    kept: Arc<Mutex<Option<AcquireRequest>>>,
    /// A conversion was sent, and waits until the test lets it go on.
    pub(crate) converts: Arc<Notify>,
    pub(crate) may_convert: Arc<Notify>,
    /// How many acquires the store was sent.
    pub(crate) asked: Arc<AtomicUsize>,
    /// Whether no request reaches the store.
    pub(crate) is_down: Arc<AtomicBool>,
    /// How often the release of each lease was sent after one that was answered.
    repeated: Arc<Mutex<HashMap<LeaseId, Option<usize>>>>,
}

impl Delayed {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            acquires: Arc::default(),
            releases: Arc::default(),
            kept: Arc::default(),
            converts: Arc::default(),
            may_convert: Arc::default(),
            asked: Arc::default(),
            is_down: Arc::default(),
            repeated: Arc::default(),
        }
    }

    pub(crate) fn leases(&self) -> Leases {
        self.leases_with(super::PATIENCE)
    }

    pub(crate) fn leases_with(&self, call_timeout: Duration) -> Leases {
        let leases = Leases::builder(Layered(self.clone()));
        leases.call_timeout(call_timeout).build()
    }

    pub(crate) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.acquires.lock().extend(fates);
    }

    /// Carries out the request that was kept.
    pub(crate) async fn carry_out_kept(&self) -> AcquireAnswer {
        let request = self.kept.lock().take().expect("a request was kept");
        self.store.acquire(&request).await.unwrap()
    }

    /// How often each lease was released, counted from its first release that was answered.
    pub(crate) fn releases_by_lease(&self) -> Vec<usize> {
        let all = self.repeated.lock();
        all.values().flatten().map(|repeats| 1 + repeats).collect()
    }

    fn next_fate(&self, request: &AcquireRequest) -> Option<Fate> {
        let mut fates = self.acquires.lock();
        let is_for_another = matches!(fates.front(), Some(Fate::ReentrantIsKept));
        if is_for_another && !request.is_reentrant() {
            return None;
        }
        fates.pop_front()
    }

    fn cut(&self) -> Error {
        Error::Interrupted {
            store: "the store",
            source: Cause::text("the connection is cut"),
        }
    }

    fn reached(&self) -> Result<(), Error> {
        if self.is_down.load(SeqCst) {
            return Err(self.cut());
        }
        Ok(())
    }

    fn releases(&self, lease: LeaseId) {
        let mut repeated = self.repeated.lock();
        if let Some(times) = repeated.entry(lease).or_default() {
            *times += 1;
        }
    }

    fn released(&self, lease: LeaseId) {
        self.repeated
            .lock()
            .entry(lease)
            .or_default()
            .get_or_insert(0);
    }
}

#[async_trait]
impl Layer for Delayed {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.reached()?;
        self.asked.fetch_add(1, SeqCst);
        let fate = self.next_fate(request);
        match fate {
            None => self.store.acquire(request).await,
            Some(Fate::Takes(before, after)) => {
                sleep(before).await;
                let answer = self.store.acquire(request).await;
                sleep(after).await;
                answer
            }
            Some(Fate::TakesLongPlace(by)) => {
                sleep(by).await;
                let mut request = request.clone();
                if let Turn::InTurn(place) = &mut request.turn {
                    place.counts_for = Duration::from_secs(60);
                }
                self.store.acquire(&request).await
            }
            Some(Fate::CutAndKept | Fate::ReentrantIsKept) => {
                *self.kept.lock() = Some(request.clone());
                Err(self.cut())
            }
            Some(Fate::AnswerLost(by)) => {
                sleep(by).await;
                self.store.acquire(request).await?;
                Err(self.cut())
            }
            Some(Fate::Unanswered) => {
                self.store.acquire(request).await?;
                std::future::pending().await
            }
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.reached()?;
        self.releases(request.lease);
        let fate = self.releases.lock().pop_front();
        let (before, after) = match fate {
            Some(Fate::Takes(before, after)) => (before, after),
            _ => Default::default(),
        };
        sleep(before).await;
        let answer = self.store.release(request).await;
        sleep(after).await;
        self.released(request.lease);
        answer
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.converts.notify_one();
        self.may_convert.notified().await;
        self.store.convert(request).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        self.reached()?;
        let releases = requests.iter().filter_map(|request| match request {
            BatchRequest::Release(release) => Some(release.lease),
            _ => None,
        });
        releases.clone().for_each(|lease| self.releases(lease));
        let answers = self.store.batch(requests).await;
        releases.for_each(|lease| self.released(lease));
        answers
    }
}

pub(crate) fn spawned(acquire: Acquire) -> JoinHandle<Result<Lease, Error>> {
    spawn(acquire.into_future())
}

/// Waits until a task has the key, and releases it at once.
pub(crate) async fn released(task: JoinHandle<Result<Lease, Error>>) {
    task.await.unwrap().unwrap().release().await.unwrap();
}

pub(crate) async fn state(leases: &Leases, key: &str) -> LockState {
    let key = Key::new(key).unwrap();
    leases.inspect(&key).await.unwrap().unwrap()
}

/// Waits until nobody has the key.
pub(crate) async fn until_free(leases: &Leases, key: &str) {
    let start = Instant::now();
    let inspect = async || leases.inspect(&Key::new(key).unwrap()).await.unwrap();
    while inspect().await.is_some_and(|state| !state.is_free()) {
        assert!(start.elapsed() < LIMIT, "the key stays held");
        sleep(STEP).await;
    }
}

/// Tries something with other keys until it succeeds, in case the machine was too slow.
pub(crate) async fn succeeds<F: fmt::Debug>(attempt: impl AsyncFn(&str) -> Result<(), F>) {
    let mut failures = Vec::new();
    for number in 0..ATTEMPTS {
        match attempt(&format!("key {number}")).await {
            Ok(()) => return,
            Err(failure) => failures.push(failure),
        }
    }
    panic!("it failed each time: {failures:?}");
}

/// Tries something with other keys until it takes less than this.
pub(crate) async fn takes_less_than(limit: Duration, attempt: impl AsyncFn(&str) -> Duration) {
    succeeds(async |key| match attempt(key).await {
        time if time < limit => Ok(()),
        time => Err(time),
    })
    .await;
}

/// Makes a store as another process has it, on the same keys.
pub trait Connect: AsyncFn() -> Arc<dyn Store> {}
impl<C: AsyncFn() -> Arc<dyn Store>> Connect for C {}

/// The store of one process, and the handle of another one.
pub(crate) async fn both(connect: &impl Connect) -> (Delayed, Leases) {
    let other = Leases::builder(connect().await).call_timeout(super::PATIENCE);
    (Delayed::new(connect().await), other.build())
}

/// A test for each of these cases. `$connect` returns a function that makes a store as a process has it, on a collection
/// of its own for each call.
#[macro_export]
macro_rules! delays {
    ($connect:expr) => {
        $crate::delays!($connect;
            a_lease_that_a_close_releases_is_given_to_nobody
            an_upgrade_during_a_close_is_that_of_a_lost_lease
            a_lease_whose_answer_was_lost_does_not_wait_behind_its_own_process
            a_late_reentrant_request_does_not_wait_behind_its_own_process
            a_late_answer_ends_no_release_that_is_still_due
            a_subscriber_that_panics_leaves_no_key_taken
            a_place_that_a_writer_takes_after_it_has_given_up_is_given_up
            a_late_request_whose_caller_has_gone_leaves_no_place
            a_task_with_a_note_is_served_in_turn
            a_first_waiter_that_is_not_polled_is_passed_over
            an_answer_that_never_comes_stalls_nobody_for_the_call_timeout
            after_an_outage_each_lease_is_released_twice_at_most
            grants_from_memory_let_other_tasks_run
            work_under_a_lease_that_was_granted_late_begins_with_most_of_the_ttl
            a_caller_of_a_limiter_without_a_runtime_holds_up_nobody
            a_leader_with_a_longest_hold_hands_over
            what_is_dropped_at_the_end_of_main_is_free_only_after_a_close
        );
    };
    ($connect:expr; $($case:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            $crate::delays::$case(&$connect.await).await;
        }
    )*};
}

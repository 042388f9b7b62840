//! Tests that the checkers find what is wrong. The laboratory's work runs in one process, with a store in memory, a
//! slow network, and paused time.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use async_trait::async_trait;
use chrono::TimeDelta;
use fastrand::Rng;
use leasehold::{
    Error, Key, Leases, LockState, MemoryStore, PermitsLeft, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction, GiveBackRequest,
        LeaseId, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer, PermitRequest, Quota,
        ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::subscriber::{DefaultGuard, NoSubscriber};

use leasehold_faults::{
    broken::{Broken, Wrong},
    check::{self, Guarded, Kind, Violations},
    documents::Documents,
    history::{Clock, Event, Recorder, Time},
    ledger::{Account, Ledger},
    recording::{Recording, ServerClock},
    stays::Stays,
    work::{CALL_TIMEOUT, Role, TTL, Worker},
};

/// A network that delays some answers.
#[derive(Debug)]
struct Slow(MemoryStore);

impl Slow {
    async fn pass<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let way = || Duration::from_millis(fastrand::u64(..3));
        sleep(way()).await;
        let answer = answer.await;
        let late = match fastrand::u32(..6) {
            0 => Duration::from_millis(fastrand::u64(..900)),
            _ => way(),
        };
        sleep(late).await;
        answer
    }
}

#[async_trait]
impl Store for Slow {
    fn clock_margin(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.pass(self.0.acquire(request)).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.pass(self.0.leave(key, waiter)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.pass(self.0.renew(requests)).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.pass(self.0.convert(request)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.pass(self.0.release(request)).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.pass(self.0.inspect(key)).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.pass(self.0.look(leases)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.pass(self.0.list(request)).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.pass(self.0.evict(key)).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.pass(self.0.remove_expired(key)).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.pass(self.0.permit(request)).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.pass(self.0.peek(key, quota)).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.pass(self.0.give_back(request)).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.pass(self.0.purge(retention)).await
    }
}

/// Records on this thread why leases go back.
///
/// While one thread has the only subscriber of the process, `tracing` would ask the subscriber of the thread that comes
/// to an event first. So there is another one, for all threads.
fn tell(recorder: &Recorder) -> DefaultGuard {
    static FOR_ALL_THREADS: Once = Once::new();
    FOR_ALL_THREADS.call_once(|| {
        tracing::subscriber::set_global_default(NoSubscriber::new()).unwrap();
    });
    tracing::subscriber::set_default(Stays::of(recorder.clone()))
}

/// How long a key may stay with a client while another one waits for it. No answer is lost on this network, so the
/// pause between two looks and the slowest answer are less.
const RECALLS: Time = 3_000_000;

/// The result of some work.
struct Outcome {
    violations: Violations,
    operations: u64,
    orders: usize,
    /// How many ticks were done.
    ticks: usize,
    guarded: Guarded,
    /// Grants from memory, and leases that went back because another process waited.
    kept: (usize, usize),
}

/// Works for a minute with one deliberate error.
async fn work(wrong: Wrong, seed: u64) -> Outcome {
    // The seed for all random numbers on this thread.
    fastrand::seed(seed);
    let memory = MemoryStore::new();
    let recorder = Recorder::in_memory(Clock::of_this_machine());
    let _told = tell(&recorder);
    recorder.saw(Event::RecallsTake { longest: RECALLS });
    let (ledger, documents) = (Ledger::of(wrong), Documents::in_memory(wrong));
    let mut workers = JoinSet::new();
    for client in 0..4_usize {
        let store: Arc<dyn Store> = Arc::new(Slow(memory.clone()));
        let ahead = TimeDelta::minutes(5 * (client as i64 % 2));
        let store = Arc::new(Broken::new(store, wrong, ahead));
        let store = Recording::new(store, recorder.clone(), ServerClock::OfTheStore);
        let leases = Leases::builder(store);
        let leases = leases.call_timeout(CALL_TIMEOUT).build();
        for number in 0..12 {
            let worker = Worker {
                leases: leases.clone(),
                recorder: recorder.clone(),
                account: Account::Here(ledger.clone()),
                documents: documents.clone(),
                random: Rng::with_seed(seed + client as u64 * 100 + number),
                role: Role::of(number),
                client,
                ttl: TTL,
                dawdles: 20,
            };
            workers.spawn(timeout(Duration::from_secs(60), worker.work()));
        }
    }
    while let Some(done) = workers.join_next().await {
        // The work is dropped at the end, wherever it is.
        let ended = done.unwrap().unwrap_or(Ok(()));
        // A store that does something wrong may take a lease away before its holder learns of the grant.
        assert!(ended.is_ok() || wrong != Wrong::Nothing, "{ended:?}");
    }
    let events = recorder.events();
    let mut violations = check::all(&events);
    let accounts = ledger.accounts();
    if accounts.lost > 0 {
        violations.push(Kind::LostWrite.of(format!("{} writes were lost", accounts.lost)));
    }
    Outcome {
        violations,
        operations: check::operations(&events),
        orders: check::orders(&events).judged,
        ticks: check::ticks(&events).done,
        guarded: check::guarded(&events),
        kept: (check::from_memory(&events), check::recalls_heard(&events)),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_right_is_found_right() {
    let right = work(Wrong::Nothing, 1).await;
    assert_eq!(right.violations, Violations::new());
    assert!(right.operations > 2_000, "{} operations", right.operations);
    assert!(right.orders > 100, "{} orders", right.orders);
    assert!(right.ticks > 10, "{} ticks", right.ticks);
    let (from_memory, recalls) = right.kept;
    assert!(
        from_memory > 300 && recalls > 10,
        "{from_memory} grants from memory and {recalls} recalls"
    );
    let guarded = right.guarded;
    assert!(guarded.written > 20, "{guarded:?}");
    assert!(
        guarded.refused > 5 && guarded.late_without > 5,
        "{guarded:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_found_wrong() {
    for wrong in Wrong::EACH.into_iter().filter(|it| it.is_in_a_process()) {
        let mut caught = 0;
        // Most errors are caught within the first minute.
        for minute in 1..=5 {
            let worked = work(wrong, minute).await;
            let shown = worked
                .violations
                .iter()
                .filter(|it| wrong.shows_in().contains(&it.kind));
            caught = shown.count();
            println!(
                "| {} | in a process | {caught} | {} |",
                wrong.name(),
                worked.operations
            );
            if caught > 0 {
                break;
            }
        }
        assert!(caught > 0, "{wrong:?} was not caught");
    }
}

//! Every operation, dropped or not, while one of its requests is held back, or while the answer to one is held back or
//! lost. It must leave no lock behind, and hold up no waiter.
//!
//! Each combination of an operation, a fault, whether the operation is dropped while the fault lasts, and whether a
//! waiter follows it, is a cell. Each cell has a key, a client and a proxy of its own.

pub mod faults;
mod operations;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use leasehold::{
    Error, Key, Lease, Leases, LockState, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, FreedKeys, LeaseId,
        ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    faults::{Excusable, Fault},
    operations::{OPERATIONS, Operation},
};
use super::{
    layer::{Layer, Layered},
    patient,
    proxy::{Gate, Proxy},
    stalls::Stalls,
};

/// The ttl is so long that no key becomes free by its expiry.
const TTL: Duration = Duration::from_secs(600);
/// The time limits of a call. A lost answer costs the first one. A machine that stands still for as long as a call may
/// take fails cells that it would pass with more time. So a cell may be retried alone with the next time limit, and the
/// last one decides. It is retried only if stalls were measured meanwhile, and if its operation ended before the fault,
/// or failed by an error that a retry may mend, or was late.
const CALL_TIMEOUTS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(10),
];
/// Long enough for what is on its way on this host to arrive.
const MOMENT: Duration = Duration::from_millis(20);
/// Long enough for what comes late to come.
const WHILE: Duration = Duration::from_millis(500);
/// How many cells run at the same time, of all tests of a program together. More of them make a slow server so slow that
/// most requests are late, and are sent again.
const AT_ONCE: u32 = 12;
static SLOTS: Semaphore = Semaphore::const_new(AT_ONCE as usize);

/// Words that occur in requests of one kind and in no others.
pub struct Words {
    pub acquire: &'static str,
    pub renew: &'static str,
    pub release: &'static str,
}

/// An engine, and the ways to reach it.
pub struct Setting<C> {
    /// The address of the engine, for the proxies.
    pub host: String,
    /// A store that is not behind a proxy. It checks the outcome, and is another process.
    pub direct: Arc<dyn Store>,
    /// Makes a store with a client of its own that talks to this address.
    pub connect: C,
    pub words: &'static Words,
    /// Longer than any machine takes for an operation, or for the release of what it left. By the documentation a
    /// dropped operation has one answered release after its last answer, or the call timeout if that answer is lost.
    /// The bound is shorter than the time after which the client gives up a request without an answer by itself.
    pub bound: Duration,
}

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: Operation,
    fault: Fault,
    dropped: bool,
    followed: bool,
}

/// Whether the operation is dropped, and whether a waiter follows it.
const GIVEN_UP: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// Runs every operation with each of the faults.
pub async fn leaves_no_lock_behind(
    setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
    faults: &[Fault],
) {
    let cases = OPERATIONS.iter().flat_map(|&operation| {
        faults.iter().flat_map(move |&fault| {
            GIVEN_UP.map(|(dropped, followed)| Case {
                operation,
                fault,
                dropped,
                followed,
            })
        })
    });
    let mut cases: Vec<_> = cases.collect();
    let stalls = Stalls::of(setting.direct.clone());
    for (call_timeout, slots) in CALL_TIMEOUTS.into_iter().zip([1, AT_ONCE, AT_ONCE]) {
        let last = Some(&call_timeout) == CALL_TIMEOUTS.last();
        let tried = stream::iter(cases).map(async |case| {
            let _slots = SLOTS.acquire_many(slots).await.unwrap();
            let cell = Cell::new(setting, case, setting.bound, call_timeout).await;
            let start = Instant::now();
            let outcome = cell.run().await;
            cell.end(2 * call_timeout).await;
            let error = outcome.err()?;
            let stalled = stalls.since(start).await;
            println!("{call_timeout:?}, {case:?}, beside stalls of {stalled:?}: {error:#}");
            let passing = error.downcast_ref().is_some_and(Error::is_retryable);
            let excused = match error.downcast_ref() {
                Some(Excusable::NotStruck(_)) => true,
                Some(Excusable::Late(_)) => stalled >= setting.bound / 2,
                None => passing && stalled >= call_timeout / 2,
            };
            assert!(excused && !last, "{call_timeout:?}, {case:?}: {error:#}");
            Some(case)
        });
        let again = tried.buffer_unordered(AT_ONCE as usize);
        cases = again.filter_map(async |again| again).collect().await;
    }
}

/// The control: a client that abandons a request which was carried out fails.
pub async fn one_that_abandons_its_request_is_caught(
    setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
) {
    for (followed, caught) in [(false, "stays held"), (true, "held up")] {
        let case = Case {
            operation: Operation::Abandoned,
            fault: Fault::AnswerHeld,
            dropped: true,
            followed,
        };
        let bound = Duration::from_secs(3);
        let cell = Cell::new(setting, case, bound, CALL_TIMEOUTS[2]).await;
        let error = cell.run().await.expect_err("nothing was caught");
        assert!(error.to_string().contains(caught), "{error:#}");
    }
}

/// A task that waits for the key.
type Waiting = JoinHandle<Result<Lease, Error>>;

struct Cell {
    case: Case,
    bound: Duration,
    key: String,
    words: &'static Words,
    proxy: Proxy,
    store: Arc<dyn Store>,
    ended: CancellationToken,
    leases: Leases,
    direct: Leases,
    /// The lease of another process on the key.
    holder: Mutex<Option<Lease>>,
    /// The gate at which the request or the answer is held.
    gate: Mutex<Option<Gate>>,
    armed: Notify,
}

/// A store that can be ended. A client that cannot be closed tries to release for the whole ttl, and its driver connects
/// for as long. Many of them would make the machine slower.
#[derive(Debug)]
struct Endable {
    store: Arc<dyn Store>,
    ended: CancellationToken,
}

impl Endable {
    async fn unless_ended<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let answer = self.ended.run_until_cancelled(call).await;
        answer.unwrap_or(Err(Error::Closed))
    }
}

#[async_trait]
impl Layer for Endable {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.unless_ended(self.store.acquire(request)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.unless_ended(self.store.renew(requests)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.unless_ended(self.store.release(request)).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        self.unless_ended(self.store.batch(requests)).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.unless_ended(self.store.freed()).await
    }
}

impl Cell {
    async fn new(
        setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
        case: Case,
        bound: Duration,
        call_timeout: Duration,
    ) -> Self {
        let proxy = Proxy::to(setting.host.clone()).await;
        let ended = CancellationToken::new();
        let store = Endable {
            store: (setting.connect)(proxy.address).await,
            ended: ended.clone(),
        };
        let store = Arc::new(Layered(store));
        let leases = Leases::builder(store.clone()).call_timeout(call_timeout);
        Self {
            case,
            bound,
            key: format!("key {}", LeaseId::random()),
            words: setting.words,
            proxy,
            store,
            ended,
            leases: leases.build(),
            direct: patient(setting.direct.clone()),
            holder: Mutex::default(),
            gate: Mutex::default(),
            armed: Notify::new(),
        }
    }

    async fn run(&self) -> Result<()> {
        let Case {
            fault,
            dropped,
            followed,
            ..
        } = self.case;
        // This opens the connection before the fault.
        let _ = self.store.inspect(&Key::new(&self.key)?).await?;
        let mut operation = Some(Box::pin(self.operate()));
        let mut gate = tokio::select! {
            biased;
            gate = self.struck() => gate,
            outcome = operation.as_mut().context("it is there")? => {
                unless_passing(outcome)?;
                let why = "it ended before it was struck".to_owned();
                return Err(Excusable::NotStruck(why).into());
            }
        };
        // While every answer is lost, every other request fails too, so there is no waiter then.
        let mut next = (followed && fault != Fault::AnswersLost).then(|| self.acquiring());
        sleep(MOMENT).await;
        if dropped {
            operation = None;
        }
        self.release_holder().await?;
        if matches!(fault, Fault::RequestCut | Fault::AnswerCut)
            && let Some(gate) = gate.take()
        {
            gate.cut();
        }
        if let Some(operation) = operation {
            let outcome = timeout(self.bound, operation).await;
            let late = |_| Excusable::Late("it does not end".to_owned());
            unless_passing(outcome.map_err(late)?)?;
        }
        self.proxy.behave();
        if fault == Fault::AnswerHeld {
            drop(gate.take());
        }
        if followed {
            let next = next.take().unwrap_or_else(|| self.acquiring());
            self.follow(next, &mut gate).await?;
        }
        self.until_free().await?;
        if let Some(gate) = gate {
            self.carry_out_late(gate).await?;
        }
        sleep(WHILE).await;
        self.until_free().await?;
        Ok(self.was_struck()?)
    }

    /// Closes the client within this time, or ends it.
    async fn end(&self, limit: Duration) {
        self.proxy.behave();
        self.proxy.hang_up();
        self.gate.lock().take();
        let _ = timeout(limit, self.leases.close()).await;
        self.ended.cancel();
    }

    /// The waiter gets the key, whatever is held at the gate. If that is a renewal or a release, it is carried out
    /// while the waiter has the key, and does nothing to it.
    async fn follow(&self, next: Waiting, gate: &mut Option<Gate>) -> Result<()> {
        let Ok(lease) = timeout(self.bound, self.acquired(next)).await else {
            let why = format!("the next one is held up: {:?}", self.look().await?);
            return Err(Excusable::Late(why).into());
        };
        let lease = lease?;
        if !self.case.operation.is_struck_acquiring()
            && let Some(gate) = gate.take()
        {
            self.carry_out_late(gate).await?;
            let state = self.look().await?.context("its document is gone")?;
            let holders: Vec<_> = state.holders.iter().map(|holder| holder.lease).collect();
            ensure!(holders == [lease.id()], "it has lost its lease: {state:?}");
        }
        unless_passing(lease.release().await.map_err(Into::into))
    }

    /// On a slow server the waiter may have to retry.
    async fn acquired(&self, mut next: Waiting) -> Result<Lease> {
        loop {
            match next.await? {
                Ok(lease) => return Ok(lease),
                Err(error) => unless_passing(Err(error.into()))?,
            }
            next = self.acquiring();
        }
    }

    /// Opens the gate, and waits until the server has carried the request out.
    async fn carry_out_late(&self, gate: Gate) -> Result<()> {
        gate.open();
        let start = Instant::now();
        while self.proxy.late() == 0 {
            let late = || Excusable::Late("it is not carried out late".to_owned());
            ensure!(start.elapsed() < self.bound, late());
            sleep(MOMENT).await;
        }
        Ok(())
    }

    async fn until_free(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let state = self.look().await?;
            if state.as_ref().is_none_or(LockState::is_free) {
                return Ok(());
            }
            let late = || Excusable::Late(format!("the key stays held: {state:?}"));
            ensure!(start.elapsed() < self.bound, late());
            sleep(MOMENT).await;
        }
    }

    async fn look(&self) -> Result<Option<LockState>, Error> {
        self.direct.inspect(&self.key).await
    }
}

/// An operation that is not dropped succeeds, or returns an error that a retry may mend: a quick server gets over one
/// fault, and a slow one may not. Any other error would be wrong, above all that the lease is lost.
fn unless_passing(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if !error.downcast_ref().is_some_and(Error::is_retryable) => Err(error),
        _ => Ok(()),
    }
}

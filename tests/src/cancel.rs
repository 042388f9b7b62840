//! Every operation, given up or not while one of its requests is held back, or the answer to it held
//! back or lost: it leaves no lock behind, and holds nobody up.
//!
//! One cell of the product is an operation, the fault that strikes it, whether it is dropped while it
//! stands there, and whether somebody waits behind it. Each has a key, a client and a proxy of its
//! own.

pub mod faults;
mod operations;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use leasehold::{Error, Key, Lease, Leases, LockState, Store, store::LeaseId};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use self::{
    faults::{Excusable, Fault},
    operations::{OPERATIONS, Operation},
};
use super::{
    patient,
    proxy::{Gate, Proxy},
    stalls::Stalls,
};

/// No key becomes free because its ttl is over.
const TTL: Duration = Duration::from_secs(600);
/// What a lost answer costs, at first. A machine that stands still for as long as a call may take fails cells that
/// it would pass with more time. Only a cell whose operation was over before it was struck, or that failed by an error
/// that passes or by being late, beside stalls that were measured, is tried again, by itself, with the next; the
/// last one decides.
const CALL_TIMEOUTS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(10),
];
/// Long enough for what is on its way here to arrive.
const MOMENT: Duration = Duration::from_millis(20);
/// Long enough for what could come late to come.
const WHILE: Duration = Duration::from_millis(500);
/// How many cells are tried at the same time.
const AT_ONCE: usize = 12;

/// What a request of this kind has in it, and no other.
pub struct Words {
    pub acquire: &'static str,
    pub renew: &'static str,
    pub release: &'static str,
}

/// An engine, and how to get at it.
pub struct Setting<C> {
    /// The address of the engine, for the proxies.
    pub host: String,
    /// Not through a proxy: this one looks, and is another process.
    pub direct: Arc<dyn Store>,
    /// A store with a client of its own that talks to this address.
    pub connect: C,
    pub words: &'static Words,
    /// Longer than any machine takes for an operation, or for the release of what it left. The documentation
    /// gives an operation that is given up one answered release after its last answer, and the call timeout
    /// where that is lost. It is shorter than the time after which the client by itself gives up a request
    /// without an answer.
    pub bound: Duration,
}

/// One of the product.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: Operation,
    fault: Fault,
    dropped: bool,
    followed: bool,
}

/// Whether an operation is dropped, and whether somebody waits behind it.
const GIVEN_UP: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// Tries every operation with each of the faults.
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
    for (call_timeout, at_once) in CALL_TIMEOUTS.into_iter().zip([AT_ONCE, 1, 1]) {
        let last = Some(&call_timeout) == CALL_TIMEOUTS.last();
        let tried = stream::iter(cases).map(async |case| {
            let cell = Cell::new(setting, case, setting.bound, call_timeout).await;
            let start = Instant::now();
            let error = cell.run().await.err()?;
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
        let again = tried.buffer_unordered(at_once);
        cases = again.filter_map(async |again| again).collect().await;
    }
}

/// A client that lets go of a request that was carried out does not pass.
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

/// One more that waits.
type Waiting = JoinHandle<Result<Lease, Error>>;

struct Cell {
    case: Case,
    bound: Duration,
    key: String,
    words: &'static Words,
    proxy: Proxy,
    store: Arc<dyn Store>,
    leases: Leases,
    direct: Leases,
    /// What another process has of the key.
    holder: Mutex<Option<Lease>>,
    /// Where the request or the answer is held.
    gate: Mutex<Option<Gate>>,
    armed: Notify,
}

impl Cell {
    async fn new(
        setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
        case: Case,
        bound: Duration,
        call_timeout: Duration,
    ) -> Self {
        let proxy = Proxy::to(setting.host.clone()).await;
        let store = (setting.connect)(proxy.address).await;
        let leases = Leases::builder(store.clone()).call_timeout(call_timeout);
        Self {
            case,
            bound,
            key: format!("key {}", LeaseId::random()),
            words: setting.words,
            proxy,
            store,
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
        // The connection is there before anything is struck.
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
        // Whatever is asked for while every answer is lost fails.
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
        // Ends what listens. An answer that never comes it would wait for.
        let _ = timeout(MOMENT, self.leases.close()).await;
        Ok(self.was_struck()?)
    }

    /// Whoever waits behind gets the key, whatever stands at the gate. If that is no acquire, it is
    /// carried out while another has the key, and does nothing to it.
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

    /// A slow server may have it ask again.
    async fn acquired(&self, mut next: Waiting) -> Result<Lease> {
        loop {
            match next.await? {
                Ok(lease) => return Ok(lease),
                Err(error) => unless_passing(Err(error.into()))?,
            }
            next = self.acquiring();
        }
    }

    /// Lets go of what is at the gate, and waits until the server has carried it out.
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

/// What is not dropped succeeds, or says that it may succeed later: a quick server overcomes one
/// fault, and a slow one may not. Anything else is not true, above all that the lease is lost.
fn unless_passing(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if !error.downcast_ref().is_some_and(Error::is_retryable) => Err(error),
        _ => Ok(()),
    }
}

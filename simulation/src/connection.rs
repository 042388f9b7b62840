//! The store of one client: its way to the server, with all that can happen there.

mod store;

use std::{fmt, future::pending, mem, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use fastrand::Rng;
use leasehold::{Error, Key, store::Cause};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    course::{CALL_TIMEOUT, Fault},
    judge::Judge,
    server::{Server, State, comes, describe},
    task::OnDrop,
};

/// What the errors call the store.
const STORE: &str = "the simulated store";
/// After this time a request without an answer fails, as with a connection that is checked now and then.
const GIVES_UP: Duration = Duration::from_secs(30);
/// A way that takes longer than this is a fault.
const USUAL: Duration = Duration::from_millis(100);

/// The way of one client to the server.
#[derive(Debug)]
pub struct Connection {
    server: Arc<Server>,
    client: usize,
    /// When this is cancelled, nothing of the client arrives any more, but perhaps what is on its way.
    pub killed: CancellationToken,
    rng: Mutex<Rng>,
}

/// What happens to a request.
#[derive(Clone, Debug)]
struct Fate {
    /// How long it is on its way. `None` if it never arrives.
    out: Option<Duration>,
    /// How long the server works on it.
    stall: Duration,
    /// How long the answer is on its way. `None` if it never arrives.
    back: Option<Duration>,
    /// How long the client waits for the answer.
    patience: Duration,
    /// The error that the client gets if no answer comes.
    error: Error,
    /// How long the server stands still from the arrival on.
    still: Duration,
    /// How long the way is broken from then on.
    outage: Duration,
    /// Whether it arrives although its client is killed meanwhile.
    survives: bool,
}

impl Fate {
    /// A fault happens: the first thing that it may do, or the other. The client hears soon of a request that is lost or
    /// refused, and others are longer on their way.
    fn meets(&mut self, kind: Fault, first: bool, soon: Duration, long: Duration) {
        let (store, source) = (STORE, Cause::text("a fault"));
        let never = |error| (None, soon, error);
        match kind {
            Fault::Lost if first => {
                (self.out, self.patience, self.error) = never(Error::Unreachable { store, source });
            }
            Fault::Lost => (self.back, self.patience) = (None, soon * 2),
            Fault::Late if first => self.out = Some(long),
            Fault::Late => self.back = Some(long),
            Fault::Silent if first => self.out = None,
            Fault::Silent => self.back = None,
            Fault::Cut => {
                // A request that arrives after the call timeout may leave a lease, and the client cannot know.
                let long = long.min(CALL_TIMEOUT * 9 / 10);
                (self.out, self.patience) = (Some(long), long / 4);
            }
            Fault::Refused => {
                (self.out, self.patience, self.error) = never(Error::Overloaded { store, source });
            }
            Fault::Stalled => self.stall = long / 8,
            Fault::Still => self.still = long * 3 / 4,
            Fault::Outage => self.outage = CALL_TIMEOUT + long / 2,
        }
    }
}

impl Connection {
    /// The way of a client to the server.
    pub fn new(server: Arc<Server>, client: usize) -> Arc<Self> {
        Arc::new(Self {
            client,
            killed: CancellationToken::new(),
            rng: Mutex::new(server.course.rng(client, 0, 0)),
            server,
        })
    }

    fn say(&self, what: impl FnOnce() -> String) {
        let (client, mut state) = (self.client, self.server.state());
        state.say(format_args!("client {client}"), what);
    }

    /// What happens to the next request.
    fn fate(&self, state: &mut State) -> Fate {
        let course = &self.server.course;
        let mut rng = self.rng.lock();
        let mut way = || Duration::from_millis(rng.u64(0..=course.way));
        let (store, source) = (STORE, Cause::text("a fault"));
        let mut fate = Fate {
            out: Some(way()),
            stall: Duration::ZERO,
            back: Some(way()),
            patience: GIVES_UP,
            error: Error::Interrupted { store, source },
            still: Duration::ZERO,
            outage: Duration::ZERO,
            survives: rng.bool(),
        };
        let (chosen, long) = (rng.u32(0..1_000), Duration::from_millis(rng.u64(0..4_000)));
        let soon = Duration::from_millis(course.way);
        if Instant::now() < state.mended(self.client) {
            (fate.out, fate.patience) = (None, soon);
            fate.error = Error::Unreachable {
                store,
                source: Cause::text("an outage"),
            };
            return fate;
        }
        let mut before = 0;
        let kind = course.faults.iter().find_map(|(&kind, share)| {
            before += share;
            (chosen < before).then_some(kind)
        });
        let Some(kind) = kind.filter(|_| state.faults_left > 0) else {
            return fate;
        };
        state.faults_left -= 1;
        state.count(&kind.name());
        fate.meets(kind, rng.bool(), soon, long);
        let ways = fate.out.zip(fate.back).map(|(out, back)| out + back);
        let lasts = ways.unwrap_or(fate.patience) + fate.stall + fate.still;
        state.note_trouble(Instant::now() + lasts + USUAL);
        state.say(format_args!("client {}", self.client), || {
            format!("the next request meets a {}, {long:?}", kind.name())
        });
        fate
    }

    /// Sends a request, and returns its answer, unless something happens to it.
    async fn send<T: fmt::Debug + Send + 'static>(
        &self,
        what: &'static str,
        key: Option<&Key>,
        asked: impl FnOnce() -> String,
        work: impl FnOnce(&mut State, DateTime<Utc>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.killed.is_cancelled() {
            return pending().await;
        }
        let (is_flooded, fate) = {
            let mut state = self.server.state();
            (state.count_request(), self.fate(&mut state))
        };
        if is_flooded {
            let text = format!("client {} repeats requests without a pause", self.client);
            self.server.state().accuse(Judge::Flood, text);
            // The clock is paused, so the run would not end.
            sleep(GIVES_UP).await;
        }
        self.say(|| format!("sends {what}: {}", asked()));
        let dropped = OnDrop(|| {
            if !self.killed.is_cancelled() {
                let text = format!("{what} of client {}", self.client);
                self.server.state().accuse(Judge::Dropped, text);
            }
        });
        let delivery = tokio::spawn(self.deliver(what, key.cloned(), fate.clone(), work));
        let answer = async {
            match delivery.await {
                Ok(Some(answer)) => answer,
                _ => pending().await,
            }
        };
        let outcome = timeout(fate.patience, answer).await;
        let outcome = outcome.unwrap_or(Err(fate.error));
        if self.killed.is_cancelled() {
            return pending().await;
        }
        if !(self.server.state().is_wrong(Judge::Dropped) && fate.survives) {
            mem::forget(dropped);
        }
        self.say(|| format!("hears of {what}: {}", short(&outcome)));
        outcome
    }

    /// Brings a request to the server, and its answer back. `None` if one of the two never arrives.
    fn deliver<T: fmt::Debug + Send + 'static>(
        &self,
        what: &'static str,
        key: Option<Key>,
        fate: Fate,
        work: impl FnOnce(&mut State, DateTime<Utc>) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Option<Result<T, Error>>> + Send + 'static {
        let (server, client, killed) = (self.server.clone(), self.client, self.killed.clone());
        async move {
            passes(fate.out?).await;
            if killed.is_cancelled() && !fate.survives {
                return None;
            }
            // A request whose connection broke has passed the way already.
            if fate.patience == GIVES_UP {
                comes(|| server.state().mended(client)).await;
            }
            server.answers(fate.still).await;
            let came = server.state().now();
            passes(fate.stall).await;
            let outcome = {
                let mut state = server.state();
                let outcome = work(&mut state, came);
                let record = key.and_then(|key| state.records.get(&key).cloned());
                state.say(format_args!("server"), || {
                    let record = record.map_or_else(String::new, |it| describe(&it, came));
                    format!("{what} of client {client}: {}; {record}", short(&outcome))
                });
                if !fate.outage.is_zero() {
                    let mended = Instant::now() + fate.outage;
                    state.outages.insert(client, mended);
                    state.note_trouble(mended + USUAL);
                }
                outcome
            };
            passes(fate.back?).await;
            comes(|| server.state().mended(client)).await;
            Some(outcome)
        }
    }
}

/// Lets this time pass. If it is zero, nothing happens meanwhile.
async fn passes(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// The beginning of an answer, for the trace.
fn short<T: fmt::Debug>(outcome: &Result<T, Error>) -> String {
    match outcome {
        Ok(answer) => format!("{answer:?}").chars().take(40).collect(),
        Err(error) => format!("error: {error}"),
    }
}

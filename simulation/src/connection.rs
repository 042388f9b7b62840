//! The store of one client: its way to the server, with all that can happen there.

mod store;

use std::{
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use fastrand::Rng;
use leasehold::{Error, Key, store::Cause};
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{
    control::Control,
    course::{CALL_TIMEOUT, Course},
    judge::Judge,
    server::{Server, State, describe},
    trace::Who,
};

/// After this time a request without an answer fails, as with a connection that is checked now and then.
const GIVES_UP: Duration = Duration::from_secs(30);
/// For so long after a fault there may be four times as many.
const BURST: Duration = Duration::from_secs(3);
/// A way that takes longer than this is a fault.
pub const USUAL: Duration = Duration::from_millis(100);

/// The way of one client to the server.
pub struct Connection {
    /// The server.
    pub server: Arc<Server>,
    client: usize,
    course: Course,
    is_killed: Arc<AtomicBool>,
    rng: Mutex<Rng>,
    /// When a request of the client last met a fault.
    faulty: Mutex<Option<Instant>>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// How long it is on its way. `None` if it never arrives.
    out: Option<Duration>,
    /// How long the server works on it.
    stall: Duration,
    /// How long the answer is on its way. `None` if it never arrives.
    back: Option<Duration>,
    /// The error that the client gets instead of the answer, and when: before the request arrives, or after the answer.
    error: Option<(Failure, Option<Duration>)>,
    /// How long the server stands still from the arrival on.
    still: Duration,
    /// Whether it arrives although its client is killed meanwhile.
    survives: bool,
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    Unreachable,
    Interrupted,
    Overloaded,
}

impl Failure {
    fn error(self) -> Error {
        let (store, source) = ("the simulated store", Cause::text("a fault"));
        match self {
            Self::Unreachable => Error::Unreachable { store, source },
            Self::Interrupted => Error::Interrupted { store, source },
            Self::Overloaded => Error::Overloaded { store, source },
        }
    }
}

impl Connection {
    /// The way of a client to the server.
    pub fn new(server: Arc<Server>, client: usize, course: &Course) -> Arc<Self> {
        Arc::new(Self {
            server,
            client,
            course: course.clone(),
            is_killed: Arc::default(),
            rng: Mutex::new(course.rng(client, 0, 0)),
            faulty: Mutex::default(),
        })
    }

    /// From now on nothing of the client arrives, but perhaps what is on its way.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::Relaxed);
    }

    fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }

    /// What happens to the next request, and until when it is a fault.
    fn fate(&self, state: &mut State) -> Fate {
        let mut rng = self.rng.lock();
        let way = |rng: &mut Rng| Duration::from_millis(rng.u64(0..=self.course.way));
        let mut fate = Fate {
            out: Some(way(&mut rng)),
            stall: Duration::ZERO,
            back: Some(way(&mut rng)),
            error: None,
            still: Duration::ZERO,
            survives: rng.bool(),
        };
        let (chosen, long) = (rng.u32(0..1_000), Duration::from_millis(rng.u64(0..4_000)));
        if state.faults_left == 0 {
            return fate;
        }
        let now = Instant::now();
        let mut faulty = self.faulty.lock();
        let is_burst = self.course.has_bursts && faulty.is_some_and(|at| now < at + BURST);
        let chosen = if is_burst { chosen / 4 } else { chosen };
        let mut before = 0;
        let mut faults = self.course.faults;
        let kind = faults.kinds().into_iter().find_map(|(name, share)| {
            before += *share;
            (chosen < before).then_some(name)
        });
        let Some(kind) = kind else { return fate };
        state.faults_left -= 1;
        *faulty = Some(now);
        *state.tally.entry(kind).or_default() += 1;
        let first = rng.bool();
        // The client hears of it after the time of a way.
        let soon = Some(Duration::from_millis(self.course.way));
        let never_arrives = |failure| (None, Some((failure, soon)));
        let mut lasts = Duration::ZERO;
        match kind {
            "fault: lost" if first => (fate.out, fate.error) = never_arrives(Failure::Unreachable),
            "fault: lost" => fate.error = Some((Failure::Interrupted, None)),
            "fault: late" if first => (fate.out, lasts) = (Some(long), long),
            "fault: late" => (fate.back, lasts) = (Some(long), long),
            "fault: silent" if first => (fate.out, lasts) = (None, GIVES_UP),
            "fault: silent" => (fate.back, lasts) = (None, GIVES_UP),
            "fault: cut" => {
                // A request that arrives after the call timeout may leave a lease, and the client cannot know.
                let long = long.min(CALL_TIMEOUT * 9 / 10);
                (fate.out, lasts) = (Some(long), long);
                fate.error = Some((Failure::Interrupted, Some(long / 4)));
            }
            "fault: refused" => (fate.out, fate.error) = never_arrives(Failure::Overloaded),
            "fault: stalled" => (fate.stall, lasts) = (long / 8, long / 8),
            _ => (fate.still, lasts) = (long * 3 / 4, long * 3 / 4),
        }
        state.note_trouble(Instant::now() + lasts + USUAL);
        self.server.trace.say(Who::Client(self.client), || {
            format!("the next request meets a {kind}, {long:?}")
        });
        fate
    }

    /// Sends a request, and returns its answer, unless something happens to it.
    async fn send<T: fmt::Debug + Send + 'static>(
        &self,
        what: &'static str,
        key: Option<&Key>,
        asked: impl FnOnce() -> String,
        work: impl FnOnce(&Server, &mut State, DateTime<Utc>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.is_killed() {
            return pending().await;
        }
        let (is_flooded, fate) = {
            let mut state = self.server.state();
            (state.count_request(), self.fate(&mut state))
        };
        if is_flooded {
            let text = || format!("client {} repeats requests without a pause", self.client);
            self.server.accuse(Judge::Flood, text);
            // The clock is paused, so the run would not end.
            sleep(GIVES_UP).await;
        }
        let trace = &self.server.trace;
        trace.say(Who::Client(self.client), || {
            format!("sends {what}: {}", asked())
        });
        let mut under_way = UnderWay {
            connection: self,
            what,
            is_answered: false,
        };
        let (answer, answered) = oneshot::channel();
        tokio::spawn(self.deliver(what, key.cloned(), fate, work, answer));
        let outcome = match fate.error {
            Some((failure, after)) => {
                match after {
                    Some(after) => sleep(after).await,
                    None => drop(answered.await),
                }
                Err(failure.error())
            }
            None => match timeout(GIVES_UP, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) if !self.is_killed() => {
                    sleep(GIVES_UP).await;
                    Err(Failure::Interrupted.error())
                }
                Ok(Err(_)) => pending().await,
                Err(_) => Err(Failure::Interrupted.error()),
            },
        };
        if self.server.control == Some(Control::DropsRequests) && fate.survives {
            return outcome;
        }
        under_way.is_answered = true;
        if self.is_killed() {
            return pending().await;
        }
        trace.say(Who::Client(self.client), || {
            format!("hears of {what}: {}", short(&outcome))
        });
        outcome
    }

    /// Brings a request to the server, and its answer back.
    fn deliver<T: fmt::Debug + Send + 'static>(
        &self,
        what: &'static str,
        key: Option<Key>,
        fate: Fate,
        work: impl FnOnce(&Server, &mut State, DateTime<Utc>) -> Result<T, Error> + Send + 'static,
        answer: oneshot::Sender<Result<T, Error>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (server, client) = (self.server.clone(), self.client);
        let is_killed = self.is_killed.clone();
        async move {
            let Some(out) = fate.out else { return };
            if !out.is_zero() {
                sleep(out).await;
            }
            if is_killed.load(Ordering::Relaxed) && !fate.survives {
                return;
            }
            // A server that stands still does not stand still for longer because of what waits for it meanwhile.
            let has_waited = server.state().stands_until > Instant::now();
            server.answers().await;
            let came = server.state().now();
            if !fate.still.is_zero() && !has_waited {
                server.stands(fate.still);
                server.answers().await;
            }
            let stalls = !fate.stall.is_zero();
            if stalls {
                sleep(fate.stall).await;
            }
            let outcome = {
                let mut state = server.state();
                let now = if stalls { came } else { state.now() };
                let outcome = work(&server, &mut state, now);
                server.trace.say(Who::Server, || {
                    let record = key.and_then(|key| Some(describe(state.records.get(&key)?, now)));
                    let record = record.unwrap_or_default();
                    format!("{what} of client {client}: {}; {record}", short(&outcome))
                });
                outcome
            };
            let Some(back) = fate.back else { return };
            if !back.is_zero() {
                sleep(back).await;
            }
            let _ = answer.send(outcome);
        }
    }
}

/// The beginning of an answer, for the trace.
fn short<T: fmt::Debug>(outcome: &Result<T, Error>) -> String {
    match outcome {
        Ok(answer) => format!("{answer:?}").chars().take(40).collect(),
        Err(error) => format!("error: {error}"),
    }
}

/// A request whose answer has not come. If it is dropped, a judge is told.
struct UnderWay<'a> {
    connection: &'a Connection,
    what: &'static str,
    is_answered: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_answered && !self.connection.is_killed() {
            let client = self.connection.client;
            let text = || format!("{} of client {client}", self.what);
            self.connection.server.accuse(Judge::Dropped, text);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.client)
    }
}

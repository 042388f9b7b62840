//! The world of a run: it makes the server and the clients, closes and kills clients, lets the clock step, and looks at
//! what is left at the end.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use fastrand::Rng;
use leasehold::{Leases, Ticket, testing::seed_thread};
use tokio::{
    runtime::{self, Handle, Runtime},
    sync::Notify,
    task::{JoinHandle, LocalSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    connection::Connection,
    control::Control,
    course::{CALL_TIMEOUT, Course, MARGIN},
    judge::{Judge, Violation},
    ledger::{Ledger, Tally},
    panics,
    restart::Left,
    server::Server,
    task::{CALL, Task, keys},
    trace::{Trace, Who},
};

/// Longer than anything goes on after the last fault.
const QUIET: Duration = Duration::from_secs(60);

/// The tickets that tasks leave for each other; of each, whether it is reentrant, and whether it may be shared.
#[derive(Default)]
pub struct Pool {
    /// The tickets.
    pub tickets: RefCell<Vec<(Ticket, bool, bool)>>,
    /// Wakes a task that may take one.
    pub arrived: Notify,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// How often each thing happened.
    pub tally: Tally,
    /// The events, if they are kept.
    pub trace: Vec<String>,
}

/// How a run is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What is wrong on purpose.
    pub control: Option<Control>,
    /// Whether the events are kept.
    pub is_traced: bool,
    /// The judges whose findings are counted, and do not end the run.
    pub ignored: &'static [Judge],
}

struct Client {
    leases: Option<Leases>,
    connection: Arc<Connection>,
    tasks: Vec<JoinHandle<()>>,
}

struct World {
    course: Course,
    server: Arc<Server>,
    ledger: Rc<Ledger>,
    clients: Vec<Client>,
    rng: Rng,
    /// Whether the runtime ends now.
    is_over: bool,
}

/// Makes a run.
pub fn run(course: &Course, options: &Options) -> Outcome {
    seed_thread(course.seed);
    panics::watch();
    let trace = Arc::new(Trace::new(options.is_traced));
    let runtime = match paused_runtime(course.seed) {
        Ok(runtime) => runtime,
        Err(error) => {
            let text = format!("no runtime: {error}");
            return Outcome {
                violation: Some(Violation::new(Judge::Panicked, text)),
                ..Outcome::default()
            };
        }
    };
    let tasks = LocalSet::new();
    let (server, ledger, left) = tasks.block_on(&runtime, async {
        trace.begin(Instant::now());
        let mut world = World::new(course, options, trace.clone());
        world.goes_on().await;
        let clients = std::mem::take(&mut world.clients);
        let is_wrong = world.server.state().violation.is_some();
        let left = if is_wrong {
            None
        } else if world.is_over {
            let handles = clients.into_iter().filter_map(|it| it.leases).collect();
            Some(Left::of(handles, &world.server, &world.ledger))
        } else {
            world.ends(clients).await;
            None
        };
        (world.server, world.ledger, left)
    });
    // What the end of the runtime drops, or is over with the run, is no fault of a client.
    server.state().is_over = true;
    drop((tasks, runtime));
    if let (Some(left), Ok(runtime)) = (left, paused_runtime(course.seed)) {
        server.state().is_over = false;
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, left.goes_on(course, &server, &ledger));
        server.state().is_over = true;
    }
    if let Some(panic) = panics::take() {
        server.state().is_over = false;
        server.accuse(Judge::Panicked, || panic);
    }
    let tally = tally(&server, &ledger);
    let violation = server.state().violation.take();
    Outcome {
        violation,
        tally,
        trace: trace.take(),
    }
}

/// A runtime of one thread, whose time passes only while nothing is to be done.
fn paused_runtime(seed: u64) -> std::io::Result<Runtime> {
    let mut builder = runtime::Builder::new_current_thread();
    #[cfg(tokio_unstable)]
    builder.rng_seed(runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = seed;
    builder.enable_time().start_paused(true).build()
}

impl World {
    /// Makes the server and the clients, and lets their tasks begin.
    fn new(course: &Course, options: &Options, trace: Arc<Trace>) -> Self {
        let server = Server::new(trace, options, course.fault_budget);
        let ledger = Ledger::new(server.clone(), course.clone());
        let pool = Rc::new(Pool::default());
        let clients = (0..course.clients).map(|client| {
            let connection = Connection::new(server.clone(), client, course);
            let builder = Leases::builder(connection.clone()).owner(course.owner_of(client));
            let leases = builder.call_timeout(CALL_TIMEOUT).build();
            let tasks = (0..course.tasks).map(|number| {
                let task = Task {
                    course: course.clone(),
                    server: server.clone(),
                    ledger: ledger.clone(),
                    leases: leases.clone(),
                    pool: pool.clone(),
                    client,
                    number,
                    rng: RefCell::new(course.rng(client, number + 1, 0)),
                };
                tokio::task::spawn_local(task.run())
            });
            Client {
                tasks: tasks.collect(),
                leases: Some(leases),
                connection,
            }
        });
        Self {
            course: course.clone(),
            clients: clients.collect(),
            ledger,
            server,
            rng: Rng::with_seed(course.seed ^ 1),
            is_over: false,
        }
    }

    /// Lets things happen until all tasks have ended, or something is wrong.
    async fn goes_on(&mut self) {
        let mut pause = Duration::from_millis(50);
        let mut seen = 0;
        let mut next = self.event_in();
        let began = Instant::now();
        loop {
            sleep(pause).await;
            self.ledger.check();
            self.ledger.look();
            if began.elapsed() >= next {
                next = began.elapsed() + self.event_in();
                self.event();
            }
            let (version, is_wrong) = {
                let state = self.server.state();
                (state.requests, state.violation.is_some())
            };
            pause = if version == seen {
                (pause * 2).min(Duration::from_millis(500))
            } else {
                Duration::from_millis(50)
            };
            seen = version;
            let mut tasks = self.clients.iter().flat_map(|it| &it.tasks);
            if is_wrong || self.is_over || tasks.all(JoinHandle::is_finished) {
                return;
            }
        }
    }

    fn event_in(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(50..2_000))
    }

    /// Something that no task does.
    fn event(&mut self) {
        let client = self.rng.usize(0..self.clients.len());
        let is_there = !self.ledger.is_gone(client);
        match self.rng.u8(0..6) {
            0 if self.course.closes && is_there => self.close(client),
            1 if self.course.kills && is_there => self.kill(client),
            4 if self.course.ends_runtime => self.is_over = true,
            2 | 3 if self.course.steps_clock => {
                let most = i64::try_from(MARGIN.as_millis()).unwrap_or(0) - 10;
                let ahead = self.rng.i64(0..=most);
                self.server.state().ahead = ahead;
                let text = || format!("its clock is {ahead} ms ahead");
                self.server.say(Who::Server, text);
            }
            _ => {}
        }
    }

    fn close(&mut self, client: usize) {
        let Some(leases) = self.clients[client].leases.clone() else {
            return;
        };
        self.server.say(Who::Client(client), || "closes".to_owned());
        self.ledger.goes(client, false);
        self.ledger.count("closed");
        let closing = tokio::task::spawn_local(async move { leases.close().await });
        self.clients[client].tasks.push(closing);
    }

    fn kill(&mut self, client: usize) {
        self.server
            .say(Who::Client(client), || "is killed".to_owned());
        self.ledger.goes(client, true);
        self.ledger.count("killed");
        let it = &mut self.clients[client];
        it.connection.kill();
        it.leases = None;
        it.tasks.drain(..).for_each(|task| task.abort());
        // Its leases stay until they expire.
        let owner = self.course.owner_of(client);
        let mut state = self.server.state();
        let keys = keys(self.course.key_names());
        let left = keys.iter().map(|key| state.left(key, &owner));
        let lasts = left.fold(CALL, Duration::max) + CALL;
        state.note_trouble(Instant::now() + lasts);
        drop(state);
        for key in keys {
            self.ledger.excuse(&key, lasts, true);
        }
    }

    /// Ends what is left, and looks for what stays behind.
    async fn ends(&mut self, clients: Vec<Client>) {
        let mut has_killed = false;
        for (number, client) in clients.into_iter().enumerate() {
            has_killed |= client.leases.is_none();
            for task in client.tasks {
                // A panic is found by the hook.
                let _ = task.await;
            }
            if let Some(leases) = client.leases {
                self.ledger.goes(number, false);
                let bound = Duration::from_secs(1_300);
                self.server.say(Who::Client(number), || "closes".to_owned());
                if timeout(bound, leases.close()).await.is_err() {
                    let text = || format!("the close of client {number} takes more than {bound:?}");
                    self.server.accuse(Judge::Bound, text);
                }
            }
        }
        is_clean(&self.server, &self.ledger, has_killed).await;
    }
}

/// How often each thing happened.
fn tally(server: &Server, ledger: &Ledger) -> Tally {
    ledger.count("runs");
    let state = server.state();
    let mut tally = ledger.tally();
    tally.insert("requests", state.requests);
    for (what, often) in &state.tally {
        *tally.entry(what).or_default() += often;
    }
    tally
}

/// When all clients are closed there is no lease, no place and no task.
pub async fn is_clean(server: &Arc<Server>, ledger: &Ledger, has_killed: bool) {
    if server.state().violation.is_some() {
        return;
    }
    if server.control == Some(Control::LeavesATask) {
        drop(tokio::spawn(std::future::pending::<()>()));
    }
    // What hangs still is given up, and what is sent again arrives.
    server.state().faults_left = 0;
    let mut quiet = Instant::now() + QUIET;
    while Instant::now() < quiet {
        sleep_until(quiet).await;
        // A request that makes the server stand still may itself have waited for it.
        quiet = quiet.max(server.state().trouble + QUIET);
    }
    ledger.look();
    if has_killed {
        return;
    }
    let alive = Handle::current().metrics().num_alive_tasks();
    if alive > 0 {
        server.accuse(Judge::Leftover, || format!("{alive} tasks"));
    }
    let left = {
        let state = server.state();
        let now = state.now();
        let place = |it: &leasehold::store::LockRecord| it.live_places(now).next().cloned();
        state.records.values().find_map(place)
    };
    if let Some(place) = left {
        server.accuse(Judge::Leftover, || format!("{place:?}"));
    }
    // The world and the ledger know the server; whatever of a client is left knows it too.
    let owners = Arc::strong_count(server) - 2;
    if owners > 0 {
        let text = || format!("{owners} parts of clients whose handles were dropped");
        server.accuse(Judge::Leftover, text);
    }
}

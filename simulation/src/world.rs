//! The world of a run: it makes the server and the clients, closes and kills clients, lets the clock step, and looks at
//! what is left at the end.

use std::{
    cell::RefCell, collections::BTreeMap, future::pending, mem, rc::Rc, sync::Arc, time::Duration,
};

use fastrand::Rng;
use leasehold::{Leases, testing::seed_thread};
use tokio::{
    runtime::{self, Handle},
    task::{JoinHandle, LocalSet},
    time::{Instant, sleep, timeout},
};

use crate::{
    connection::Connection,
    course::{CALL_TIMEOUT, Course},
    judge::{Judge, Violation},
    ledger::Ledger,
    panics,
    restart::Left,
    server::Server,
    task::{CALL, Task},
};

/// Longer than anything goes on after the last fault.
const QUIET: Duration = Duration::from_secs(60);
/// How often the judges look then.
const LOOK: Duration = Duration::from_secs(2);
/// For so long the world sleeps at least while something happens.
const PAUSE: Duration = Duration::from_millis(50);

/// What happened, each so often.
pub type Tally = BTreeMap<String, u64>;

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
    /// The judge that has to find something, because something is wrong on purpose. No other one is asked.
    pub wrong: Option<Judge>,
    /// Whether the events are kept.
    pub is_traced: bool,
}

struct Client {
    leases: Option<Leases>,
    connection: Arc<Connection>,
    tasks: Vec<JoinHandle<()>>,
}

struct World {
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
    let (ledger, left) = in_runtime(course.seed, async {
        let mut world = World::new(course, options);
        world.goes_on().await;
        let ledger = world.ledger.clone();
        (ledger, world.ends().await)
    });
    if let Some(left) = left {
        in_runtime(course.seed, left.goes_on(&ledger));
    }
    let mut state = ledger.server.state();
    if let Some(panic) = panics::take() {
        state.is_over = false;
        state.accuse(Judge::Panicked, panic);
    }
    mem::take(&mut state.outcome)
}

/// Does something in a runtime of one thread, whose time passes only while nothing is to be done.
fn in_runtime<T>(seed: u64, work: impl Future<Output = T>) -> T {
    let mut builder = runtime::Builder::new_current_thread();
    #[cfg(tokio_unstable)]
    builder.rng_seed(runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = seed;
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    LocalSet::new().block_on(&runtime, work)
}

impl World {
    /// Makes the server and the clients, and lets their tasks begin.
    fn new(course: &Course, options: &Options) -> Self {
        let server = Arc::new(Server::new(course, options));
        let ledger = Ledger::new(server.clone());
        let clients = (0..course.clients).map(|client| {
            let connection = Connection::new(server.clone(), client);
            let builder = Leases::builder(connection.clone()).owner(course.owner_of(client));
            let leases = builder.call_timeout(CALL_TIMEOUT).build();
            let tasks = (0..course.tasks).map(|number| {
                let task = Task {
                    ledger: ledger.clone(),
                    server: server.clone(),
                    leases: leases.clone(),
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
            clients: clients.collect(),
            ledger,
            rng: Rng::with_seed(course.seed ^ 1),
            is_over: false,
        }
    }

    /// Lets things happen until all tasks have ended, or something is wrong.
    async fn goes_on(&mut self) {
        let mut pause = PAUSE;
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
            let (requests, is_wrong) = {
                let state = self.ledger.server.state();
                (state.requests, state.outcome.violation.is_some())
            };
            let longer = (pause * 2).min(PAUSE * 10);
            pause = if requests == seen { longer } else { PAUSE };
            seen = requests;
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
        let ledger = self.ledger.clone();
        let course = &ledger.server.course;
        match self.rng.u8(0..6) {
            0 if course.closes && is_there => self.close(client),
            1 if course.kills && is_there => self.kill(client),
            4 if course.ends_runtime => self.is_over = true,
            2 | 3 if course.steps_clock => {
                // It is less than the margin of the clients.
                let ahead = self.rng.i64(0..=90);
                let mut state = ledger.server.state();
                state.ahead = ahead;
                let text = || format!("its clock is {ahead} ms ahead");
                state.say(format_args!("server"), text);
            }
            _ => {}
        }
    }

    fn close(&mut self, client: usize) {
        let it = &mut self.clients[client];
        if let Some(leases) = it.leases.clone() {
            self.ledger.goes(client, false);
            self.ledger.server.state().count("closed");
            let closing = async move { leases.close().await };
            it.tasks.push(tokio::task::spawn_local(closing));
        }
    }

    fn kill(&mut self, client: usize) {
        self.ledger.goes(client, true);
        let it = &mut self.clients[client];
        it.connection.killed.cancel();
        it.leases = None;
        it.tasks.drain(..).for_each(|task| task.abort());
        // Its leases stay until they expire.
        let server = &self.ledger.server;
        let (course, owner) = (&server.course, server.course.owner_of(client));
        let mut state = server.state();
        state.count("killed");
        let lasts = course.keys.iter().map(|key| state.lasts(key, Some(&owner)));
        let lasts = lasts.fold(CALL, Duration::max) + CALL;
        state.note_trouble(Instant::now() + lasts);
        for key in &course.keys {
            self.ledger.excuse(key, lasts, true);
        }
    }

    /// Ends what is left, and looks for what stays behind. If the runtime ends, that is for the next one to do.
    async fn ends(self) -> Option<Left> {
        let (server, ledger) = (&self.ledger.server, &self.ledger);
        let is_wrong = server.state().outcome.violation.is_some();
        let mut left = None;
        if self.is_over {
            let handles = self.clients.into_iter().filter_map(|it| it.leases);
            let mut state = server.state();
            state.count("runtime ended");
            left = Some(Left {
                handles: handles.collect(),
                guards: ledger.guards(),
                at: state.began.elapsed(),
            });
        } else if !is_wrong {
            close_all(self.clients, ledger).await;
        }
        // What the end of the runtime drops, or is over with the run, is no fault of a client.
        server.state().is_over = true;
        left
    }
}

/// Closes all clients, each after its tasks have ended.
async fn close_all(clients: Vec<Client>, ledger: &Ledger) {
    let mut has_killed = false;
    for (number, client) in clients.into_iter().enumerate() {
        has_killed |= client.leases.is_none();
        for task in client.tasks {
            // A panic is found by the hook.
            let _ = task.await;
        }
        if let Some(leases) = client.leases {
            ledger.goes(number, false);
            let bound = Duration::from_secs(1_300);
            if timeout(bound, leases.close()).await.is_err() {
                let text = format!("the close of client {number} takes more than {bound:?}");
                ledger.server.state().accuse(Judge::Bound, text);
            }
        }
    }
    is_clean(ledger, has_killed).await;
}

/// When all clients are closed there is no lease, no place and no task.
pub async fn is_clean(ledger: &Ledger, has_killed: bool) {
    let server = &ledger.server;
    if server.state().outcome.violation.is_some() {
        return;
    }
    if server.state().is_wrong(Judge::Leftover) {
        drop(tokio::spawn(pending::<()>()));
    }
    // What hangs still is given up, and what is sent again arrives.
    server.state().faults_left = 0;
    let mut quiet = Instant::now() + QUIET;
    while Instant::now() < quiet {
        // What was left a moment ago is judged by a later look.
        ledger.look();
        sleep(LOOK).await;
        // A request that makes the server stand still may itself have waited for it.
        quiet = quiet.max(server.state().trouble + QUIET);
    }
    ledger.look();
    if has_killed {
        return;
    }
    let mut state = server.state();
    let now = state.now();
    let places = state.records.values().flat_map(|it| it.live_places(now));
    let (tasks, places) = (
        Handle::current().metrics().num_alive_tasks(),
        places.count(),
    );
    // The ledger knows the server; whatever of a client is left knows it too.
    let parts = Arc::strong_count(server) - 1;
    if tasks + places + parts > 0 {
        let text = format!("{tasks} tasks, {places} places, {parts} parts of clients");
        state.accuse(Judge::Leftover, text);
    }
}

//! What one run is like. All of it follows from the seed, and a failing run is made smaller by making this smaller.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use fastrand::Rng;

/// Which faults the store has, each in so many of a thousand requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The request is carried out, or not, and the client gets an error.
    pub lost: u32,
    /// The request or its answer takes up to four seconds.
    pub late: u32,
    /// The request is never answered.
    pub silent: u32,
    /// The connection breaks, and the request is carried out later.
    pub cut: u32,
    /// The request is refused, and nothing is done.
    pub refused: u32,
    /// The server works for up to half a second on the request, and judges it by the time at which it came.
    pub stalled: u32,
    /// The server stands still for up to three seconds.
    pub still: u32,
}

impl Faults {
    /// The kinds of faults by their names.
    pub fn kinds(&mut self) -> [(&'static str, &mut u32); 7] {
        [
            ("fault: lost", &mut self.lost),
            ("fault: late", &mut self.late),
            ("fault: silent", &mut self.silent),
            ("fault: cut", &mut self.cut),
            ("fault: refused", &mut self.refused),
            ("fault: stalled", &mut self.stalled),
            ("fault: still", &mut self.still),
        ]
    }

    /// Whether there is any fault.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A change of a course.
pub type Change = Box<dyn Fn(&mut Course)>;

/// The changes of what is not a step, the greatest first.
const SIMPLER: [fn(&mut Course); 22] = [
    |it| it.faults = Faults::default(),
    |it| it.shares_owner = false,
    |it| it.has_bursts = false,
    |it| it.rests = 0,
    |it| it.evicts = false,
    |it| it.closes = false,
    |it| it.kills = false,
    |it| it.ends_runtime = false,
    |it| it.steps_clock = false,
    |it| it.leaves_futures = false,
    |it| it.jobs = false,
    |it| it.way = 0,
    |it| it.at_once = usize::MAX,
    |it| it.faults.lost = 0,
    |it| it.faults.late = 0,
    |it| it.faults.silent = 0,
    |it| it.faults.cut = 0,
    |it| it.faults.refused = 0,
    |it| it.faults.stalled = 0,
    |it| it.faults.still = 0,
    |it| it.fault_budget = (it.fault_budget / 2).max(1),
    |it| it.fault_budget = (it.fault_budget - 1).max(1),
];

/// What one run is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// The seed of all that is random.
    pub seed: u64,
    /// How many clients there are.
    pub clients: usize,
    /// How many tasks each client has.
    pub tasks: usize,
    /// The steps that are left out: client, task, step.
    pub skipped: BTreeSet<(usize, usize, usize)>,
    /// How many things each task does.
    pub steps: usize,
    /// How many of a hundred steps come after seconds of rest.
    pub rests: u32,
    /// Whether all clients have the same owner.
    pub shares_owner: bool,
    /// How many keys there are.
    pub keys: usize,
    /// The faults of the store.
    pub faults: Faults,
    /// Whether several faults may follow soon after each.
    pub has_bursts: bool,
    /// How many requests meet a fault at most.
    pub fault_budget: u32,
    /// How long a request, and an answer, is on its way at most, in milliseconds, when there is no fault.
    pub way: u64,
    /// How many requests the store likes at once. Beyond that they wait, or go in batches.
    pub at_once: usize,
    /// Whether leases are ended by an operator.
    pub evicts: bool,
    /// Whether a client closes while its tasks work.
    pub closes: bool,
    /// Whether a client is killed while its tasks work.
    pub kills: bool,
    /// Whether the runtime of all clients ends while their tasks work.
    pub ends_runtime: bool,
    /// Whether the server's clock steps.
    pub steps_clock: bool,
    /// Whether futures are left alone for many seconds.
    pub leaves_futures: bool,
    /// How many of a hundred leases are shared.
    pub shared: u32,
    /// How many of a hundred leases stay with their client.
    pub sticky: u32,
    /// Whether there are leaders, limiters and ticks beside the leases.
    pub jobs: bool,
    /// Whether all tasks hold a key for a short time only, and for a long ttl.
    pub is_contended: bool,
}

impl Course {
    /// The course of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut faults = Faults::default();
        if rng.u8(0..3) > 0 {
            for (_, share) in faults.kinds() {
                if rng.bool() {
                    *share = *rng.choice(&[5, 20, 60, 120]).unwrap_or(&0);
                }
            }
        }
        let mut course = Self {
            seed,
            clients: rng.usize(1..=3),
            tasks: rng.usize(1..=5),
            skipped: BTreeSet::new(),
            steps: rng.usize(4..=24),
            rests: *rng.choice(&[0, 0, 6, 20]).unwrap_or(&0),
            shares_owner: rng.u8(0..8) == 0,
            keys: rng.usize(1..=2),
            faults,
            has_bursts: rng.bool(),
            fault_budget: *rng.choice(&[1, 4, 16, 60, 250]).unwrap_or(&1),
            way: *rng.choice(&[0, 1, 5, 30, 80]).unwrap_or(&0),
            at_once: [usize::MAX, 1, usize::MAX, 2][(seed % 4) as usize],
            evicts: rng.u8(0..4) == 0,
            closes: rng.u8(0..3) == 0,
            kills: rng.u8(0..6) == 0,
            ends_runtime: false,
            steps_clock: rng.u8(0..4) == 0,
            leaves_futures: rng.u8(0..4) == 0,
            shared: *rng.choice(&[10, 35, 60]).unwrap_or(&35),
            sticky: *rng.choice(&[0, 0, 20, 60, 100]).unwrap_or(&0),
            jobs: rng.u8(0..3) == 0,
            is_contended: rng.u8(0..3) == 0,
        };
        course.ends_runtime = rng.u8(0..6) == 0;
        course
    }

    /// The changes that make a course smaller, the greatest first. They can be made one after the other.
    pub fn changes(&self) -> Vec<Change> {
        let (tasks, steps) = (self.tasks, self.steps);
        let skip = |client, tasks: Range<usize>, steps: Range<usize>| -> Change {
            Box::new(move |it| it.skip(client, tasks.clone(), steps.clone()))
        };
        let whole_clients = (0..self.clients).map(|client| skip(client, 0..tasks, 0..steps));
        let mut all: Vec<Change> = whole_clients.collect();
        for (client, task) in self.all_tasks() {
            all.push(skip(client, task..task + 1, 0..steps));
        }
        all.extend(SIMPLER.map(|change| Box::new(change) as Change));
        let mut length = steps / 2;
        while length > 0 {
            for (client, task) in self.all_tasks() {
                for begin in (0..steps).step_by(length) {
                    all.push(skip(client, task..task + 1, begin..begin + length));
                }
            }
            length /= 2;
        }
        all
    }

    fn all_tasks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let tasks = self.tasks;
        (0..self.clients).flat_map(move |client| (0..tasks).map(move |task| (client, task)))
    }

    /// Leaves steps out. Those that are left happen as before, because each has random numbers of its own.
    fn skip(&mut self, client: usize, tasks: Range<usize>, steps: Range<usize>) {
        for task in tasks {
            let steps = steps.start..steps.end.min(self.steps);
            self.skipped.extend(steps.map(|step| (client, task, step)));
        }
    }

    /// The random numbers of a part of the run.
    pub fn rng(&self, client: usize, task: usize, step: usize) -> Rng {
        let part = ((client * 100 + task) * 1_000 + step) as u64;
        let spread = part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Rng::with_seed(self.seed.wrapping_add(spread))
    }

    /// The owner that a client has.
    pub fn owner_of(&self, client: usize) -> String {
        format!("client {}", if self.shares_owner { 0 } else { client })
    }

    /// The names of the keys.
    pub fn key_names(&self) -> &'static [&'static str] {
        &["one", "two"][..self.keys.clamp(1, 2)]
    }
}

/// How long a call may take before the client sends it again.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How far the clock of the server jumps at most, and so the margin of each client.
pub const MARGIN: Duration = Duration::from_millis(100);

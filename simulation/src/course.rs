//! What one run is like. All of it follows from the seed, and a failing run is made smaller by making this smaller.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use clap::ValueEnum;
use fastrand::Rng;
use leasehold::Key;

/// What may happen to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// The request is carried out, or not, and the client gets an error.
    Lost,
    /// The request or its answer takes up to four seconds.
    Late,
    /// The request is never answered.
    Silent,
    /// The connection breaks, and the request is carried out later.
    Cut,
    /// The request is refused, and nothing is done.
    Refused,
    /// The server works for up to half a second on the request, and judges it by the time at which it came.
    Stalled,
    /// The server stands still for up to three seconds.
    Still,
    /// The way of the client to the server breaks for two to four seconds: what the client sends fails at once, and what
    /// is on its way arrives when the way is mended.
    Outage,
}

impl Fault {
    /// What it is counted as.
    pub fn name(self) -> String {
        format!("fault: {self:?}").to_lowercase()
    }
}

/// A step: its client, its task, and which one of the task it is.
pub type Step = (usize, usize, usize);

/// A change of a course.
pub type Change = Box<dyn Fn(&mut Course)>;

/// The changes of what is no step and no kind of fault, the greatest first.
const SIMPLER: [fn(&mut Course); 14] = [
    |it| it.faults.clear(),
    |it| it.shares_owner = false,
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
    /// What the tasks do. Each step has random numbers of its own, so it does the same without the others.
    pub steps: BTreeSet<Step>,
    /// How many of a hundred steps come after seconds of rest.
    pub rests: u32,
    /// Whether all clients have the same owner.
    pub shares_owner: bool,
    /// The keys.
    pub keys: Vec<Key>,
    /// The faults of the store, each in so many of a thousand requests.
    pub faults: BTreeMap<Fault, u32>,
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
    /// Whether many tasks come for the same key in a crowd, readers and writers, and wait to the end.
    pub is_crowded: bool,
}

impl Course {
    /// The course of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut faults = BTreeMap::new();
        if rng.u8(0..3) > 0 {
            for kind in Fault::value_variants() {
                if rng.bool() {
                    faults.insert(*kind, choose(&mut rng, &[5, 20, 60, 240]));
                }
            }
        }
        let is_crowded = rng.u8(0..4) == 0;
        let (clients, steps) = (rng.usize(1..=3), rng.usize(4..=24));
        let tasks = if is_crowded {
            rng.usize(4..=12)
        } else {
            rng.usize(1..=5)
        };
        // Each number is that of a step.
        let all = (0..clients * tasks * steps)
            .map(|it| (it / (tasks * steps), it / steps % tasks, it % steps));
        let keys = ["one", "two"].iter().flat_map(Key::new);
        Self {
            seed,
            clients,
            tasks,
            steps: all.collect(),
            rests: choose(&mut rng, &[0, 0, 6, 20]),
            shares_owner: rng.u8(0..8) == 0,
            keys: keys
                .take(if is_crowded { 1 } else { rng.usize(1..=2) })
                .collect(),
            faults,
            fault_budget: choose(&mut rng, &[1, 4, 16, 60, 250]),
            way: choose(&mut rng, &[0, 1, 5, 30, 80]),
            at_once: [usize::MAX, 1, usize::MAX, 2][(seed % 4) as usize],
            evicts: rng.u8(0..4) == 0,
            closes: rng.u8(0..3) == 0,
            kills: rng.u8(0..6) == 0,
            steps_clock: rng.u8(0..4) == 0,
            leaves_futures: rng.u8(0..4) == 0,
            shared: if is_crowded {
                60
            } else {
                choose(&mut rng, &[10, 35, 60])
            },
            sticky: if is_crowded {
                0
            } else {
                choose(&mut rng, &[0, 0, 20, 60, 100])
            },
            jobs: rng.u8(0..3) == 0,
            is_contended: is_crowded || rng.u8(0..3) == 0,
            is_crowded,
            ends_runtime: rng.u8(0..6) == 0,
        }
    }

    /// The changes that make a course smaller, the greatest first. They can be made one after the other.
    pub fn changes(&self) -> Vec<Change> {
        let without = |left_out: Range<Step>| -> Change {
            Box::new(move |it| it.steps.retain(|step| !left_out.contains(step)))
        };
        let clients = (0..self.clients).map(|client| without((client, 0, 0)..(client + 1, 0, 0)));
        let mut all: Vec<Change> = clients.collect();
        let tasks: BTreeSet<_> = self.steps.iter().map(|it| (it.0, it.1)).collect();
        all.extend(
            tasks
                .iter()
                .map(|&(client, task)| without((client, task, 0)..(client, task + 1, 0))),
        );
        all.extend(SIMPLER.map(|change| Box::new(change) as Change));
        for kind in Fault::value_variants() {
            all.push(Box::new(move |it| it.faults.retain(|of, _| of != kind)));
        }
        for length in [12, 6, 3, 1] {
            for begin in (0..24).step_by(length) {
                let piece = |&(client, task): &_| {
                    without((client, task, begin)..(client, task, begin + length))
                };
                all.extend(tasks.iter().map(piece));
            }
        }
        all
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
}

/// One of some choices, of which there is one at least.
pub fn choose<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())].clone()
}

/// How long a call may take before the client sends it again.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How far the clock of the server jumps at most, and so the margin of each client.
pub const MARGIN: Duration = Duration::from_millis(100);

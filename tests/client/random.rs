//! Random tasks of two processes use one key or two, which mostly stay with the process that had them last. Now and
//! then a request is late, or lost, or a future is dropped, or is not polled for a while.
//!
//! Whatever they do: no two leases that exclude each other are live at the same time, fences rise, who waits gets the
//! key, and when all guards are gone the keys become free by themselves.
//!
//! Each seed is one run, with a paused clock and all tasks on one thread. `LEASEHOLD_SEED=7 scripts/test client --
//! random` repeats the run of a seed, and tells what happens in it. (Ids and the order in maps are still random, so not
//! all of it happens again.) `LEASEHOLD_LONG=1` tries more seeds.

mod ledger;
mod task;

use std::{fmt, rc::Rc, sync::OnceLock, time::Duration};

use fastrand::Rng;
use leasehold::{Key, Leases, Store};
use tokio::{
    runtime,
    task::LocalSet,
    time::{Instant, sleep, timeout},
};

use tracing_subscriber::fmt::{format::Writer, time::FormatTime};

use self::{
    ledger::{Ledger, Tally},
    task::Task,
};
use crate::{Fate, FlakyStore};

/// Longer than any ttl and any time for which a key stays, both together, and than what is still under way.
const UNTIL_FREE: Duration = Duration::from_secs(120);
/// Longer than all tasks together can hold a key, each until its ttl is over.
const PATIENT: Duration = Duration::from_secs(600);

/// What one run is like.
#[derive(Clone, Copy, Debug)]
struct Course {
    keys: &'static [&'static str],
    /// How many tasks each process has.
    tasks: usize,
    /// How many of a hundred requests are lost or late.
    faults: u32,
    /// Whether keys are evicted now and then. Evicted leases may still be live.
    evicts: bool,
}

impl Course {
    fn random(rng: &mut Rng) -> Self {
        Self {
            keys: &["one", "two"][..rng.usize(1..=2)],
            tasks: rng.usize(1..=6),
            faults: *rng.choice(&[0, 2, 15]).unwrap(),
            evicts: rng.u8(0..5) == 0,
        }
    }

    /// What happens to the requests of a process.
    fn fates(self, rng: &mut Rng) -> Vec<Fate> {
        let some = |rng: &mut Rng| Duration::from_millis(rng.u64(0..30));
        let fault = |rng: &mut Rng| match rng.u32(0..51) {
            0..10 => Fate::NotSent,
            10..20 => Fate::AnswerLost,
            20..30 => Fate::AnswerCut,
            30..40 => Fate::Late(100 * some(rng)),
            40..50 => Fate::AnswerLate(100 * some(rng)),
            _ => Fate::LateWithoutAnswer(100 * some(rng)),
        };
        let fate = |rng: &mut Rng| match rng.u32(0..100) {
            n if n < self.faults => fault(rng),
            n if n % 2 == 0 => Fate::AnswerLate(some(rng)),
            _ => Fate::Late(some(rng)),
        };
        (0..5_000).map(|_| fate(rng)).collect()
    }
}

/// Shows the time on the clock of the runtime.
struct PausedClock;

impl FormatTime for PausedClock {
    fn format_time(&self, to: &mut Writer<'_>) -> fmt::Result {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let since = BEGIN.get_or_init(Instant::now).elapsed();
        write!(to, "{:8.3} s", since.as_secs_f64())
    }
}

async fn run(seed: u64) -> Tally {
    let mut rng = Rng::with_seed(seed);
    let course = Course::random(&mut rng);
    println!("seed {seed}: {course:?}");
    let stores = [FlakyStore::new(), FlakyStore::new()];
    let memory = stores[0].memory.clone();
    let ledger = Rc::new(Ledger::new(!course.evicts));
    let processes = stores.clone().map(|mut store| {
        store.memory = memory.clone();
        store.next(course.fates(&mut rng));
        Leases::new(store)
    });
    let tasks = LocalSet::new();
    let mut all = Vec::new();
    for (leases, other) in [(0, 1), (1, 0)] {
        for _ in 0..course.tasks {
            let task = Task {
                course,
                ledger: ledger.clone(),
                leases: processes[leases].clone(),
                other: processes[other].clone(),
                rng: rng.fork(),
            };
            all.push(tasks.spawn_local(task.run()));
        }
    }
    tasks.await;
    for task in all {
        task.await.expect("a task fails");
    }
    for store in &stores {
        store.fates_now([]);
    }
    let start = Instant::now();
    for key in course.keys.iter().map(|key| Key::new(key).unwrap()) {
        let is_free = async || {
            let state = memory.inspect(&key).await.unwrap();
            state.is_none_or(|state| state.is_free())
        };
        while !is_free().await {
            let left = memory.inspect(&key).await;
            assert!(start.elapsed() < UNTIL_FREE, "it stays held: {left:#?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    for leases in processes {
        let close = timeout(UNTIL_FREE, leases.close());
        close.await.expect("a process does not close");
    }
    ledger.tally()
}

#[test]
fn random_tasks_exclude_each_other_and_get_what_they_wait_for() {
    let number = |name| std::env::var(name).ok().map(|seed| seed.parse().unwrap());
    let seeds = match number("LEASEHOLD_SEED") {
        Some(seed) => seed..seed + 1,
        None if number("LEASEHOLD_LONG") == Some(1) => 0..20_000,
        None => 0..100,
    };
    // One run alone tells what happens in it.
    let tells = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_timer(PausedClock)
        .with_test_writer()
        .finish();
    let _told = number("LEASEHOLD_SEED").map(|_| tracing::subscriber::set_default(tells));
    let mut all = Tally::default();
    for seed in seeds.clone() {
        // The client takes its pauses from the generator of the thread.
        fastrand::seed(seed);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        all += runtime.block_on(run(seed));
    }
    println!("{all:?}");
    if seeds.end - seeds.start > 1 {
        let runs = seeds.end - seeds.start;
        assert!(all.has_all(runs), "{runs} runs: {all:?}");
    }
}

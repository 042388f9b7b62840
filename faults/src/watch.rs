//! Observes a run while it goes on.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    broken::Wrong,
    check::{self, Kind, Violations},
    history,
    ledger::Ledger,
    tally::{Counts, Tally},
};

/// The pause between two checks whether enough has happened.
const LOOK: Duration = Duration::from_millis(200);
/// The pause between two checks whether the deliberate error was caught. Each check reads all histories.
const SEARCH: Duration = Duration::from_secs(2);
/// The pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// How often each fault occurred.
pub type Faults = BTreeMap<&'static str, usize>;

pub struct Watch {
    engine: &'static str,
    started: Instant,
    histories: PathBuf,
    ledger: Ledger,
    /// Whether the run only has to show that the locks were used.
    locks_only: bool,
    tally: Mutex<Tally>,
    faults: Mutex<Faults>,
    /// How many grants of the key that is always waited for there were when the last server came back.
    before: Mutex<u64>,
}

impl Watch {
    pub fn of(engine: &'static str, histories: &Path, ledger: &Ledger, locks_only: bool) -> Self {
        Self {
            engine,
            started: Instant::now(),
            histories: histories.to_owned(),
            ledger: ledger.clone(),
            locks_only,
            tally: Mutex::new(Tally::of(histories.to_owned())),
            faults: Mutex::default(),
            before: Mutex::default(),
        }
    }

    pub fn happened(&self, fault: &'static str) {
        *self.faults.lock().entry(fault).or_default() += 1;
    }

    pub fn server_is_back(&self, fault: &'static str) -> Result<()> {
        self.happened(fault);
        *self.before.lock() = self.counts()?.contended;
        Ok(())
    }

    pub fn faults(&self) -> Faults {
        self.faults.lock().clone()
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = self.tally.lock().counts()?;
        counts.written = self.ledger.accounts().written;
        Ok(counts)
    }

    /// What did not happen often enough.
    pub fn missing(&self) -> Result<Violations> {
        let before = *self.before.lock();
        Ok(self.counts()?.missing(before, self.locks_only))
    }

    /// Waits until nothing is missing: this many orders are judged, and this many late writes without a guard were
    /// accepted.
    pub async fn until_enough(&self, orders: usize, late: usize) -> Result<()> {
        while !self.missing()?.is_empty() {
            sleep(LOOK).await;
        }
        loop {
            let events = history::read_all(&self.histories)?;
            if check::orders(&events).judged >= orders
                && check::guarded(&events).late_without >= late
            {
                return Ok(());
            }
            sleep(SEARCH).await;
        }
    }

    /// The violations that the histories and the ledger show.
    pub fn found(&self) -> Result<Violations> {
        let mut violations = check::all_processes(&history::read_each(&self.histories)?);
        let lost = self.ledger.accounts().lost;
        if lost > 0 {
            violations.push(Kind::LostWrite.of(format!("{lost} writes were lost")));
        }
        Ok(violations)
    }

    /// Waits until the deliberate error is caught.
    pub async fn until_caught(&self, wrong: Wrong) -> Result<()> {
        if wrong == Wrong::Nothing {
            std::future::pending::<()>().await;
        }
        while !wrong.is_in(&self.found()?) {
            sleep(SEARCH).await;
        }
        Ok(())
    }

    /// Prints the progress regularly, until it is dropped.
    pub async fn tell_progress(&self) -> Result<()> {
        loop {
            sleep(PROGRESS).await;
            let counts = self.counts()?;
            eprintln!(
                "{}, {} s: {} grants, {} of them from memory, {} recalls, {} refusals, {} faults",
                self.engine,
                self.started.elapsed().as_secs(),
                counts.grants(),
                counts.grants_from_memory(),
                counts.recalls(),
                counts.refusals(),
                self.faults.lock().values().sum::<usize>(),
            );
        }
    }
}

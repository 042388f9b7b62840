//! The result of a run, in Markdown.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use crate::{
    check::{self, Guarded, Violations},
    history::Event,
    ledger::Accounts,
    plan::Plan,
    schedule::Fault,
    watch::Faults,
    work::Pace,
};

pub struct Report {
    engine: &'static str,
    plan: Plan,
    pub pace: Pace,
    pub lasted: Duration,
    pub faults: Faults,
    pub operations: u64,
    /// How many of the operations were permits.
    pub permits: u64,
    /// Grants from memory, and leases that went back because another process waited.
    pub kept: (usize, usize),
    /// Writes that the ledger accepted.
    pub written: u64,
    /// Writes that the ledger refused because of an old fence.
    pub refused: u64,
    /// The longest time without a grant of a key that is always waited for.
    pub longest_gap: Duration,
    /// The longest time without a grant of the laboratory's own leases.
    pub slowest: Duration,
    /// The number of pairs of a grant and an earlier waiter for which it is known which came first.
    pub orders: usize,
    /// How many ticks were acknowledged as done, and how many runs began for them.
    pub ticks: (usize, usize),
    /// How documents with and without a guard were written.
    pub guarded: Guarded,
    /// Releases that were answered, but that a client saw undone by the fault of a server.
    pub undone_releases: usize,
    /// How many times a member rolled back writes that a majority did not have.
    pub rollbacks: Option<usize>,
    pub violations: Violations,
}

pub const HEADER: &str = "\
| engine | time | seed | ttl | faults | operations | of these permits | of these grants from memory | recalls | writes | writes that the fence refused | orders judged | ticks done | runs for ticks | guarded writes | late guarded writes that were refused | late unguarded writes that got through | undone releases | rollbacks | longest time without a grant | longest time without a grant of the laboratory's lease | violations |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

pub const HEADER_OF_CONTROLS: &str = "\
| what is wrong on purpose | where | violations | operations |
|---|---|---|---|";

impl Report {
    pub(crate) fn of(engine: &'static str, plan: Plan, pace: Pace) -> Self {
        Self {
            engine,
            plan,
            pace,
            lasted: Duration::ZERO,
            faults: Faults::new(),
            operations: 0,
            permits: 0,
            kept: (0, 0),
            written: 0,
            refused: 0,
            longest_gap: Duration::ZERO,
            slowest: Duration::ZERO,
            orders: 0,
            ticks: (0, 0),
            guarded: Guarded::default(),
            undone_releases: 0,
            rollbacks: None,
            violations: Violations::new(),
        }
    }

    pub(crate) fn count(&mut self, events: &[Event], accounts: &Accounts) {
        let permits = |event: &&Event| matches!(event, Event::Permit { .. });
        self.operations = check::operations(events);
        self.permits = events.iter().filter(permits).count() as u64;
        self.kept = (check::from_memory(events), check::recalls_heard(events));
        self.undone_releases = check::undone_releases(events);
        self.orders = check::orders(events).judged;
        let ticks = check::ticks(events);
        self.ticks = (ticks.done, ticks.runs);
        self.guarded = check::guarded(events);
        (self.written, self.refused) = (accounts.written, accounts.refused);
    }

    /// How often a server was cut off from the others.
    pub(crate) fn cut_off(&self) -> usize {
        let name = Fault::CutOff(Duration::ZERO).name();
        self.faults.get(name).copied().unwrap_or_default()
    }

    /// Whether the deliberate error was caught.
    pub fn is_caught(&self) -> bool {
        self.plan.wrong.is_in(&self.violations)
    }

    /// The row for a run with a deliberate error.
    pub fn of_control(&self) -> String {
        format!(
            "| {} | {}, {:.0} s | {} | {} |",
            self.plan.wrong.name(),
            self.engine,
            self.lasted.as_secs_f64(),
            self.violations.len(),
            self.operations,
        )
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(name, times)| format!("{times} {name}"))
            .collect();
        let rollbacks = self.rollbacks.map(|times| times.to_string());
        write!(
            f,
            "| {} | {} s | {} | {:.1} s | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} s | {:.1} s | {} |",
            self.engine,
            self.lasted.as_secs(),
            self.plan.seed,
            self.pace.ttl.as_secs_f64(),
            faults.join(", "),
            self.operations,
            self.permits,
            self.kept.0,
            self.kept.1,
            self.written,
            self.refused,
            self.orders,
            self.ticks.0,
            self.ticks.1,
            self.guarded.written,
            self.guarded.refused,
            self.guarded.late_without,
            self.undone_releases,
            rollbacks.as_deref().unwrap_or(""),
            self.longest_gap.as_secs_f64(),
            self.slowest.as_secs_f64(),
            self.violations.len(),
        )
    }
}

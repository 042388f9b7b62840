//! What came of a run: a row of a table in `docs/evidence.md`.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    time::Duration,
};

use super::{check::Violations, lab::Plan, schedule::Fault};

pub struct Report {
    plan: Plan,
    pub lasted: Duration,
    faults: BTreeMap<&'static str, usize>,
    pub operations: u64,
    /// Of the operations.
    pub permits: u64,
    /// Writes that the ledger took.
    pub written: u64,
    /// Writes that came with an old fence.
    pub refused: u64,
    pub longest_gap: Duration,
    /// How many times a member took back what a majority did not have.
    pub rollbacks: Option<usize>,
    pub violations: Violations,
}

pub const HEADER: &str = "\
| engine | time | seed | faults | operations | of these permits | writes | writes that the fence refused | rollbacks | longest time without a grant | violations |
|---|---|---|---|---|---|---|---|---|---|---|";

pub const HEADER_OF_CONTROLS: &str = "\
| what is wrong | where | violations | operations |
|---|---|---|---|";

impl Report {
    pub fn of(plan: Plan) -> Self {
        Self {
            plan,
            lasted: Duration::ZERO,
            faults: BTreeMap::new(),
            operations: 0,
            permits: 0,
            written: 0,
            refused: 0,
            longest_gap: Duration::ZERO,
            rollbacks: None,
            violations: Vec::new(),
        }
    }

    pub fn faults(&mut self, names: impl IntoIterator<Item = &'static str>) {
        for name in names {
            *self.faults.entry(name).or_default() += 1;
        }
    }

    /// How often a server was cut off from the others.
    pub fn cut_off(&self) -> usize {
        let name = Fault::CutOff(Duration::ZERO).name();
        self.faults.get(name).copied().unwrap_or_default()
    }

    /// The row of a run in which something was wrong on purpose.
    pub fn of_control(&self) -> String {
        format!(
            "| {} | {}, {:.0} s | {} | {} |",
            self.plan.wrong.name(),
            self.plan.engine,
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
            "| {} | {} s | {} | {} | {} | {} | {} | {} | {} | {:.1} s | {} |",
            self.plan.engine,
            self.lasted.as_secs(),
            self.plan.seed,
            faults.join(", "),
            self.operations,
            self.permits,
            self.written,
            self.refused,
            rollbacks.as_deref().unwrap_or(""),
            self.longest_gap.as_secs_f64(),
            self.violations.len(),
        )
    }
}

//! The order in which tasks are granted a key: in a client, and between clients.

use std::{collections::BTreeMap, time::Duration};

use leasehold::Mode;
use tokio::time::Instant;

use super::{Inner, Ledger, PASSED_OVER, Passed, Wait};
use crate::{guard::Guard, judge::Judge};

/// After a reader was granted the key, others of its process may come before a writer, as docs/guarantees.md says.
const READERS: Duration = Duration::from_millis(200);

/// A conversion takes back what tasks of its process were offered, and others may have been offered at that moment.
const CONVERTED: Duration = Duration::from_millis(200);

impl Ledger {
    /// While a task waits in turn, each other client has the key once for each time that the task's client has it, and
    /// it has it for one of its tasks at least, unless that one is not polled: such a task wastes a turn, and another one
    /// when it has its position back.
    pub(super) fn came_in_time(&self, guard: &Guard, wait: &Wait) {
        let it = &self.course;
        let is_calm = !(it.faults.any() || it.kills || it.evicts || it.shares_owner);
        let is_polled = !it.leaves_futures && wait.polled_since <= Some(wait.began);
        if !(is_calm && is_polled && wait.is_in_turn) {
            return;
        }
        self.count("waited in turn");
        let most = (it.clients - 1) * (it.tasks + 2 + 2 * wait.silences);
        if wait.turns > most {
            let text = || {
                let (guard, turns) = (guard.describe(), wait.turns);
                format!("{guard} comes after {turns} turns of others, more than {most}")
            };
            self.server.accuse(Judge::QueueOfProcesses, text);
        }
    }
}

impl Inner {
    /// Counts a turn of a client for the tasks of the others. A reader passes no client whose own first task is a reader
    /// too: they have the key together.
    pub(super) fn has_a_turn(&mut self, guard: &Guard) {
        let keys = std::slice::from_ref(guard.key());
        let in_turn = |it: &&Wait| it.keys == keys && it.is_in_turn;
        let mut first_shares = BTreeMap::new();
        for wait in self.waits.values().filter(in_turn) {
            first_shares.entry(wait.client).or_insert(wait.is_shared);
        }
        let is_reader = guard.mode() == Mode::Shared;
        for wait in self.waits.values_mut().filter(|it| it.keys == keys) {
            let is_together = is_reader && first_shares.get(&wait.client) == Some(&true);
            if wait.client == guard.client {
                wait.last_turn = None;
            } else if wait.last_turn != Some(guard.client) && !is_together {
                (wait.turns, wait.last_turn) = (wait.turns + 1, Some(guard.client));
            }
        }
    }

    /// The tasks that asked before this one, and wait still.
    pub(super) fn passed_by(&self, wait: &Wait, guard: &Guard) -> Vec<Passed> {
        let now = Instant::now();
        let readers = self.readers.get(&(wait.client, guard.key().clone()));
        let follows = readers.is_some_and(|&at| now < at + READERS);
        // A task that was not polled may have been granted the key long before it came to tell.
        let has_just_come = wait
            .polled_since
            .is_none_or(|since| since > wait.began && now < since + PASSED_OVER);
        let converted = self.converted.get(&(wait.client, guard.key().clone()));
        if has_just_come || converted.is_some_and(|&at| now < at + CONVERTED) {
            return Vec::new();
        }
        let is_passed = |(_, it): &(&u64, &Wait)| {
            let is_before =
                it.client == wait.client && it.keys == wait.keys && it.began < wait.began;
            let may_pass = wait.is_shared && !it.is_shared && follows;
            is_before && wait.is_in_turn && it.is_in_turn && it.polled_since.is_some() && !may_pass
        };
        let passed = self.waits.iter().filter(is_passed);
        let passed = passed.map(|(&number, it)| Passed {
            wait: number,
            at: now,
            text: format!(
                "{} passes task {}, which has waited for {:?}",
                guard.describe(),
                it.task,
                now - it.began
            ),
        });
        passed.collect()
    }
}

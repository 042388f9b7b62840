//! The order in which tasks are granted a key: in a client, and between clients.

use std::{collections::BTreeMap, slice, time::Duration};

use leasehold::Mode;
use tokio::time::Instant;

use super::{Inner, Ledger, Wait};
use crate::{guard::Guard, judge::Judge, task::CALL};

/// After a reader was granted the key, others of its process may come before a writer, as docs/guarantees.md says. A
/// conversion or a ticket takes back what tasks of its process were offered, and others may have been offered at that moment.
pub(super) const SOON: Duration = Duration::from_millis(200);
/// A task that may be granted a key together with one before it hears of it within this time, and that of a request: a
/// lease whose answer was late is renewed before its guard is handed out.
const TOGETHER: Duration = Duration::from_millis(2);
/// A task that is not polled is passed over after this long, and may miss what another one was offered meanwhile, which
/// that one takes within this long.
const PASSED_OVER: Duration = Duration::from_millis(500);

impl Ledger {
    /// A task that was passed by one of its client which asked later is granted the key at the same time, if it is polled.
    pub(super) fn was_passed_over(&self) {
        let course = &self.server.course;
        let together = TOGETHER + Duration::from_millis(course.way) * 2;
        // A task that was granted the key, and could not renew its lease in time, waits again.
        let may_fail = !course.faults.is_empty();
        let (most, longest) = if may_fail {
            (3, CALL)
        } else {
            (0, Duration::ZERO)
        };
        for wait in self.inner.borrow().waits.values() {
            let is_wrong = |&&at: &&Instant| {
                let is_polled = wait.polled_since.is_some_and(|it| it + PASSED_OVER <= at);
                at >= wait.passed[0] + longest && Instant::now() > at + together && is_polled
            };
            if let Some(at) = wait.passed.iter().skip(most).find(is_wrong) {
                let text = format!("{wait:?} was passed {:?} ago", at.elapsed());
                self.server.state().accuse(Judge::QueueOfProcess, text);
            }
        }
    }

    /// While a task waits in turn, each other client has the key once for each time that the task's client has it, and
    /// it has it for one of its tasks at least, unless that one is not polled: such a task wastes a turn, and another one
    /// when it has its position back.
    pub(super) fn came_in_time(&self, guard: &Guard, wait: &Wait) {
        let it = &self.server.course;
        let is_calm = it.faults.is_empty() && !(it.kills || it.evicts || it.shares_owner);
        let is_polled = !it.leaves_futures && wait.polled_since <= Some(wait.began);
        let (turns, most) = (
            wait.turns,
            (it.clients - 1) * (it.tasks + 2 + 2 * wait.silences),
        );
        if is_calm && is_polled {
            self.server.state().count("waited in turn");
        }
        if is_calm && is_polled && turns > most {
            let text = format!("{guard} comes after {turns} turns of others, more than {most}");
            self.server.state().accuse(Judge::LongestWait, text);
        }
    }
}

impl Inner {
    /// Counts a turn of a client for the tasks of the others. A reader passes no client whose own first task is a reader
    /// too: they have the key together.
    pub(super) fn has_a_turn(&mut self, guard: &Guard) {
        let keys = slice::from_ref(&guard.key);
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

    /// Notes which tasks of its client asked before this one, and wait still.
    pub(super) fn passes_others(&mut self, wait: &Wait, guard: &Guard) {
        let now = Instant::now();
        let of_client = self.of_client(wait.client, &guard.key);
        let follows = of_client.read.is_some_and(|at| now < at + SOON);
        let is_taken_back = of_client.taken_back.is_some_and(|at| now < at + SOON);
        // A task that was not polled may have been granted the key long before it came to tell.
        let is_silent = |since| since > wait.began && now < since + PASSED_OVER;
        if is_taken_back || wait.polled_since.is_none_or(is_silent) {
            return;
        }
        let is_passed = |it: &&mut Wait| {
            let is_before =
                it.client == wait.client && it.keys == wait.keys && it.began < wait.began;
            let may_pass = wait.is_shared && !it.is_shared && follows;
            is_before && it.is_in_turn && it.polled_since.is_some() && !may_pass
        };
        let passed = self.waits.values_mut().filter(is_passed);
        passed.for_each(|it| it.passed.push(now));
    }
}

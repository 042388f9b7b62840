//! `WaiterList`: the waiters of a queue, in order, and which of them are let in together.
//!
//! When a reader is granted the key, the readers behind it are let in. If each sent its request after the answer to the
//! one before, the last of many readers would wait for as many round trips. So [a number](TOGETHER) of them send their
//! requests at once. The one behind these sends its request when they were answered: its grant lets in the next ones,
//! or ends the place of this process if there are no others. A reader that is refused after all waits as before.
//!
//! Invariants:
//!
//! - The waiters stand in the order in which their acquires began. One that begins to wait late, because it waited
//!   elsewhere or for an answer, comes before those that began later, but not before the first, which may have sent a
//!   request, or those that are let in.
//! - Each waiter that is let in is counted once, until its request was answered or it has left.
//! - A waiter whose caller has gone leaves when its operation is polled. Until then it is behind all others, and counts
//!   for nothing: it is possible that nothing drives its runtime any more.
//! - While any of them is counted, the first waiter sends no request, unless its time is over, or the others were let
//!   in a second ago.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use tokio::{sync::Notify, time::Instant};

use crate::{runtime::inline_task::InlineTask, waiters::kind::WaiterKind};

/// How many readers send their requests at the same time. All these requests are for one document, and requests for
/// other keys wait behind them.
const TOGETHER: usize = 32;

#[derive(Debug, Default)]
pub(super) struct WaiterList {
    waiters: VecDeque<ListedWaiter>,
    /// How many waiters were let in and have not been answered yet.
    let_in: usize,
}

#[derive(Debug)]
struct ListedWaiter {
    wake: Arc<Notify>,
    kind: WaiterKind,
    /// When its acquire began.
    since: Instant,
    /// The operation that waits. It is detached when others depend on it.
    work: Weak<InlineTask>,
    admission: Admission,
    /// Whether the future of its caller was dropped.
    is_abandoned: bool,
}

/// Whether a waiter may send a request although it is not the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may not.
    None,
    /// It sends a request at once.
    LetIn,
    /// Its request is under way.
    UnderWay,
}

impl WaiterList {
    /// Whether there are waiters behind the first one.
    pub(super) fn has_others(&self) -> bool {
        self.waiters.get(1).is_some_and(|it| !it.is_abandoned)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a waiter whose acquire began at this time.
    pub(super) fn push(
        &mut self,
        wake: Arc<Notify>,
        kind: WaiterKind,
        since: Instant,
        work: Weak<InlineTask>,
    ) {
        let end = self.waiters.partition_point(|waiter| !waiter.is_abandoned);
        let is_before =
            |waiter: &ListedWaiter| waiter.since <= since || waiter.admission != Admission::None;
        let last_before = self.waiters.iter().take(end).rposition(is_before);
        let at = last_before.map_or(1.min(end), |last| last + 1);
        let waiter = ListedWaiter {
            wake,
            kind,
            since,
            work,
            admission: Admission::None,
            is_abandoned: false,
        };
        self.waiters.insert(at, waiter);
    }

    /// Moves the waiter of this operation behind all others, because the future of its caller was dropped. Returns
    /// whether it was the first; `None` if it is not in the list.
    pub(super) fn abandon(&mut self, work: &Weak<InlineTask>) -> Option<bool> {
        let is_it = |waiter: &ListedWaiter| !waiter.is_abandoned && waiter.work.ptr_eq(work);
        let at = self.waiters.iter().position(is_it)?;
        let wake = self.waiters.get(at)?.wake.clone();
        self.answered(&wake);
        let waiter = self.waiters.remove(at)?;
        self.waiters.push_back(ListedWaiter {
            is_abandoned: true,
            ..waiter
        });
        let was_first = at == 0;
        if was_first {
            self.notify_first();
        }
        Some(was_first)
    }

    /// Removes a waiter. Returns whether it was the first; `None` if it is not in the list.
    pub(super) fn remove(&mut self, wake: &Arc<Notify>) -> Option<bool> {
        let at = self.position(wake)?;
        self.answered(wake);
        self.waiters.remove(at);
        let was_first = at == 0;
        if was_first {
            self.notify_first();
        }
        Some(was_first)
    }

    pub(super) fn is_first(&self, wake: &Arc<Notify>) -> bool {
        self.first().is_some_and(|first| first.is(wake))
    }

    pub(super) fn first_kind(&self) -> Option<WaiterKind> {
        self.first().map(|first| first.kind)
    }

    /// The operation of the first waiter.
    pub(super) fn first_work(&self) -> Option<Weak<InlineTask>> {
        self.first().map(|first| first.work.clone())
    }

    pub(super) fn notify_first(&self) {
        if let Some(first) = self.first() {
            first.wake.notify_one();
        }
    }

    pub(super) fn notify_all(&self) {
        let wakes = self.waiters.iter().map(|waiter| &waiter.wake);
        wakes.for_each(|wake| wake.notify_one());
    }

    /// Whether any of them waits in turn between processes.
    pub(super) fn wait_in_turn(&self) -> bool {
        let mut waiters = self.waiters.iter().filter(|it| !it.is_abandoned);
        waiters.any(|waiter| waiter.kind != WaiterKind::Barging)
    }

    /// How many waiters directly behind the first one can share the key with it.
    pub(super) fn beside_first(&self) -> usize {
        let kind = match self.first_kind() {
            Some(kind @ (WaiterKind::Shared | WaiterKind::Permits)) => kind,
            Some(WaiterKind::Exclusive | WaiterKind::Barging) | None => return 0,
        };
        let behind = self.waiters.iter().skip(1);
        behind
            .take_while(|it| it.kind == kind && !it.is_abandoned)
            .count()
    }

    /// Lets in readers behind the first waiter, which was granted the key: at most `most` of them, but for the last,
    /// whose later request lets in the next ones or ends the place.
    pub(super) fn let_in_behind_first(&mut self, most: usize) {
        let behind = self.waiters.iter_mut().skip(1);
        let readers = behind.take_while(|it| it.kind == WaiterKind::Shared && !it.is_abandoned);
        let mut readers: Vec<_> = readers.take(most.min(TOGETHER + 1)).collect();
        readers.pop();
        readers.retain(|waiter| waiter.admission == Admission::None);
        for waiter in &mut readers {
            waiter.admission = Admission::LetIn;
            waiter.wake.notify_one();
        }
        self.let_in += readers.len();
    }

    /// Whether waiters that were let in have not been answered yet.
    pub(super) fn is_letting_in(&self) -> bool {
        self.let_in > 0
    }

    pub(super) fn admission(&self, wake: &Arc<Notify>) -> Admission {
        if self.let_in == 0 {
            return Admission::None;
        }
        let mine = self.waiters.iter().find(|waiter| waiter.is(wake));
        mine.map_or(Admission::None, |waiter| waiter.admission)
    }

    /// Records that a waiter sends a request. Returns whether it was let in.
    pub(super) fn send(&mut self, wake: &Arc<Notify>) -> bool {
        let is_let_in = self.admission(wake) != Admission::None;
        if is_let_in {
            self.set_admission(wake, Admission::UnderWay);
        }
        is_let_in
    }

    /// Records that the request of a waiter was answered, or that the waiter leaves. Returns whether it was let in. If
    /// so, notifies the first waiter, which sends no request while waiters that were let in are not answered.
    pub(super) fn answered(&mut self, wake: &Arc<Notify>) -> bool {
        let was_let_in = self.admission(wake) != Admission::None;
        if was_let_in {
            self.set_admission(wake, Admission::None);
            self.let_in -= 1;
            self.notify_first();
        }
        was_let_in
    }

    fn set_admission(&mut self, wake: &Arc<Notify>, admission: Admission) {
        if let Some(mine) = self.waiters.iter_mut().find(|waiter| waiter.is(wake)) {
            mine.admission = admission;
        }
    }

    fn first(&self) -> Option<&ListedWaiter> {
        self.waiters.front().filter(|first| !first.is_abandoned)
    }

    fn position(&self, wake: &Arc<Notify>) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.is(wake))
    }
}

impl ListedWaiter {
    fn is(&self, wake: &Arc<Notify>) -> bool {
        Arc::ptr_eq(&self.wake, wake)
    }
}

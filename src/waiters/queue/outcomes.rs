//! What the outcome of a request changes in a [`KeyQueue`].

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{Granted, KeyQueue, first_request::FirstRequest, last_answer::LastAnswer};
use crate::{
    model::{Error, Held, LeaseId, Mode},
    random, retry,
    waiters::{
        handoff::HandoffStreak,
        kind::{Standing, WaiterKind},
        pace::{self, Ahead},
        place::{EndedTurn, PlaceNews, Refusal},
    },
};

impl KeyQueue {
    /// Records that a request was refused, and plans the next one. `reports_freed` says whether the store reports freed
    /// keys. Returns what the refusal says about the place for the first time.
    pub(in crate::waiters) fn refused(
        &mut self,
        wake: &Arc<Notify>,
        held: Held,
        standing: Standing,
        reports_freed: bool,
        now: Instant,
    ) -> Option<PlaceNews> {
        let takes_place = standing != Standing::Outside;
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        self.answered = now;
        // A lease that is not among the holders has ended, even if its release is not known here. It may have been
        // evicted.
        let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
        self.own_leases.retain(holds);
        // If the holder is not the same as at the last refusal, the key was free in between, and may soon be free
        // again. So the pauses start again with the shortest one.
        let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
        if matches!(&self.last, LastAnswer::Held(before) if first(before) != first(&held)) {
            self.pauses = 0;
        }
        let was_let_in = self.waiters.answered(wake);
        let place_news = takes_place
            .then(|| self.place.refused(&held, now))
            .flatten();
        if was_let_in || !self.waiters.is_first(wake) {
            // This does not say when the first waiter sends its next request.
            self.last = LastAnswer::Held(held);
            return place_news;
        }
        self.is_before_all = standing == Standing::BeforeAll;
        let ahead = match standing {
            Standing::InTurn => Ahead::others(&held),
            Standing::BeforeAll | Standing::Outside => Ahead::NOBODY,
        };
        let least = if reports_freed {
            retry::PAUSES_TO_LONGEST
        } else {
            0
        };
        let unreported = retry::pause_until_free(self.pauses, expires_in, 1.0);
        let pause = if ahead.is_first() && self.pauses.max(least) >= retry::PAUSES_TO_LONGEST {
            // Only one process is the first. It needs no jitter, and asks no more than once a second.
            self.count_pause(least, expires_in, 1.0)
        } else {
            self.count_pause(least, expires_in, random::fraction())
        };
        let refusal = Refusal {
            held: &held,
            ahead,
            otherwise: pause,
            reports_freed,
            took: now.saturating_duration_since(self.asked),
        };
        let pause = self.place.pause(refusal, now, random::fraction());
        let for_permits = self.waiters.first_kind() == Some(WaiterKind::Permits);
        let by_refusals = if self.place.pauses_by_pace() {
            Duration::ZERO
        } else {
            unreported
        };
        self.needs_reports = pace::needs_reports(&held, ahead, by_refusals, for_permits);
        if self.place.holders_leave() {
            // This pause is shorter than the planned one, which does not count.
            self.pauses = self.pauses.saturating_sub(1);
        }
        self.last = LastAnswer::Held(held);
        self.request.pause_until(now + pause);
        place_news
    }

    /// Records that a request failed, and plans the next one. Returns how many have failed in a row, and when the last
    /// answer came. Only failures of the first waiter count. Those of waiters that were let in may all have the same
    /// reason.
    pub(in crate::waiters) fn failed(
        &mut self,
        wake: &Arc<Notify>,
        error: Error,
        may_have_taken_place: bool,
        now: Instant,
    ) -> (u32, Instant) {
        if may_have_taken_place {
            self.place.set_taken();
        }
        if self.waiters.answered(wake) || !self.waiters.is_first(wake) {
            return (0, self.answered);
        }
        let times = self.last.fail(error);
        self.pause(0, None, now);
        (times, self.answered)
    }

    /// Records that a waiter gives up, because no request was answered for the whole call timeout. The other waiters
    /// that have waited for as long give up too.
    pub(in crate::waiters) fn give_up(&mut self) {
        if let LastAnswer::Failed { is_final, .. } = &mut self.last {
            *is_final = true;
        }
        self.waiters.notify_all();
    }

    /// Records that a waiter was granted a lease. Returns the streak of the lease, and what telemetry reports about the
    /// place, if the grant has ended one.
    ///
    /// After an exclusive grant the next waiter uses the longest pause, because the release of the lease wakes it.
    /// After a shared grant, or a grant of permits, it sends a request at once, because it may be granted the key too.
    pub(in crate::waiters) fn granted(
        &mut self,
        wake: &Arc<Notify>,
        granted: Granted,
        now: Instant,
    ) -> (HandoffStreak, Option<EndedTurn>) {
        let Granted {
            lease,
            mode,
            remaining,
            is_in_turn,
            refusal,
            in_place_of,
            ends_place,
        } = granted;
        self.answered = now;
        self.last = refusal.map_or(LastAnswer::Unknown, LastAnswer::Granted);
        let replaces = in_place_of.is_some();
        let (from, before) = in_place_of.unzip();
        self.own_leases.retain(|own| Some(*own) != from);
        // A release elsewhere may free a permit while this process has others.
        if mode != Mode::Permits {
            self.own_leases.push(lease);
        }
        let streak = HandoffStreak::next(before, now);
        let is_let_in = self.waiters.answered(wake);
        if is_let_in || !self.waiters.is_first(wake) {
            // A waiter that is neither let in nor the first was granted the key by an earlier request.
            if is_in_turn {
                self.place.let_one_in();
            }
            if is_let_in || mode != Mode::Exclusive {
                self.wake();
            }
            return (streak, None);
        }
        // The grant of a barging request does not end the place, which stays with the tasks that wait in it.
        self.needs_reports = false;
        let ended = is_in_turn
            .then(|| self.place.granted(ends_place, now))
            .flatten();
        match mode {
            Mode::Exclusive => {
                // Reports that came before this grant do not matter any more.
                self.request = FirstRequest::UnderWay { is_reported: false };
                self.pause(retry::PAUSES_TO_LONGEST, Some(remaining), now);
            }
            Mode::Shared | Mode::Permits => {
                self.request = FirstRequest::AtOnce(None);
                self.wake();
                // How many more permits are free is not known. A request that replaces a lease comes before the places
                // of other processes, and the readers behind it do not.
                if is_in_turn && mode == Mode::Shared && !replaces {
                    self.waiters.let_in_behind_first(self.place.still_let_in());
                    self.let_in_at = now;
                }
            }
        }
        (streak, ended)
    }

    /// Plans the next request after an answer: as a kept report says, or else after a pause. The pause is at least the
    /// pause after `least` pauses, but does not last longer than `expires_in`.
    fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pause = self.count_pause(least, expires_in, random::fraction());
        self.request.pause_until(now + pause);
    }

    fn count_pause(&mut self, least: u32, expires_in: Option<Duration>, chance: f64) -> Duration {
        let pauses = self.pauses.max(least);
        self.pauses = self.pauses.saturating_add(1);
        retry::pause_until_free(pauses, expires_in, chance)
    }
}

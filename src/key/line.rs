//! `Line`: when the first waiter of a key asks the store again, and what the answers so far say. Times come in as
//! arguments, and the jitter of pauses from `random`.
//!
//! Invariants:
//!
//! - One claim asks for the first waiter, one request at a time, unless a request is overdue. While there is none, the next
//!   request is sent at once.
//! - A report says that the key may be free: a release in this process, or a store that reports freed keys, causes it.
//!   A report that comes while a request is under way may be newer than the answer to the request. So the report is
//!   kept, and decides when the next request is sent after a refusal.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    pace::{self, Ahead},
    place::{OwnPlace, PlaceNews, Wakes},
};
use crate::{
    model::{Error, Held, LeaseId, Mode},
    random, retry,
};

/// The requests for the first waiter.
pub(super) struct Line {
    pub(super) next: NextRequest,
    pub(super) last: LastAnswer,
    /// The place of this process among the processes that wait.
    pub(super) place: OwnPlace,
    /// When the last request was sent.
    asked: Instant,
    /// When the last answer came. Before the first answer, when the first waiter came.
    pub(super) answered: Instant,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pauses: u32,
    freed: Freed,
    /// Whether the first waiter needs the store's reports of freed keys: see [`pace::needs_reports`].
    pub(super) needs_reports: bool,
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// After a pause, which ends at this instant. The key is not known to be free.
    Paused(Instant),
    /// At once: the key may have become free since the last one.
    AtOnce,
    /// A request is under way.
    UnderWay {
        /// Whether the key was reported to be free since the request was sent.
        is_reported: bool,
    },
}

/// The outcome of the last request.
pub(super) enum LastAnswer {
    /// There was no answer yet, or the key was granted to this process since the last one.
    Unknown,
    Held(Held),
    /// The last `times` requests have failed, the last one with this error.
    Failed {
        error: Error,
        times: u32,
    },
}

/// What the store has reported since the last request, while the first waiter waits for permits.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    /// How many releases.
    releases: usize,
    /// How many processes come next before this one, as the last report said that named this one.
    ahead: Option<usize>,
}

impl Line {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next: NextRequest::AtOnce,
            last: LastAnswer::Unknown,
            place: OwnPlace::new(),
            asked: now,
            answered: now,
            pauses: 0,
            freed: Freed::default(),
            needs_reports: false,
        }
    }

    /// Whether the next request is due now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.next {
            NextRequest::Paused(until) => now >= until,
            NextRequest::AtOnce => true,
            NextRequest::UnderWay { .. } => false,
        }
    }

    /// Records that a request is sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.next = NextRequest::UnderWay { is_reported: false };
        (self.asked, self.freed) = (now, Freed::default());
    }

    /// Records that the key may be free. The next request is sent at once, or after the answer to the one under way.
    pub(super) fn report(&mut self) {
        self.pauses = 0;
        match &mut self.next {
            NextRequest::UnderWay { is_reported } => *is_reported = true,
            next => *next = NextRequest::AtOnce,
        }
    }

    /// Records that what was asked is not wanted any more. Whoever comes next asks at once.
    pub(super) fn end_wait(&mut self) {
        self.next = NextRequest::AtOnce;
    }

    /// Plans the next request after an answer: at once if the key was reported to be free meanwhile, or else at this
    /// instant.
    fn pause_until(&mut self, at: Instant) {
        self.next = match self.next {
            NextRequest::UnderWay { is_reported: true } | NextRequest::AtOnce => {
                NextRequest::AtOnce
            }
            _ => NextRequest::Paused(at),
        };
    }

    /// Records that the store reported that the key became free. `next` are the processes that come next, if the store
    /// names them. Returns whether the first waiter, which waits in turn with this claim, asks now: all processes would
    /// ask at the same moment otherwise, and be refused.
    ///
    /// Of the processes that wait for permits, the store names all that are next to each other in the queue. As many of
    /// them send a request as there is room for after this release and those before it.
    pub(super) fn comes_next(
        &mut self,
        claim: Option<LeaseId>,
        next: Option<&[LeaseId]>,
        mode: Mode,
    ) -> bool {
        // How many processes come next before this one, if it is among them.
        let own = next.and_then(|next| next.iter().position(|next| Some(*next) == claim));
        let is_next = match next {
            Some(_) => own.is_some(),
            // Otherwise all processes without a place would send a request at the same moment.
            None => self.last.ahead() == 0,
        };
        if mode != Mode::Permits {
            return is_next;
        }
        self.freed.releases = self.freed.releases.saturating_add(1);
        // The store names the processes only if they are not the same as at the release before.
        if next.is_some() {
            self.freed.ahead = own;
        }
        let room = self.last.room_after(self.freed.releases);
        self.freed.ahead.map_or(is_next, |ahead| ahead < room)
    }

    /// Records that the request of the first waiter was refused, and plans the next one. The waiter `comes_first` if it is
    /// before all processes that wait, and not in turn. Returns what the refusal says about the place for the first time.
    pub(super) fn refused(
        &mut self,
        held: Held,
        (comes_first, mode): (bool, Mode),
        wakes: Wakes,
        now: Instant,
    ) -> Option<PlaceNews> {
        self.answered = now;
        // If the holder is not the same as at the last refusal, the key was free in between, and may soon be free
        // again. So the pauses start again with the shortest one.
        let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
        if matches!(&self.last, LastAnswer::Held(before) if first(before) != first(&held)) {
            self.pauses = 0;
        }
        // The request was in turn. The one that it was sent for may not be the first any more.
        let news = self.place.report.refused(&held, now);
        let ahead = if comes_first {
            Ahead::NOBODY
        } else {
            Ahead::others(&held)
        };
        let pause = self.pause_after(&held, (ahead, mode), wakes, now);
        self.last = LastAnswer::Held(held);
        self.pause_until(now + pause);
        news
    }

    fn pause_after(
        &mut self,
        held: &Held,
        (ahead, mode): (Ahead, Mode),
        wakes: Wakes,
        now: Instant,
    ) -> Duration {
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        let least = match wakes {
            Wakes::None => 0,
            Wakes::ByStore | Wakes::Here => retry::PAUSES_TO_LONGEST,
        };
        let unreported = retry::pause_until_free(self.pauses, expires_in, 1.0);
        // Only one process is the first. It needs no jitter, and asks no more than once a second.
        let is_slow = ahead.is_first() && self.pauses.max(least) >= retry::PAUSES_TO_LONGEST;
        let chance = if is_slow { 1.0 } else { random::fraction() };
        let otherwise = self.count_pause(least, expires_in, chance);
        let took = now.saturating_duration_since(self.asked);
        let pace = &mut self.place.pace;
        pace.see(held, ahead.turns, took, now);
        let by_refusals = if pace.had_others_ahead {
            Duration::ZERO
        } else {
            unreported
        };
        let (of, chance) = ((held, ahead), random::fraction());
        let pause = self.place.pause(of, wakes, otherwise, chance);
        self.needs_reports = pace::needs_reports(held, ahead, by_refusals, mode == Mode::Permits);
        if self.place.pace.holders_leave {
            // This pause is shorter than the planned one, which does not count.
            self.pauses = self.pauses.saturating_sub(1);
        }
        pause
    }

    /// Records that a request failed, and plans the next one. Returns how many have failed in a row.
    pub(super) fn failed(&mut self, error: Error, now: Instant) -> u32 {
        let before = match self.last {
            LastAnswer::Failed { times, .. } => times,
            LastAnswer::Unknown | LastAnswer::Held(_) => 0,
        };
        let times = before.saturating_add(1);
        self.last = LastAnswer::Failed { error, times };
        let pause = self.count_pause(0, None, random::fraction());
        self.pause_until(now + pause);
        times
    }

    /// Records that the claim was granted. The next waiter has another claim.
    pub(super) fn granted(&mut self, now: Instant) {
        (self.answered, self.pauses) = (now, 0);
        self.last = LastAnswer::Unknown;
        self.next = NextRequest::AtOnce;
        self.needs_reports = false;
    }

    fn count_pause(&mut self, least: u32, expires_in: Option<Duration>, chance: f64) -> Duration {
        let pauses = self.pauses.max(least);
        self.pauses = self.pauses.saturating_add(1);
        retry::pause_until_free(pauses, expires_in, chance)
    }

    /// Whether the first waiter, whose time is over, can give up without a last request: the last answer is recent, no
    /// report says that the key became free since, and another waiter will send the next request.
    pub(super) fn can_skip_last_request(&self, has_others: bool, now: Instant) -> bool {
        has_others
            && matches!(self.next, NextRequest::Paused(_))
            && matches!(self.last, LastAnswer::Held(_))
            && now.saturating_duration_since(self.answered) < retry::LONGEST_PAUSE / 2
    }
}

impl LastAnswer {
    /// The refusal, if it was one.
    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            Self::Held(held) => Some(held),
            Self::Unknown | Self::Failed { .. } => None,
        }
    }

    /// How many processes were ahead of the last request.
    pub(super) fn ahead(&self) -> usize {
        self.held().map_or(0, Held::ahead)
    }

    /// How many leases of permits this many releases after a refusal make room for at most, as far as the refusal tells.
    /// There may be more room after an eviction, and after the end of a lease that came later. A process that this
    /// does not count asks after its pause.
    pub(super) fn room_after(&self, releases: usize) -> usize {
        let most = |held: &Held| held.holders().iter().map(|holder| holder.permits).max();
        let most = self.held().and_then(most).map(usize::try_from);
        match most {
            Some(Ok(most)) if self.is_refusal_by(Mode::Permits) => most.saturating_mul(releases),
            _ => usize::MAX,
        }
    }

    /// Whether it was a refusal because of leases of this mode only.
    pub(super) fn is_refusal_by(&self, mode: Mode) -> bool {
        let holders = self.held().map_or(&[][..], Held::holders);
        !holders.is_empty() && holders.iter().all(|holder| holder.mode == mode)
    }
}

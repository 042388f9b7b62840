//! `Claim`: a lease id that this process owns, from before its first request until its release is settled.
//!
//! Invariants:
//!
//! - All requests with the id have the same terms, unless each request before was answered by a refusal: a live lease
//!   with the id is granted again as it is, whatever the request says.
//! - A claim that may be granted is asked again, held, or settled: released after each answer that may be a grant, until
//!   no request can be granted any more.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    call::{Call, PolledCall},
    cell::WaiterNo,
    effect::{Effect, Effects},
    holding::Holding,
    waiters::{FromMemory, Want},
};
use crate::{
    coalescer::HowSent,
    lease_state::LeaseState,
    messages::{AcquireRequest, Earlier},
    model::{LeaseId, Mode},
    retry::{LONGEST_PAUSE, OVERDUE, Tries},
};

/// How long a request may take before a task of its own polls it: the task of its waiter may have left it unpolled.
pub(super) const SILENT: Duration = Duration::from_millis(500);

pub(super) struct Claim {
    /// The terms, as the next request has them.
    pub(super) request: Arc<AcquireRequest>,
    /// For how long the lease stays with this process although no task uses it. `None` if it does not stay.
    pub(super) stays_for: Option<Duration>,
    /// Whether the lease may serve tasks from memory.
    pub(super) memory: FromMemory,
    pub(super) sent: Sent,
    pub(super) phase: Phase,
    /// The release, while only its caller polls it.
    pub(super) release: Option<PolledCall>,
    /// Makes a close wait for the claim.
    pub(super) at_work: Option<TaskTrackerToken>,
}

/// The requests of a claim.
pub(super) struct Sent {
    pub(super) under_way: Vec<UnderWay>,
    /// What those that have ended may have left at the store.
    pub(super) left: Left,
    /// Whether a request was refused because of other processes, which use the key too.
    pub(super) is_contended: bool,
    /// What became of the requests that have ended.
    pub(super) ended: Earlier,
    /// Whether the document may have a place of the claim. If nobody wants the claim, the place is given up after the
    /// last answer.
    pub(super) has_place: bool,
    /// When the first request was sent that may have been granted.
    pub(super) since: Option<Instant>,
}

/// What the requests of a claim that have ended may have left at the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    Nothing,
    /// A grant. A later one is the same lease, and one release ends both.
    Grant,
    /// A request that may have been granted, or may be carried out later.
    Request,
}

/// A request without an answer.
pub(super) struct UnderWay {
    /// No other request has it.
    pub(super) call: Arc<Call>,
    /// The waiter for which it was sent.
    pub(super) of: WaiterNo,
    pub(super) at: Instant,
    /// Whether its answer is waited for: no answer to another request of the claim that counts has come since, and it has
    /// not taken longer than a call may take.
    pub(super) is_awaited: bool,
    /// Whether only the task that waits for the answer polls it.
    pub(super) is_inline: bool,
    /// Whether it asked in turn, so that a refusal takes the place of the claim, and a grant ends it.
    pub(super) is_in_turn: bool,
}

pub(super) enum Phase {
    /// It asks for the first waiter of the line.
    AsksForLine,
    /// It asks for one waiter beside the line.
    AsksFor(WaiterNo, Beside),
    /// The lease was granted.
    Held(Holding),
    /// The lease is released, since this instant.
    Releasing {
        lease: Arc<LeaseState>,
        since: Instant,
    },
    /// The lease goes on without this process. Later grants than its own are released.
    GivenAway(Arc<LeaseState>),
    /// Nobody wants it. What is granted late is released.
    Settling(Settlement),
}

/// When a claim beside the line asks again.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) tries: Tries,
    pub(super) pauses: u32,
    /// How many requests have failed in a row.
    pub(super) failures: u32,
    /// When the last answer came that was no error. Before the first one, when the task began to ask.
    pub(super) answered: Option<Instant>,
    /// When the next request is sent. `None` while one is under way.
    pub(super) next: Option<Instant>,
}

/// The settlement of a claim that nobody wants.
pub(super) struct Settlement {
    /// How many releases are under way.
    pub(super) releases: u32,
    /// Whether another release is due after them.
    pub(super) is_due: bool,
    /// Whether the request that gives up the place is under way.
    pub(super) leaves: bool,
    since: Instant,
    /// After how long without an answer the claim is released all the same. It doubles each time.
    limit: Duration,
    /// When the claim is released if no answer comes before.
    pub(super) next_release: Option<Instant>,
    /// From when on a close does not wait for it.
    pub(super) end: Option<Instant>,
}

impl Claim {
    /// A claim with the id and the terms of this request, of which none was sent. It does not stay, or serve from memory.
    pub(super) fn new(request: Arc<AcquireRequest>, phase: Phase) -> Self {
        Self {
            request,
            stays_for: None,
            memory: FromMemory::Never,
            sent: Sent {
                under_way: Vec::new(),
                left: Left::Nothing,
                is_contended: false,
                ended: Earlier::None,
                has_place: false,
                since: None,
            },
            phase,
            release: None,
            at_work: None,
        }
    }

    pub(super) fn lease(&self) -> LeaseId {
        self.request.lease
    }

    /// Whether this task may have the lease. A permit is only for a task that had asked when its first request was sent:
    /// others may have been granted later permits before a later task asked.
    pub(super) fn is_for(&self, want: &Want) -> bool {
        let since = self.sent.since;
        let is_in_time = since.is_none_or(|since| want.since <= since);
        want.has_terms_of(&self.request)
            && (is_in_time || want.request.access.mode() != Mode::Permits)
    }

    /// Whether its last request was in turn.
    pub(super) fn is_in_turn(&self) -> bool {
        self.request.turn.waiter().is_some()
    }

    /// Whether the claim asks the store for a waiter.
    pub(super) fn asks(&self) -> bool {
        matches!(self.phase, Phase::AsksForLine | Phase::AsksFor(..))
    }

    /// Whether a request beside the line was refused.
    pub(super) fn has_been_refused(&self) -> bool {
        matches!(&self.phase, Phase::AsksFor(_, beside) if beside.answered.is_some())
    }

    /// The lease, from its grant until its release is answered.
    pub(super) fn lease_state(&self) -> Option<&Arc<LeaseState>> {
        match &self.phase {
            Phase::Held(holding) => Some(&holding.lease),
            Phase::Releasing { lease, .. } | Phase::GivenAway(lease) => Some(lease),
            Phase::AsksForLine | Phase::AsksFor(..) | Phase::Settling(_) => None,
        }
    }

    pub(super) fn holding(&self) -> Option<&Holding> {
        match &self.phase {
            Phase::Held(holding) => Some(holding),
            _ => None,
        }
    }

    pub(super) fn holding_mut(&mut self) -> Option<&mut Holding> {
        match &mut self.phase {
            Phase::Held(holding) => Some(holding),
            _ => None,
        }
    }

    /// Whether one request is under way, and its answer is waited for.
    pub(super) fn has_one_request(&self) -> bool {
        matches!(self.sent.under_way.as_slice(), [one] if one.is_awaited)
    }

    /// Notes for the release of the lease whether a request may be carried out after it. It is repeated then.
    pub(super) fn note_unclear(&self) {
        let is_unclear = self.sent.left == Left::Request;
        if let Some(holding) = self.holding().filter(|_| is_unclear) {
            let lease = &holding.lease;
            lease.set_release_terms(|terms| terms.maybe_in_flight = true);
        }
    }

    /// Whether its terms may change: each request was answered by a refusal.
    pub(super) fn may_change(&self) -> bool {
        self.sent.under_way.is_empty() && self.sent.left == Left::Nothing
    }
}

impl Sent {
    /// What became of the requests before the next one.
    pub(super) fn earlier(&self) -> Earlier {
        if self.under_way.is_empty() {
            self.ended
        } else {
            Earlier::Unclear
        }
    }

    /// Whether a request is under way whose answer is waited for, and which is not to be repeated now. A request is
    /// repeated once: see [`UnderWay::is_slow`].
    pub(super) fn waits(&self, others_wait: bool, now: Instant) -> bool {
        let is_repeated = self.under_way.len() > 1;
        // After a late grant the store may keep the lease for this claim, and no task can use it.
        let is_needed = others_wait || self.left == Left::Grant;
        let waits = |it: &UnderWay| it.is_awaited && (is_repeated || !it.is_slow(is_needed, now));
        self.under_way.iter().any(waits)
    }

    /// Whether a request was sent within the last second, whose answer is worth a wait.
    pub(super) fn has_new_request(&self, now: Instant) -> bool {
        self.under_way.iter().any(|it| now < it.at + OVERDUE)
    }

    /// Withdraws the requests that were not sent yet: they have no answer.
    pub(super) fn withdraw(&mut self, out: &mut Effects) {
        self.under_way.retain(|it| {
            let withdrawn = it.call.withdraw();
            let is_left = withdrawn.is_none();
            out.extend(withdrawn.map(|work| Effect::Withdrawn(it.call.clone(), work)));
            is_left
        });
    }

    /// Lets tasks of their own poll the requests that began by this instant: another task depends on them, or their
    /// waiters may have left them unpolled.
    pub(super) fn spawn(&mut self, before: Instant, out: &mut Effects) {
        let requests = self.under_way.iter_mut();
        for request in requests.filter(|it| it.is_inline && it.at <= before) {
            request.is_inline = false;
            out.push(Effect::Spawn(request.call.clone()));
        }
    }

    /// Records that a request has ended. Returns it, unless it is not known.
    pub(super) fn end(&mut self, call: &Arc<Call>) -> Option<UnderWay> {
        let is_it = |it: &UnderWay| Arc::ptr_eq(&it.call, call);
        let at = self.under_way.iter().position(is_it)?;
        Some(self.under_way.swap_remove(at))
    }
}

impl UnderWay {
    /// Whether the answer takes so long that the request is repeated: a second. One that was sent in a batch is
    /// repeated, because another request of the batch may delay it; and one for whose answer other tasks wait too,
    /// because it may be lost. One that was not sent yet is not.
    fn is_slow(&self, others_wait: bool, now: Instant) -> bool {
        if now < self.at + OVERDUE {
            return false;
        }
        match self.call.how_sent() {
            HowSent::NotYet => false,
            HowSent::InBatch(sent) => now >= sent + OVERDUE,
            HowSent::AtOnce => others_wait,
            HowSent::Alone(sent) => others_wait && now >= sent + OVERDUE,
        }
    }

    /// When it may be slow for the first time, or is not new any more, or is asked again how it was sent, after this
    /// instant.
    pub(super) fn next_look(&self, is_repeated: bool, passed: Instant) -> Option<Instant> {
        let first = self.at + OVERDUE;
        if first > passed {
            return Some(first);
        }
        match self.call.how_sent() {
            _ if is_repeated || !self.is_awaited => None,
            HowSent::NotYet => Some(passed + OVERDUE),
            HowSent::InBatch(sent) => Some(sent + OVERDUE),
            HowSent::AtOnce => None,
            HowSent::Alone(sent) => Some(sent + OVERDUE).filter(|at| *at > passed),
        }
    }
}

impl Settlement {
    /// The settlement of a claim that nobody wants from now on.
    pub(super) fn begin(call_timeout: Duration, ttl: Duration, now: Instant) -> Self {
        Self {
            releases: 0,
            is_due: false,
            leaves: false,
            since: now,
            limit: call_timeout,
            next_release: now.checked_add(call_timeout),
            end: now.checked_add(call_timeout.saturating_add(ttl)),
        }
    }

    /// Whether the claim is to be released although no answer came: the server may have granted it, and the connection
    /// may be dead without an error. So the release is repeated, after pauses that double, until a lease that was granted
    /// would have expired.
    pub(super) fn take_timed_release(&mut self, now: Instant) -> bool {
        let is_due = self.next_release.is_some_and(|at| now >= at);
        if is_due {
            self.limit = self.limit.saturating_mul(2);
            let end = self.end.filter(|end| now < *end);
            self.next_release = end.and_then(|_| now.checked_add(self.limit));
        }
        is_due
    }

    /// Until when a new claim of this process waits for this one.
    pub(super) fn waited_for_until(&self) -> Instant {
        self.since + LONGEST_PAUSE
    }
}

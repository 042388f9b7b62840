//! The server: its documents, its clock, and what the judges learn from it. The rules of the library decide.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Error, Key, Mode,
    rules::{self, Decision, Write},
    store::{
        AcquireAnswer, AcquireRequest, LeaseId, LimiterRecord, LockRecord, PermitAnswer, PermitId,
        PermitRequest, Turn, WindowKind,
    },
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

use crate::{
    control::Control,
    judge::{Judge, Violation},
    ledger::Tally,
    trace::{Trace, Who},
    world::Options,
};

/// The time of the server's clock at the beginning, in milliseconds since 1970.
const BEGIN: i64 = 1_900_000_000_000;

/// The server of a run.
#[derive(Debug)]
pub struct Server {
    state: Mutex<State>,
    /// What happens.
    pub trace: Arc<Trace>,
    /// What is wrong on purpose.
    pub control: Option<Control>,
}

/// More requests than all tasks send at one instant, unless one of them repeats its own without a pause.
const MOST_AT_ONCE: u32 = 2_000;
/// For so long after a key was freed all places together keep it for those that have them.
const PLACES_KEEP: TimeDelta = TimeDelta::seconds(4);

/// What a limiter is counted by.
type Series = (Key, Duration, bool);

/// The state of the server.
#[derive(Debug)]
pub struct State {
    /// When the server's clock began.
    pub began: Instant,
    /// By how much the clock has stepped, in milliseconds.
    pub ahead: i64,
    /// The documents.
    pub records: BTreeMap<Key, LockRecord>,
    limiters: BTreeMap<Series, LimiterRecord>,
    /// Until when the server stands still.
    pub stands_until: Instant,
    /// How many faults are left.
    pub faults_left: u32,
    /// Until when the last fault has an effect, as far as is known.
    pub trouble: Instant,
    /// When the leases of a key were last ended by an operator.
    pub evicted: BTreeMap<Key, Instant>,
    /// How many tasks are about to end all leases of a client.
    pub evictions: usize,
    /// The client of each id in a place.
    pub waiters: BTreeMap<LeaseId, usize>,
    /// The permits that were granted in each window.
    windows: BTreeMap<(Series, i64), u32>,
    /// The grants of permits that were counted. After its window a repeated request gets a new one.
    permits: BTreeSet<(PermitId, DateTime<Utc>)>,
    /// How many permits were granted in all.
    pub permits_granted: u64,
    /// How often a document changed.
    pub version: u64,
    /// How many requests came.
    pub requests: u64,
    /// How many of them at the same instant, which is this one.
    at_once: (Instant, u32),
    /// How often each fault happened, and each finding that does not end the run.
    pub tally: Tally,
    ignored: &'static [Judge],
    /// The first thing that was wrong.
    pub violation: Option<Violation>,
    /// Whether the run is over, and everything may be dropped.
    pub is_over: bool,
}

impl Server {
    /// A server without documents.
    pub fn new(trace: Arc<Trace>, options: &Options, faults_left: u32) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            began: now,
            ahead: 0,
            records: BTreeMap::new(),
            limiters: BTreeMap::new(),
            stands_until: now,
            faults_left,
            trouble: now,
            evicted: BTreeMap::new(),
            evictions: 0,
            waiters: BTreeMap::new(),
            windows: BTreeMap::new(),
            permits: BTreeSet::new(),
            permits_granted: 0,
            version: 0,
            requests: 0,
            at_once: (now, 0),
            tally: Tally::new(),
            ignored: options.ignored,
            violation: None,
            is_over: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            trace,
            control: options.control,
        })
    }

    /// The state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits while the server stands still.
    pub async fn answers(&self) {
        loop {
            let until = self.state.lock().stands_until;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Stands still from now on for this long.
    pub fn stands(&self, lasts: Duration) {
        let mut state = self.state.lock();
        state.stands_until = Instant::now() + lasts;
        state.note_trouble(Instant::now() + lasts + crate::connection::USUAL);
    }

    /// Adds an event to the trace.
    pub fn say(&self, who: Who, what: impl FnOnce() -> String) {
        self.trace.say(who, what);
    }

    /// Records that a judge found something wrong. Only the first one counts.
    pub fn accuse(&self, judge: Judge, text: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        state.find(&self.trace, Some(Violation::new(judge, text())));
    }
}

impl State {
    /// The time by the server's clock, in whole milliseconds.
    pub fn now(&self) -> DateTime<Utc> {
        let elapsed = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX / 4);
        DateTime::UNIX_EPOCH + TimeDelta::milliseconds(BEGIN + elapsed + self.ahead)
    }

    /// Goes on by another clock of the process, which had this time when there was no server yet. No fault is left.
    pub fn restart(&mut self, began: Instant) {
        let now = Instant::now();
        (self.began, self.stands_until, self.trouble) = (began, now, now);
        self.at_once = (now, 0);
        self.faults_left = 0;
        self.evicted.clear();
        self.evictions = 0;
    }

    /// How long a document keeps a lease or a place.
    pub fn lasts(&self, key: &Key) -> Duration {
        let Some(record) = self.records.get(key) else {
            return Duration::ZERO;
        };
        let holders = record.holders.iter().map(|it| it.expires_at);
        let places = record.waiters.iter().map(|it| it.until);
        self.until_last(holders.chain(places))
    }

    fn until_last(&self, ends: impl Iterator<Item = DateTime<Utc>>) -> Duration {
        let left = ends.max().map(|last| last - self.now());
        left.and_then(|it| it.to_std().ok()).unwrap_or_default()
    }

    /// Records what a judge found. Only the first finding counts.
    pub fn find(&mut self, trace: &Trace, found: Option<Violation>) {
        if let Some(found) = found.filter(|_| self.violation.is_none() && !self.is_over) {
            if self.ignored.contains(&found.judge) {
                *self.tally.entry(found.judge.name()).or_default() += 1;
                return;
            }
            trace.say(Who::World, || {
                format!("WRONG: {}: {}", found.judge, found.text)
            });
            self.violation = Some(found);
        }
    }

    /// Counts a request. Returns whether too many come at one instant.
    pub fn count_request(&mut self) -> bool {
        self.requests += 1;
        let now = Instant::now();
        let (at, before) = self.at_once;
        let times = if at == now { before + 1 } else { 1 };
        self.at_once = (now, times);
        times > MOST_AT_ONCE
    }

    /// A fault has an effect until then.
    pub fn note_trouble(&mut self, until: Instant) {
        self.trouble = self.trouble.max(until);
    }

    /// For how long the document of a key keeps leases of an owner.
    pub fn left(&self, key: &Key, owner: &str) -> Duration {
        let holders = self.records.get(key).map(|it| &it.holders);
        let holders = holders.into_iter().flatten();
        let owned = holders.filter(|it| *it.owner == *owner);
        self.until_last(owned.map(|it| it.expires_at))
    }

    /// Carries out a rule on the document of a key.
    pub fn decide<A>(
        &mut self,
        key: &Key,
        rule: impl FnOnce(Option<&LockRecord>) -> Decision<A>,
    ) -> A {
        let decision = rule(self.records.get(key));
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => {
                self.version += 1;
                self.records.insert(key.clone(), record);
            }
            Write::Remove => {
                self.version += 1;
                self.records.remove(key);
            }
        }
        decision.answer
    }

    /// Carries out an acquire, and judges a grant.
    pub fn acquire(
        &mut self,
        server: &Server,
        request: &AcquireRequest,
        now: DateTime<Utc>,
    ) -> Result<AcquireAnswer, Error> {
        let before = self.records.get(&request.key).cloned();
        let right =
            |state: &mut Self| state.decide(&request.key, |it| rules::acquire(it, request, now));
        let answer = match server.control {
            Some(control) => control.acquire(self, request, now, right),
            None => right(self),
        };
        if let (Ok(AcquireAnswer::Granted(_)), Some(before)) = (&answer, before) {
            self.find(&server.trace, passes(&before, request, now));
        }
        answer
    }

    /// Carries out a request for permits, and judges a grant.
    pub fn permit(
        &mut self,
        server: &Server,
        request: &PermitRequest,
        now: DateTime<Utc>,
    ) -> Result<PermitAnswer, Error> {
        let quota = &request.quota;
        let is_fixed = quota.window_kind() == WindowKind::Fixed;
        let series = (request.key.clone(), quota.window(), !is_fixed);
        let known = self.limiters.get(&series);
        let known = known.filter(|_| server.control != Some(Control::ForgetsPermits));
        let decision = rules::permit(known, request, now);
        if let Write::Put(record) = decision.write {
            self.limiters.insert(series.clone(), record);
        }
        if let PermitAnswer::Granted {
            permits,
            granted_at,
            ..
        } = &decision.answer
            && self.permits.insert((request.id, *granted_at))
        {
            self.permits_granted += u64::from(*permits);
            let length = i64::try_from(quota.window().as_millis())
                .unwrap_or(i64::MAX)
                .max(1);
            let window = granted_at.timestamp_millis() / length;
            let counted = self.windows.entry((series, window)).or_default();
            *counted += permits;
            if is_fixed && *counted > quota.limit() {
                let text = format!("{counted} permits of {} in a window", quota.limit());
                let over = Violation::new(Judge::Quota, text);
                self.find(&server.trace, Some(over));
            }
        }
        Ok(decision.answer)
    }
}

/// A document in a few words.
pub fn describe(record: &LockRecord, now: DateTime<Utc>) -> String {
    let text = |owner: &str, mode: Mode, id: LeaseId, until: DateTime<Utc>| {
        let (id, left) = (short_id(&id), (until - now).as_seconds_f64());
        format!("{owner} {mode:?} {id} for {left:.3} s")
    };
    let holders = record.live_holders(now);
    let holders = holders.map(|it| text(&it.owner, it.mode, it.lease, it.expires_at));
    let places = record.live_places(now);
    let places = places.map(|it| text(&it.owner, it.mode, it.waiter, it.until));
    let (holders, places) = (holders.collect::<Vec<_>>(), places.collect::<Vec<_>>());
    let fence = record.fence;
    format!("fence {fence}, held by {holders:?}, awaited by {places:?}")
}

/// The beginning of an id.
pub fn short_id(id: &impl ToString) -> String {
    id.to_string().chars().take(4).collect()
}

/// Whether a grant passes a process that came before.
fn passes(before: &LockRecord, request: &AcquireRequest, now: DateTime<Utc>) -> Option<Violation> {
    let Turn::InTurn(turn) = &request.turn else {
        return None;
    };
    let is_new = before.holders.iter().all(|it| it.lease != request.lease);
    if now >= before.expires_at + PLACES_KEEP || !is_new || request.reentrant {
        return None;
    }
    let mode = request.access.mode();
    let ahead = before
        .live_places(now)
        .take_while(|it| it.waiter != turn.waiter);
    let passed = { ahead }.find(|it| {
        let conflicts = mode == Mode::Exclusive || it.mode == Mode::Exclusive;
        it.owner != request.owner && conflicts
    })?;
    let text = format!("{} passes the place of {}", request.owner, passed.owner);
    Some(Violation::new(Judge::QueueOfProcesses, text))
}

//! The server: its documents, its clock, and what the judges learn from it. The rules of the library decide.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Error, Fence, Holder, Key, Mode,
    rules::{self, Decision, Write},
    store::{
        AcquireAnswer, AcquireRequest, LastDone, LeaseId, LimiterRecord, LockRecord, PermitAnswer,
        PermitId, PermitRequest, Quota, Turn, WindowKind,
    },
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

use crate::{
    course::Course,
    judge::{Judge, Violation},
    world::{Options, Outcome},
};

/// The time of the server's clock at the beginning, in milliseconds since 1970.
const BEGIN: i64 = 1_900_000_000_000;
/// More requests than all tasks send at one instant, unless one of them repeats its own without a pause.
const MOST_AT_ONCE: u64 = 2_000;
/// For so long after a key was freed all places together keep it for those that have them.
const PLACES_KEEP: TimeDelta = TimeDelta::seconds(4);

/// The server of a run.
#[derive(Debug)]
pub struct Server {
    /// What the run is like.
    pub course: Course,
    state: Mutex<State>,
}

/// The state of the server.
#[derive(Debug)]
pub struct State {
    options: Options,
    /// When the server's clock began.
    pub began: Instant,
    /// By how much the clock has stepped, in milliseconds.
    pub ahead: i64,
    /// The documents.
    pub records: BTreeMap<Key, LockRecord>,
    limiters: HashMap<Quota, LimiterRecord>,
    /// How many permits were granted: of which limiter, when, and to which request.
    pub permits: HashMap<(Quota, DateTime<Utc>, PermitId), u32>,
    /// Until when the server stands still.
    pub stands_until: Instant,
    /// When the broken way of a client is mended, or was.
    pub outages: BTreeMap<usize, Instant>,
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
    /// How many requests came.
    pub requests: u64,
    /// The instant of the last one, and how many had come before that instant.
    at_once: (Instant, u64),
    /// What has happened, and what was wrong.
    pub outcome: Outcome,
    /// Whether the run is over, and everything may be dropped.
    pub is_over: bool,
}

impl Server {
    /// A server without documents.
    pub fn new(course: &Course, options: &Options) -> Self {
        let now = Instant::now();
        let state = State {
            options: *options,
            began: now,
            ahead: 0,
            records: BTreeMap::new(),
            limiters: HashMap::new(),
            permits: HashMap::new(),
            stands_until: now,
            outages: BTreeMap::new(),
            faults_left: course.fault_budget,
            trouble: now,
            evicted: BTreeMap::new(),
            evictions: 0,
            waiters: BTreeMap::new(),
            requests: 0,
            at_once: (now, 0),
            outcome: Outcome::default(),
            is_over: false,
        };
        Self {
            course: course.clone(),
            state: Mutex::new(state),
        }
    }

    /// The state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits while the server stands still. It begins to do so, for this long, unless it does so already.
    pub async fn answers(&self, still: Duration) {
        let now = Instant::now();
        if self.state().stands_until <= now {
            self.state().stands_until = now + still;
        }
        comes(|| self.state().stands_until).await;
    }
}

/// Waits for an instant that may move meanwhile.
pub async fn comes(at: impl Fn() -> Instant) {
    while Instant::now() < at() {
        sleep_until(at()).await;
    }
}

impl State {
    /// Adds an event to the trace, if there is one.
    pub fn say(&mut self, who: fmt::Arguments<'_>, what: impl FnOnce() -> String) {
        if self.options.is_traced {
            let at = self.began.elapsed().as_secs_f64();
            let line = format!("{at:9.3} s  {:<16} {}", who.to_string(), what());
            self.outcome.trace.push(line);
        }
    }

    /// Counts an event.
    pub fn count(&mut self, what: &str) {
        *self.outcome.tally.entry(what.to_owned()).or_default() += 1;
    }

    /// Records what a judge found. Only the first finding counts.
    pub fn accuse(&mut self, judge: Judge, text: impl Into<String>) {
        let counts = self.options.wrong.is_none_or(|it| it == judge);
        if counts && !self.is_over && self.outcome.violation.is_none() {
            let text = text.into();
            let found = Violation { judge, text };
            self.say(format_args!("world"), || format!("WRONG: {found}"));
            self.outcome.violation = Some(found);
        }
    }

    /// Whether this judge has to find something, because something is wrong on purpose.
    pub fn is_wrong(&self, judge: Judge) -> bool {
        self.options.wrong == Some(judge)
    }

    /// When the way of a client is mended, or was.
    pub fn mended(&self, client: usize) -> Instant {
        self.outages.get(&client).copied().unwrap_or(self.began)
    }

    /// The time by the server's clock, in whole milliseconds.
    pub fn now(&self) -> DateTime<Utc> {
        let elapsed = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX / 4);
        DateTime::UNIX_EPOCH + TimeDelta::milliseconds(BEGIN + elapsed + self.ahead)
    }

    /// Goes on by another clock of the process, which had this time when there was no server yet. No fault is left.
    pub fn restart(&mut self, began: Instant) {
        let now = Instant::now();
        (self.began, self.stands_until, self.trouble) = (began, now, now);
        self.faults_left = 0;
        self.evicted.clear();
        self.outages.clear();
        self.evictions = 0;
        self.is_over = false;
    }

    /// How long the document of a key keeps a lease or a place, of this owner or of any.
    pub fn lasts(&self, key: &Key, owner: Option<&str>) -> Duration {
        let ends = self.records.get(key).into_iter().flat_map(|record| {
            let holders = record.holders.iter().map(|it| (&it.owner, it.expires_at));
            holders.chain(record.waiters.iter().map(|it| (&it.owner, it.until)))
        });
        let owned = ends.filter(|(of, _)| owner.is_none_or(|owner| ***of == *owner));
        let last = owned.map(|(_, end)| end - self.now()).max();
        last.and_then(|it| it.to_std().ok()).unwrap_or_default()
    }

    /// Counts a request. Returns whether too many come at one instant.
    pub fn count_request(&mut self) -> bool {
        if self.at_once.0 != Instant::now() {
            self.at_once = (Instant::now(), self.requests);
        }
        self.requests += 1;
        self.requests - self.at_once.1 > MOST_AT_ONCE
    }

    /// A fault has an effect until then.
    pub fn note_trouble(&mut self, until: Instant) {
        self.trouble = self.trouble.max(until);
    }

    /// Carries out a rule on the document of a key, and returns the answer. If this judge has to find something, the
    /// document stays as it is.
    pub fn decide<A>(
        &mut self,
        key: &Key,
        judge: Option<Judge>,
        rule: impl FnOnce(Option<&LockRecord>) -> Decision<A>,
    ) -> A {
        let decision = rule(self.records.get(key));
        match decision.write {
            _ if judge.is_some() && judge == self.options.wrong => {}
            Write::Keep => {}
            Write::Put(record) => drop(self.records.insert(key.clone(), record)),
            Write::Remove => drop(self.records.remove(key)),
        }
        decision.answer
    }

    /// Carries out an acquire, and judges a grant.
    pub fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: DateTime<Utc>,
    ) -> Result<AcquireAnswer, Error> {
        let before = self.records.get(&request.key).cloned();
        if let Some(record) = self.records.get_mut(&request.key) {
            damage(record, self.options.wrong, now);
        }
        if self.is_wrong(Judge::Sleeps) && self.requests > 20 {
            return rules::acquire(Some(&held(&request.key, now)), request, now).answer;
        }
        let mut answer = self.decide(&request.key, None, |it| rules::acquire(it, request, now));
        if let Ok(AcquireAnswer::Granted(grant)) = &mut answer {
            if self.is_wrong(Judge::Fences) {
                grant.fence = Fence::new(1);
            }
            if let Some(text) = before.and_then(|before| passes(&before, request, now)) {
                self.accuse(Judge::QueueOfProcesses, text);
            }
        }
        answer
    }

    /// Carries out a request for a permit, and judges a grant.
    pub fn permit(&mut self, request: &PermitRequest, now: DateTime<Utc>) -> PermitAnswer {
        let quota = request.quota;
        let known = self.limiters.get(&quota);
        let known = known.filter(|_| !self.is_wrong(Judge::Quota));
        let decision = rules::permit(known, request, now);
        if let Write::Put(record) = decision.write {
            self.limiters.insert(quota, record);
        }
        if let PermitAnswer::Granted {
            permits,
            granted_at,
            ..
        } = decision.answer
        {
            // A request that is repeated has the same permits again, or new ones after its window.
            self.permits
                .insert((quota, granted_at, request.id), permits);
            let length = i64::try_from(quota.window().as_millis()).unwrap_or(i64::MAX);
            let window = |at: DateTime<Utc>| at.timestamp_millis() / length;
            let beside = self.permits.iter();
            let is_beside = |&(of, at, _): &_| of == quota && window(at) == window(granted_at);
            let granted: u32 = beside.filter(|it| is_beside(it.0)).map(|it| it.1).sum();
            if quota.window_kind() == WindowKind::Fixed && granted > quota.limit() {
                let text = format!("{granted} permits of {} in a window", quota.limit());
                self.accuse(Judge::Quota, text);
            }
        }
        decision.answer
    }
}

/// Makes a document wrong on purpose before an acquire.
fn damage(record: &mut LockRecord, wrong: Option<Judge>, now: DateTime<Utc>) {
    match wrong {
        Some(Judge::Exclusion) => record.holders.clear(),
        Some(Judge::QueueOfProcesses | Judge::LongestWait) => record.waiters.clear(),
        Some(Judge::Tick) => record.done = LastDone::Nothing,
        Some(Judge::Place) => {
            let long = now + TimeDelta::seconds(60);
            record.waiters.iter_mut().for_each(|it| it.until = long);
        }
        _ => {}
    }
}

/// A document in which a stranger has the key for a while.
fn held(key: &Key, now: DateTime<Utc>) -> LockRecord {
    let (fence, soon) = (Fence::new(1), now + TimeDelta::seconds(1));
    let holder = Holder::exclusive(LeaseId::random(), "somebody".into(), fence, now, soon);
    LockRecord::new(key.clone(), fence, vec![holder], soon)
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

/// What is wrong if a grant passes a process that came before.
fn passes(before: &LockRecord, request: &AcquireRequest, now: DateTime<Utc>) -> Option<String> {
    let Turn::InTurn(turn) = &request.turn else {
        return None;
    };
    let is_new = before.holders.iter().all(|it| it.lease != request.lease);
    if now >= before.expires_at + PLACES_KEEP || !is_new || request.is_reentrant() {
        return None;
    }
    let mode = request.access.mode();
    let mut ahead = before
        .live_places(now)
        .take_while(|it| it.waiter != turn.waiter);
    let passed = ahead.find(|it| {
        let conflicts = mode == Mode::Exclusive || it.mode == Mode::Exclusive;
        it.owner != request.owner && conflicts
    })?;
    Some(format!(
        "{} passes the place of {}",
        request.owner, passed.owner
    ))
}

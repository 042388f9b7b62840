//! What all tasks have and wait for. The judges look at it at each step.

mod look;
mod order;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::{Rc, Weak},
    sync::Arc,
    time::Duration,
};

use leasehold::{Fence, Key, Mode};
use tokio::time::Instant;

use crate::{
    course::Course,
    guard::{Guard, Held},
    judge::Judge,
    server::{Server, State},
    task::CALL,
};

/// After an eviction a lease from memory may be granted for this long, if no request fails: until the next look.
const LOOK: Duration = Duration::from_secs(2);
/// A task that may be granted a key together with one before it hears of it within this time, and that of a request: a
/// lease whose answer was late is renewed before its guard is handed out.
const TOGETHER: Duration = Duration::from_millis(2);
/// A task that is not polled is passed over after this long, and may miss what another one was offered meanwhile, which
/// that one takes within this long.
const PASSED_OVER: Duration = Duration::from_millis(500);
/// What a task waits for.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Its client.
    pub client: usize,
    /// The task.
    pub task: usize,
    /// The keys.
    pub keys: Vec<Key>,
    /// When it began to wait.
    pub began: Instant,
    /// Whether it is served in the order in which the tasks asked.
    pub is_in_turn: bool,
    /// Whether it wants to share the key.
    pub is_shared: bool,
    /// Since when it is polled whenever it is woken. `None` if its task leaves it alone.
    pub polled_since: Option<Instant>,
    /// How often a task of its client, which may be this one, was left alone.
    pub silences: usize,
    /// How often another client had its turn since then.
    pub turns: usize,
    /// Which other client had the last turn.
    pub last_turn: Option<usize>,
    /// Since when tasks of its client that asked later are granted the key before it, and how often.
    pub passed: Option<(Instant, usize)>,
}

/// A task that was passed by one which asked later.
struct Passed {
    wait: u64,
    at: Instant,
    text: String,
}

/// Something because of which a document may keep a lease that no guard stands for.
pub struct Excuse {
    /// The key.
    pub key: Key,
    /// Until when.
    pub until: Instant,
    /// For how long after the last use of the key.
    pub lasts: Duration,
    /// Whether others have to wait for as long.
    pub binds_others: bool,
}

/// What happened, each so often.
pub type Tally = BTreeMap<&'static str, u64>;

#[derive(Default)]
struct Newest {
    exclusive: Option<Fence>,
    any: Option<Fence>,
    /// When a task got a fence that was greater than all before it.
    all: Vec<(Instant, Fence)>,
}

impl Newest {
    fn add(&mut self, fence: Fence) {
        if self.any < Some(fence) {
            self.any = Some(fence);
            self.all.push((Instant::now(), fence));
        }
    }

    /// The greatest that a task had got before this instant.
    fn before(&self, at: Instant) -> Option<Fence> {
        let mut newest_first = self.all.iter().rev();
        newest_first
            .find(|(got, _)| *got < at)
            .map(|(_, fence)| *fence)
    }
}

/// What all tasks have and wait for.
pub struct Ledger {
    server: Arc<Server>,
    course: Course,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    guards: Vec<Weak<Guard>>,
    fences: BTreeMap<Key, Newest>,
    waits: BTreeMap<u64, Wait>,
    next_wait: u64,
    passed: Vec<Passed>,
    readers: BTreeMap<(usize, Key), Instant>,
    /// When a task of a client last began to convert the lease of a key.
    converted: BTreeMap<(usize, Key), Instant>,
    excuses: Vec<Excuse>,
    /// The clients that are closed or killed, or are about to be.
    gone: BTreeSet<usize>,
    /// The owners of those that were killed. What they sent may still arrive.
    killed: BTreeSet<String>,
    done: BTreeSet<(Key, i64)>,
    /// Since when nobody has a key.
    free: BTreeMap<Key, Instant>,
    /// Since when a document keeps a lease that nobody has or waits for.
    kept: BTreeMap<Key, Instant>,
    /// Since when a client has more places for a key than tasks that wait for it.
    surplus: BTreeMap<(usize, Key), Instant>,
    permits: u64,
    tally: Tally,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(server: Arc<Server>, course: Course) -> Rc<Self> {
        Rc::new(Self {
            server,
            course,
            inner: RefCell::default(),
        })
    }

    /// Counts an event.
    pub fn count(&self, what: &'static str) {
        *self.inner.borrow_mut().tally.entry(what).or_default() += 1;
    }

    /// How often each thing happened.
    pub fn tally(&self) -> Tally {
        self.inner.borrow().tally.clone()
    }

    /// A client is closed, or killed, or is about to be. A killed one does not count any more: its memory is gone.
    pub fn is_gone(&self, client: usize) -> bool {
        self.inner.borrow().gone.contains(&client)
    }

    /// The guards that tasks have.
    pub fn guards(&self) -> Vec<Rc<Guard>> {
        let inner = self.inner.borrow();
        inner.guards.iter().filter_map(Weak::upgrade).collect()
    }

    /// Records that a client closes or is killed.
    pub fn goes(&self, client: usize, is_killed: bool) {
        let mut inner = self.inner.borrow_mut();
        inner.gone.insert(client);
        if is_killed {
            inner.killed.insert(self.course.owner_of(client));
            inner
                .guards
                .retain(|it| it.upgrade().is_none_or(|it| it.client != client));
            inner.waits.retain(|_, it| it.client != client);
        }
    }

    /// A task begins to wait.
    pub fn waits(&self, wait: Wait) -> u64 {
        let mut inner = self.inner.borrow_mut();
        inner.next_wait += 1;
        let number = inner.next_wait;
        inner.waits.insert(number, wait);
        number
    }

    /// A task is polled again from now on, or is not polled any more.
    pub fn polls(&self, wait: u64, is_polled: bool) {
        let mut inner = self.inner.borrow_mut();
        let Some(silent) = inner.waits.get_mut(&wait) else {
            return;
        };
        silent.polled_since = is_polled.then(Instant::now);
        let client = silent.client;
        if !is_polled {
            let others = inner.waits.values_mut();
            others
                .filter(|it| it.client == client)
                .for_each(|it| it.silences += 1);
        }
    }

    /// A task converts the lease of a key: what other tasks of its client were offered under it is taken back. So those
    /// that asked later may have come before them.
    pub fn converts(&self, client: usize, key: &Key) {
        let mut inner = self.inner.borrow_mut();
        inner
            .converted
            .insert((client, key.clone()), Instant::now());
        let Inner { passed, waits, .. } = &mut *inner;
        let is_of = |it: &Wait| it.client == client && it.keys.contains(key);
        passed.retain(|it| !waits.get(&it.wait).is_some_and(is_of));
    }

    /// A task does not wait any more.
    pub fn waited(&self, wait: u64) -> Option<Wait> {
        self.inner.borrow_mut().waits.remove(&wait)
    }

    /// Records that a document may keep a lease without a guard.
    pub fn excuse(&self, key: &Key, lasts: Duration, binds_others: bool) {
        self.inner.borrow_mut().excuses.push(Excuse {
            key: key.clone(),
            until: Instant::now() + lasts,
            lasts,
            binds_others,
        });
    }

    /// A task that waited got this.
    pub fn granted(&self, guard: &Rc<Guard>, wait: Option<&Wait>) {
        if self.is_gone(guard.client) {
            return;
        }
        if !guard.is_live() {
            self.count("granted too late");
            return;
        }
        self.count(match (&guard.held, guard.mode()) {
            _ if guard.is_reentrant => "reentrant",
            (Held::Work { .. }, _) => "work",
            (_, Mode::Exclusive) => "exclusive",
            (_, Mode::Shared) => "shared",
            _ => "permits",
        });
        let mut inner = self.inner.borrow_mut();
        inner.free.remove(guard.key());
        inner.guards.push(Rc::downgrade(guard));
        prolong_stays(&mut inner.excuses, guard.key());
        if let Some(wait) = wait {
            let passed = inner.passed_by(wait, guard);
            for it in &passed {
                if let Some(wait) = inner.waits.get_mut(&it.wait) {
                    wait.passed.get_or_insert((it.at, 0)).1 += 1;
                }
            }
            inner.passed.extend(passed);
            if wait.is_in_turn {
                inner.has_a_turn(guard);
            }
        }
        if guard.mode() == Mode::Shared {
            inner
                .readers
                .insert((guard.client, guard.key().clone()), Instant::now());
        }
        drop(inner);
        if let Some(wait) = wait {
            self.came_in_time(guard, wait);
        }
        self.check();
        self.fence_rises(guard, guard.mode() == Mode::Exclusive);
    }

    /// A task resumed this. It may have the fence that the task before it has seen.
    pub fn resumed(&self, guard: &Rc<Guard>) {
        if self.is_gone(guard.client) || !guard.is_live() {
            return;
        }
        self.count("resumed");
        let mut inner = self.inner.borrow_mut();
        inner.free.remove(guard.key());
        inner.guards.push(Rc::downgrade(guard));
        let newest = inner.fences.entry(guard.key().clone()).or_default();
        guard.fence().into_iter().for_each(|it| newest.add(it));
        drop(inner);
        self.check();
    }

    /// An exclusive grant has a greater fence than all before it. Of two that have permits, the task of the second may be
    /// the first to hear of it, so only those count that were known when the task asked. One that shares a key may get its
    /// guard under a lease that its client has already: its fence is greater than those of the exclusive grants before.
    pub fn fence_rises(&self, guard: &Guard, is_exclusive: bool) {
        let Some(fence) = guard.fence() else { return };
        if self.is_excused(&self.server.state(), guard) {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let newest = inner.fences.entry(guard.key().clone()).or_default();
        let before = match guard.mode() {
            _ if is_exclusive => newest.any,
            Mode::Permits => newest.exclusive.max(newest.before(guard.asked)),
            _ => newest.exclusive,
        };
        newest.add(fence);
        if is_exclusive {
            newest.exclusive = newest.exclusive.max(Some(fence));
        }
        if before >= Some(fence) {
            let text = || format!("{} comes after {before:?}", guard.describe());
            self.server.accuse(Judge::Fences, text);
        }
    }

    /// A tick begins to run.
    pub fn runs(&self, key: &Key, tick: i64) {
        if self.inner.borrow().done.contains(&(key.clone(), tick)) {
            self.server
                .accuse(Judge::Tick, || format!("tick {tick} of {key} runs again"));
        }
    }

    /// A tick is done.
    pub fn is_done(&self, key: &Key, tick: i64) {
        self.count("tick done");
        self.inner.borrow_mut().done.insert((key.clone(), tick));
    }

    /// A caller has a permit of a limiter.
    pub fn permitted(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.permits += 1;
        let (had, granted) = (inner.permits, self.server.state().permits_granted);
        drop(inner);
        self.count("permit");
        if had > granted {
            let text =
                || format!("the callers have {had} permits, and the store has granted {granted}");
            self.server.accuse(Judge::Quota, text);
        }
    }

    /// Whether an operator may have ended the lease behind the guard, which has not heard of it.
    fn is_excused(&self, state: &State, guard: &Guard) -> bool {
        if state.evictions > 0 {
            return true;
        }
        state.evicted.get(guard.key()).is_some_and(|&at| {
            let heard = at.max(state.trouble) + LOOK;
            guard.asked <= at
                || (guard.asked < heard && (guard.asked < at + LOOK || state.trouble > at))
        })
    }

    /// Compares all guards that are live with each other and with the documents.
    pub fn check(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.guards.retain(|guard| guard.strong_count() > 0);
        let all: Vec<_> = inner.guards.iter().filter_map(Weak::upgrade).collect();
        let is_there = |it: &&Rc<Guard>| it.is_live() && !inner.gone.contains(&it.client);
        let live: Vec<_> = all.iter().filter(is_there).collect();
        let now = Instant::now();
        let together = TOGETHER + Duration::from_millis(self.course.way) * 2;
        // A task that was granted the key, and could not renew its lease in time, waits again.
        let (most, longest) = if self.course.faults.any() {
            (3, CALL)
        } else {
            (0, Duration::ZERO)
        };
        let is_too_often = |wait: &&Wait| {
            let passed = wait.passed;
            passed.is_some_and(|(since, often)| often > most && now >= since + longest)
        };
        let slept = {
            let Inner { passed, waits, .. } = &mut *inner;
            let due = passed.iter().find(|it| {
                let wait = waits.get(&it.wait).filter(is_too_often);
                let polled = wait.and_then(|wait| wait.polled_since);
                now > it.at + together && polled.is_some_and(|since| since + PASSED_OVER <= it.at)
            });
            let text = due.map(|it| it.text.clone());
            passed.retain(|it| waits.contains_key(&it.wait) && now <= it.at + together);
            text
        };
        drop(inner);
        if let Some(text) = slept {
            self.server.accuse(Judge::QueueOfProcess, || text);
        }
        for (at, one) in live.iter().enumerate() {
            let state = self.server.state();
            if self.is_excused(&state, one) {
                continue;
            }
            let missing = missing(&state, one);
            let beside = live[..at]
                .iter()
                .find(|other| !one.is_compatible(other) && !self.is_excused(&state, other));
            drop(state);
            if let Some(other) = beside {
                let text = || format!("{} and {}", other.describe(), one.describe());
                self.server.accuse(Judge::Exclusion, text);
            }
            if let Some(text) = missing {
                self.server.accuse(Judge::InDocument, || text);
            }
        }
    }
}

/// A task that uses a key which stays prolongs the stay.
fn prolong_stays(excuses: &mut [Excuse], key: &Key) {
    let stays = |it: &&mut Excuse| it.key == *key && !it.binds_others;
    for excuse in excuses.iter_mut().filter(stays) {
        excuse.until = excuse.until.max(Instant::now() + excuse.lasts);
    }
}

/// What is wrong if the guard is not in the document for as long as it counts.
fn missing(state: &State, guard: &Guard) -> Option<String> {
    let now = state.now();
    let left = guard.remaining();
    let holders = state.records.get(guard.key()).map(|it| &it.holders);
    let covers = holders.into_iter().flatten().any(|it| {
        let lasts = (it.expires_at - now).to_std().unwrap_or_default();
        let is_exclusive = it.mode == Mode::Exclusive || guard.mode() != Mode::Exclusive;
        *it.owner == *guard.owner() && is_exclusive && lasts >= left
    });
    (!covers).then(|| {
        format!(
            "{} is not in the document for as long: {holders:#?}",
            guard.describe()
        )
    })
}

//! What all tasks have and wait for. The judges look at it at each step.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::{Rc, Weak},
    sync::Arc,
    time::Duration,
};

use leasehold::{Fence, Holder, Key, Mode};
use tokio::time::Instant;

use crate::{
    course::Course,
    guard::{Guard, Held},
    judge::Judge,
    server::{Server, State, describe},
};

/// After an eviction a lease from memory may be granted for this long, if no request fails: until the next look.
const LOOK: Duration = Duration::from_secs(2);
/// A task that may be granted a key together with one before it hears of it within this time.
const TOGETHER: Duration = Duration::from_millis(2);
/// After a reader was granted the key, others of its process may come before a writer, as docs/guarantees.md says.
const READERS: Duration = Duration::from_millis(200);

/// A place that is given up by a request which is lost counts for so long.
const LONGEST_PLACE: Duration = Duration::from_secs(4);

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
    /// How often another client had its turn since then.
    pub turns: usize,
    /// Which other client had the last turn.
    pub last_turn: Option<usize>,
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
    /// Whether others have to wait for as long.
    pub binds_others: bool,
}

/// What happened, each so often.
pub type Tally = BTreeMap<&'static str, u64>;

#[derive(Default)]
struct Newest {
    exclusive: Option<Fence>,
    any: Option<Fence>,
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
    /// Since when nobody of a client waits for a key.
    not_waiting: BTreeMap<(usize, Key), Instant>,
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
        if let Some(wait) = self.inner.borrow_mut().waits.get_mut(&wait) {
            wait.polled_since = is_polled.then(Instant::now);
        }
    }

    /// A task does not wait any more.
    pub fn waited(&self, wait: u64) -> Option<Wait> {
        let mut inner = self.inner.borrow_mut();
        let wait = inner.waits.remove(&wait)?;
        for key in &wait.keys {
            inner
                .not_waiting
                .insert((wait.client, key.clone()), Instant::now());
        }
        Some(wait)
    }

    /// Records that a document may keep a lease without a guard.
    pub fn excuse(&self, key: &Key, lasts: Duration, binds_others: bool) {
        let until = Instant::now() + lasts;
        self.inner.borrow_mut().excuses.push(Excuse {
            key: key.clone(),
            until,
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
        if let Some(wait) = wait {
            let passed = inner.passed_by(wait, guard);
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

    /// While a task waits in turn, each other client has the key once for each time that the task's client has it, and
    /// it has it for one of its tasks at least.
    fn came_in_time(&self, guard: &Guard, wait: &Wait) {
        let it = &self.course;
        let is_calm = !(it.faults.any() || it.kills || it.evicts || it.shares_owner);
        let is_polled = !it.leaves_futures && wait.polled_since <= Some(wait.began);
        if !(is_calm && is_polled && wait.is_in_turn) {
            return;
        }
        self.count("waited in turn");
        let most = (it.clients - 1) * (it.tasks + 2);
        if wait.turns > most {
            let text = || {
                let (guard, turns) = (guard.describe(), wait.turns);
                format!("{guard} comes after {turns} turns of others, more than {most}")
            };
            self.server.accuse(Judge::QueueOfProcesses, text);
        }
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
        newest.any = newest.any.max(guard.fence());
        drop(inner);
        self.check();
    }

    /// An exclusive grant has a greater fence than all before it. Of two that share a key, the task of the second may be
    /// the first to hear of it.
    pub fn fence_rises(&self, guard: &Guard, is_exclusive: bool) {
        let Some(fence) = guard.fence() else { return };
        if self.is_excused(&self.server.state(), guard) {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        let newest = inner.fences.entry(guard.key().clone()).or_default();
        let before = if is_exclusive {
            newest.any
        } else {
            newest.exclusive
        };
        newest.any = newest.any.max(Some(fence));
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

    /// A caller has so many permits of a limiter.
    pub fn permitted(&self, permits: u32) {
        let mut inner = self.inner.borrow_mut();
        inner.permits += u64::from(permits);
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
        let slept = {
            let Inner { passed, waits, .. } = &mut *inner;
            let due = passed.iter().find(|it| {
                let wait = waits.get(&it.wait);
                let polled = wait.and_then(|wait| wait.polled_since);
                now > it.at + TOGETHER && polled.is_some_and(|since| since <= it.at)
            });
            let text = due.map(|it| it.text.clone());
            passed.retain(|it| waits.contains_key(&it.wait) && now <= it.at + TOGETHER);
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

    /// Looks for keys that nobody has although somebody waits, for leases that nobody has, and for places of clients
    /// that do not wait. Called now and then.
    pub fn look(&self) {
        let now = Instant::now();
        let state = self.server.state();
        let (calm, server_now) = (state.trouble, state.now());
        let bounds = Bounds::of(&self.course);
        let mut inner = self.inner.borrow_mut();
        let Inner {
            guards,
            waits,
            excuses,
            free,
            kept,
            not_waiting,
            gone,
            killed,
            ..
        } = &mut *inner;
        excuses.retain(|it| it.until > now);
        let mut found = None;
        for key in self
            .course
            .key_names()
            .iter()
            .filter_map(|it| Key::new(it).ok())
        {
            let has_guard = guards
                .iter()
                .filter_map(Weak::upgrade)
                .any(|it| *it.key() == key);
            let record = state.records.get(&key);
            let of_key = |it: &&Excuse| it.key == key;
            let is_killed = record.is_some_and(|it| {
                let places = it.live_places(server_now).map(|it| &*it.owner);
                let mut owners = it
                    .live_holders(server_now)
                    .map(|it| &*it.owner)
                    .chain(places);
                owners.any(|it| killed.contains(it))
            });
            let is_held = record.is_some_and(|it| it.live_holders(server_now).next().is_some());
            let others_wait = excuses.iter().filter(of_key).any(|it| it.binds_others);
            let binds = is_killed || (is_held && others_wait);
            let is_excused = excuses.iter().any(|it| it.key == key);
            let waiting = || waits.values().filter(|it| it.keys.contains(&key));
            // A task that is not polled may have it without knowing, and one that waits for another key too.
            let may_have = |it: &Wait| {
                let is_holder = |holder: &Holder| *holder.owner == *self.course.owner_of(it.client);
                let holds = record.is_some_and(|it| it.live_holders(server_now).any(is_holder));
                // A set takes its keys one after the other.
                holds && (it.polled_since.is_none() || it.keys.last() != Some(&key))
            };
            if has_guard || binds || waiting().any(may_have) {
                free.remove(&key);
            } else {
                free.entry(key.clone()).or_insert(now);
            }
            if let Some(&since) = free.get(&key) {
                let polled =
                    waiting().filter(|it| it.keys.len() == 1 && !gone.contains(&it.client));
                // A key that stays is not given up for those who take no place.
                let polled = polled.filter(|it| it.is_in_turn || !is_excused);
                let longest = polled
                    .filter_map(|it| Some(it.began.max(it.polled_since?)))
                    .min();
                if let Some(began) = longest
                    && now > since.max(began).max(calm) + bounds.sleeps
                {
                    let text = format!(
                        "nobody has {key}, and a task has waited for {:?}: {}",
                        now - began,
                        record.map_or_else(String::new, |it| describe(it, server_now))
                    );
                    found = found.or(Some((Judge::Sleeps, text)));
                }
            }
            let holder = record.and_then(|it| it.live_holders(server_now).next());
            match holder.filter(|_| free.contains_key(&key) && waiting().next().is_none()) {
                Some(holder) if !is_excused => {
                    let since = *kept.entry(key.clone()).or_insert(now);
                    if now > since.max(calm) + bounds.kept {
                        let text = format!("{key} is kept for nobody: {holder:?}");
                        found = found.or(Some((Judge::Kept, text)));
                    }
                }
                _ => drop(kept.remove(&key)),
            }
            for place in record.into_iter().flat_map(|it| it.live_places(server_now)) {
                let Some(&client) = state.waiters.get(&place.waiter) else {
                    continue;
                };
                if gone.contains(&client) {
                    continue;
                }
                let id = (client, key.clone());
                let newer = state.places.get(&id).filter(|it| it.0 != place.waiter);
                let since = match newer {
                    Some((_, since)) => Some(since),
                    None if waiting().any(|it| it.client == client) => None,
                    None => not_waiting.get(&id),
                };
                if since
                    .is_some_and(|&since| now > since + bounds.place && now > calm + LONGEST_PLACE)
                {
                    let text = format!("nobody of client {client} waits in {place:?}");
                    found = found.or(Some((Judge::Place, text)));
                }
            }
        }
        drop((inner, state));
        if let Some((judge, text)) = found {
            self.server.accuse(judge, || text);
        }
    }
}

/// How long something may last that should end soon.
struct Bounds {
    sleeps: Duration,
    kept: Duration,
    place: Duration,
}

impl Bounds {
    fn of(course: &Course) -> Self {
        let ways = Duration::from_millis(course.way) * 6;
        let failed = if course.faults.any() || course.kills {
            Duration::from_secs(12)
        } else {
            Duration::ZERO
        };
        Self {
            sleeps: Duration::from_secs(4) + ways + failed,
            kept: Duration::from_secs(4) + ways + failed,
            place: Duration::from_millis(200) + ways,
        }
    }
}

impl Inner {
    /// Counts a turn of a client for the tasks of the others.
    fn has_a_turn(&mut self, guard: &Guard) {
        let keys = std::slice::from_ref(guard.key());
        for wait in self.waits.values_mut().filter(|it| it.keys == keys) {
            if wait.client == guard.client {
                wait.last_turn = None;
            } else if wait.last_turn != Some(guard.client) {
                (wait.turns, wait.last_turn) = (wait.turns + 1, Some(guard.client));
            }
        }
    }

    /// The tasks that asked before this one, and wait still.
    fn passed_by(&self, wait: &Wait, guard: &Guard) -> Vec<Passed> {
        let now = Instant::now();
        let readers = self.readers.get(&(wait.client, guard.key().clone()));
        let follows = readers.is_some_and(|&at| now < at + READERS);
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

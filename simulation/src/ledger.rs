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

use leasehold::{Fence, Key, Mode, Ticket};
use tokio::{sync::Notify, time::Instant};

use crate::{
    guard::{Guard, Terms},
    judge::Judge,
    server::{Server, State},
};

/// After an eviction a lease from memory may be granted for this long, if no request fails: until the next look.
const LOOK: Duration = Duration::from_secs(2);

/// What a task waits for.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Its client.
    pub client: usize,
    /// The keys.
    pub keys: Vec<Key>,
    /// When it began to wait.
    pub began: Instant,
    /// Whether it is served in the order in which the tasks asked.
    pub is_in_turn: bool,
    /// Whether it wants to share the key.
    pub is_shared: bool,
    /// For how long a lease that it is granted stays with its client without a guard; zero if it does not.
    pub idle: Duration,
    /// Since when it is polled whenever it is woken. `None` if its task leaves it alone.
    pub polled_since: Option<Instant>,
    /// How often a task of its client, which may be this one, was left alone.
    pub silences: usize,
    /// How often another client had its turn since then.
    pub turns: usize,
    /// Which other client had the last turn.
    pub last_turn: Option<usize>,
    /// When tasks of its client that asked later were granted the key before it.
    pub passed: Vec<Instant>,
}

/// Something because of which a document may keep a lease that no guard stands for.
struct Excuse {
    until: Instant,
    /// For how long after the last use of the key.
    lasts: Duration,
    /// Whether others have to wait for as long.
    binds_others: bool,
}

/// What all tasks have and wait for.
pub struct Ledger {
    /// The server.
    pub server: Arc<Server>,
    inner: RefCell<Inner>,
    /// The tickets that tasks leave for each other.
    pub tickets: RefCell<Vec<(Ticket, Terms)>>,
    /// Wakes a task that may take one.
    pub ticket_came: Notify,
}

#[derive(Default)]
struct Inner {
    guards: Vec<Weak<Guard>>,
    waits: BTreeMap<u64, Wait>,
    next_wait: u64,
    keys: BTreeMap<Key, OfKey>,
    of_clients: BTreeMap<(usize, Key), OfClient>,
    /// The clients that are closed or killed, or are about to be, and whether they were killed: what those sent may
    /// still arrive.
    gone: BTreeMap<usize, bool>,
    done: BTreeSet<(Key, i64)>,
    permits: u32,
}

/// What is known of a key.
#[derive(Default)]
struct OfKey {
    /// When tasks got which fences, and whether they excluded all others.
    fences: Vec<(Instant, Fence, bool)>,
    excuses: Vec<Excuse>,
    /// When the last task gave the key up. `None` while a task has it.
    free: Option<Instant>,
    /// When the document began to keep a lease that no task has, while no task waits. `None` if it keeps none.
    kept: Option<Instant>,
}

/// What is known of a client and a key.
#[derive(Default)]
struct OfClient {
    /// When one of its tasks last got the key together with others.
    read: Option<Instant>,
    /// When one of its tasks last took back what others were offered.
    taken_back: Option<Instant>,
    /// Since when it has more places for the key than tasks that wait for it.
    surplus: Option<Instant>,
}

impl OfKey {
    /// A task that uses a key which stays prolongs the stay.
    fn prolong_stays(&mut self) {
        for stay in self.excuses.iter_mut().filter(|it| !it.binds_others) {
            stay.until = stay.until.max(Instant::now() + stay.lasts);
        }
    }
}

impl Inner {
    fn of_key(&mut self, key: &Key) -> &mut OfKey {
        self.keys.entry(key.clone()).or_default()
    }

    fn of_client(&mut self, client: usize, key: &Key) -> &mut OfClient {
        self.of_clients.entry((client, key.clone())).or_default()
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new(server: Arc<Server>) -> Rc<Self> {
        Rc::new(Self {
            server,
            inner: RefCell::default(),
            tickets: RefCell::default(),
            ticket_came: Notify::new(),
        })
    }

    /// A client is closed, or killed, or is about to be. A killed one does not count any more: its memory is gone.
    pub fn is_gone(&self, client: usize) -> bool {
        self.inner.borrow().gone.contains_key(&client)
    }

    /// The guards that tasks have.
    pub fn guards(&self) -> Vec<Rc<Guard>> {
        let mut inner = self.inner.borrow_mut();
        inner.guards.retain(|guard| guard.strong_count() > 0);
        inner.guards.iter().filter_map(Weak::upgrade).collect()
    }

    /// Records that a client closes or is killed.
    pub fn goes(&self, client: usize, is_killed: bool) {
        let what = if is_killed { "is killed" } else { "closes" };
        let mut state = self.server.state();
        state.say(format_args!("client {client}"), || what.to_owned());
        let mut inner = self.inner.borrow_mut();
        inner.gone.insert(client, is_killed);
        if is_killed {
            let is_other = |it: Rc<Guard>| it.client != client;
            inner.guards.retain(|it| it.upgrade().is_none_or(is_other));
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
        let (client, keys) = (silent.client, silent.keys.clone());
        let is_beside =
            |it: &&mut Wait| it.client == client && it.keys.iter().any(|key| keys.contains(key));
        let beside = inner.waits.values_mut().filter(is_beside);
        beside.for_each(|it| it.silences += usize::from(!is_polled));
    }

    /// A task converts the lease of a key, or gives it away: what other tasks of its client were offered under it is taken
    /// back. So those that asked later may have come before them a moment ago.
    pub fn takes_back(&self, client: usize, key: &Key) {
        let mut inner = self.inner.borrow_mut();
        let now = Instant::now();
        inner.of_client(client, key).taken_back = Some(now);
        let is_of = |it: &&mut Wait| it.client == client && it.keys.contains(key);
        let others = inner.waits.values_mut().filter(is_of);
        others.for_each(|it| it.passed.retain(|&at| at + order::SOON < now));
    }

    /// A task does not wait any more.
    pub fn waited(&self, wait: u64) -> Option<Wait> {
        self.inner.borrow_mut().waits.remove(&wait)
    }

    /// Records that a document may keep a lease without a guard.
    pub fn excuse(&self, key: &Key, lasts: Duration, binds_others: bool) {
        let until = Instant::now() + lasts;
        self.inner.borrow_mut().of_key(key).excuses.push(Excuse {
            until,
            lasts,
            binds_others,
        });
    }

    /// A task got this, perhaps after a wait.
    pub fn granted(&self, guard: &Rc<Guard>, wait: Option<&Wait>) {
        let what = match (&guard.lease, guard.mode()) {
            _ if guard.terms.get().is_reentrant => "reentrant",
            (None, _) => "work",
            (_, Mode::Exclusive) => "exclusive",
            (_, Mode::Shared) => "shared",
            _ => "permits",
        };
        if !self.has(guard, what) {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        if let Some(wait) = wait.filter(|it| it.is_in_turn) {
            inner.passes_others(wait, guard);
            inner.has_a_turn(guard);
            self.came_in_time(guard, wait);
        }
        if guard.mode() == Mode::Shared {
            inner.of_client(guard.client, &guard.key).read = Some(Instant::now());
        }
        drop(inner);
        self.check();
        self.fence_rises(guard);
    }

    /// A task has this from now on. Returns whether it counts: the client is there, and the task did not come too late.
    pub fn has(&self, guard: &Rc<Guard>, what: &str) -> bool {
        let counts = !self.is_gone(guard.client) && guard.is_live();
        if counts {
            self.server.state().count(what);
            let mut inner = self.inner.borrow_mut();
            inner.guards.push(Rc::downgrade(guard));
            let of_key = inner.of_key(&guard.key);
            of_key.free = None;
            of_key.prolong_stays();
        }
        counts
    }

    /// An exclusive grant has a greater fence than all before it. Of two that have permits, the task of the second may be
    /// the first to hear of it, so only those count that were known when the task asked. One that shares a key may get its
    /// guard under a lease that its client has already: its fence is greater than those of the exclusive grants before.
    pub fn fence_rises(&self, guard: &Guard) {
        let mut state = self.server.state();
        let Some(fence) = guard.fence().filter(|_| !is_excused(&state, guard)) else {
            return;
        };
        let mut inner = self.inner.borrow_mut();
        let fences = &mut inner.of_key(&guard.key).fences;
        let mode = guard.mode();
        let comes_before = |&&(at, _, is_exclusive): &&(Instant, Fence, bool)| {
            let was_known = mode == Mode::Permits && at < guard.asked;
            is_exclusive || mode == Mode::Exclusive || was_known
        };
        let before = fences.iter().filter(comes_before).map(|it| it.1).max();
        fences.push((Instant::now(), fence, mode == Mode::Exclusive));
        if before >= Some(fence) {
            state.accuse(Judge::Fences, format!("{guard} comes after {before:?}"));
        }
    }

    /// A tick begins to run, for which its task asked at this time.
    pub fn runs(&self, key: &Key, tick: i64, asked: Instant) {
        let mut state = self.server.state();
        let is_done = self.inner.borrow().done.contains(&(key.clone(), tick));
        if is_done && !may_be_ended(&state, key, asked) {
            state.accuse(Judge::Tick, format!("tick {tick} of {key} runs again"));
        }
    }

    /// A tick is done.
    pub fn is_done(&self, key: &Key, tick: i64) {
        self.server.state().count("tick done");
        self.inner.borrow_mut().done.insert((key.clone(), tick));
    }

    /// A caller has a permit of a limiter.
    pub fn permitted(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.permits += 1;
        let mut state = self.server.state();
        state.count("permit");
        let (had, granted) = (inner.permits, state.permits.values().sum());
        if had > granted {
            let text = format!("callers have {had} permits, and the store has granted {granted}");
            state.accuse(Judge::Quota, text);
        }
    }

    /// Compares all guards that are live with each other and with the documents.
    pub fn check(&self) {
        self.was_passed_over();
        let mut live = self.guards();
        live.retain(|it| it.is_live() && !self.is_gone(it.client));
        let mut state = self.server.state();
        live.retain(|it| !is_excused(&state, it));
        for (at, one) in live.iter().enumerate() {
            if let Some(other) = live[..at].iter().find(|it| !one.is_compatible(it)) {
                state.accuse(Judge::Exclusion, format!("{other} and {one}"));
            }
            if !is_in_document(&state, one) {
                let text = format!("{one} is not in {:?}", state.records.get(&one.key));
                state.accuse(Judge::InDocument, text);
            }
        }
    }
}

/// Whether an operator may have ended the lease behind the guard, which has not heard of it.
fn is_excused(state: &State, guard: &Guard) -> bool {
    may_be_ended(state, &guard.key, guard.asked)
}

/// Whether an operator may have ended a lease of this key that a task asked for at this time, and that has not heard of it.
fn may_be_ended(state: &State, key: &Key, asked: Instant) -> bool {
    // Until then it may ask, and be granted the lease from memory.
    let heard = |&at: &Instant| at.max(state.trouble) + LOOK;
    let evicted = state.evicted.get(key).map(heard);
    state.evictions > 0 || evicted.is_some_and(|heard| asked < heard)
}

/// Whether the document has the lease of the guard for as long as the guard counts.
fn is_in_document(state: &State, guard: &Guard) -> bool {
    let now = state.now();
    let holders = state.records.get(&guard.key).map(|it| &it.holders);
    holders.into_iter().flatten().any(|it| {
        let lasts = (it.expires_at - now).to_std().unwrap_or_default();
        let is_exclusive = it.mode == Mode::Exclusive || guard.mode() != Mode::Exclusive;
        *it.owner == *guard.owner && is_exclusive && lasts >= guard.remaining()
    })
}

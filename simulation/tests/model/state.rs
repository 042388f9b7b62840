//! A state of the model: the document of the key, the clients, and the requests that are late.
//!
//! Now is always the same time of the server's clock, and the times of the document move instead. All times are whole
//! ticks from now on, and fences are numbered in their order. What differs only by an age that makes no difference, or
//! by the names of clients that are alike, is the same state. So there are finitely many, although nothing bounds the
//! time or the number of requests. (In the trace of a counterexample the names may change from one state to the next.)

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::LazyLock,
    time::Duration,
};

use chrono::{DateTime, Utc};
use leasehold::{
    Fence, Key, Mode,
    jobs::Tick,
    rules::turn::MAX_BIND_TIME,
    store::{LastDone, LeaseId, LockRecord},
};

use super::steps::Setting;

pub const CLIENTS: usize = 3;
/// A free key is kept for the queue for a tick.
pub const TICK: Duration = MAX_BIND_TIME;
pub const TTL: i64 = 2;
/// How long a place counts.
pub const PLACE: i64 = 2;
/// How far the server's clock steps forward, or back again. It is also what a client subtracts from the life of its
/// lease. (A client whose own clock is slow by the margin has the same difference to the server's.)
pub const MARGIN: i64 = 1;
/// From this age on a request gives its client nothing to believe in. A late request may have the time of the server's
/// clock at which it was sent, but no earlier one than this.
pub const AGE: i64 = TTL - MARGIN;

pub static KEY: LazyLock<Key> = LazyLock::new(|| Key::new("key").unwrap());
/// Each client has three of them: its two leases, and its place.
static IDS: LazyLock<Vec<LeaseId>> = LazyLock::new(|| {
    let ids = (0..12).map(|number| format!("00000000-0000-0000-0000-{number:012}"));
    ids.map(|id| LeaseId::parse(&id).unwrap()).collect()
});

/// One of the two leases of a client.
pub fn lease(client: usize, number: usize) -> LeaseId {
    IDS[3 * client + number]
}

pub fn waiter(client: usize) -> LeaseId {
    IDS[3 * client + 2]
}

/// A lease of no client.
pub fn strange() -> LeaseId {
    lease(CLIENTS, 0)
}

pub fn whose(id: LeaseId) -> usize {
    IDS.iter().position(|it| *it == id).unwrap() / 3
}

/// A time of the server's clock. Now is 0.
pub fn at(ticks: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_000_000_000 + ticks * TICK.as_secs() as i64, 0).unwrap()
}

/// The clock has passed the fences of all earlier times, unless a request has the time of its sending.
fn fence(number: usize) -> Fence {
    Fence::new(at(0).timestamp_millis() * 1_024 - 100 + number as i64)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    Acquire,
    Renew,
    /// Of the lease with this fence.
    Upgrade(Fence),
    Downgrade(Fence),
    Release,
    /// A release of a lease whose tick is done.
    Done,
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub lease: LeaseId,
    pub ask: Ask,
    /// How long ago it was sent, if that matters.
    pub age: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Which lease it has asked for, and what it believes to hold.
    pub lease: Option<(LeaseId, Option<Held>)>,
    /// Whether it was refused in turn, and has neither been granted the key nor left since.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub mode: Mode,
    /// How long it goes on believing.
    pub left: i64,
    /// Only if clients convert their leases.
    pub fence: Option<Fence>,
    /// Whether a downgrade was sent and not answered.
    pub is_unclear: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub document: Option<LockRecord>,
    pub clients: [Client; CLIENTS],
    pub late: Option<Request>,
    pub is_ahead: bool,
    /// The newest fence of all grants, upgrades and evictions.
    pub newest: Option<Fence>,
    /// The newest tick that was done, and its lease.
    pub done: Option<(Tick, LeaseId)>,
    /// The property that was violated.
    pub violated: Option<&'static str>,
}

/// What a place is for is known from its client. The other fields of the document that are not here do not matter to
/// any rule of the model, for example when a lease was granted. They may differ in states that are the same.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let document = self.document.as_ref().map(|it| {
            let holders = it.holders.iter();
            let holders = holders.map(|it| {
                let who = (it.lease, &it.owner, it.mode, it.permits);
                (who, it.fence, it.expires_at)
            });
            let places = it.waiters.iter().map(|it| (it.waiter, it.until));
            let done = match &it.done {
                LastDone::Tick(done) => Some((done.tick, done.lease)),
                _ => None,
            };
            let lists = (holders.collect::<Vec<_>>(), places.collect::<Vec<_>>());
            (it.fence, it.expires_at, lists, done)
        });
        (document, self.clients, self.late, self.is_ahead).hash(hasher);
        (self.newest, self.done, self.violated).hash(hasher);
    }
}

impl State {
    /// A lease for a new request. `None` if the document has another lease of the client.
    pub fn unused(&self, client: usize) -> Option<LeaseId> {
        let mut holders = self.document.iter().flat_map(|it| &it.holders);
        let is_holder = holders.any(|it| whose(it.lease) == client);
        let is_unused = |id: &LeaseId| self.late.is_none_or(|it| it.lease != *id);
        [lease(client, 0), lease(client, 1)]
            .into_iter()
            .find(|it| !is_holder && is_unused(it))
    }

    /// The server's clock goes on.
    pub fn clock(&mut self, ticks: i64) {
        let time = at(ticks) - at(0);
        if let Some(it) = &mut self.document {
            it.expires_at -= time;
            it.holders.iter_mut().for_each(|it| it.expires_at -= time);
            it.waiters.iter_mut().for_each(|it| it.until -= time);
        }
    }

    /// One of the states that are the same.
    pub fn normalised(mut self, setting: &Setting) -> Self {
        // No late request and no step of the clock finds live what ended then.
        let long_ago = -MARGIN - if setting.odd_clock { AGE } else { 0 };
        if let Some(it) = &mut self.document {
            it.holders.retain(|it| it.expires_at > at(long_ago));
            it.waiters.retain(|it| it.until > at(long_ago));
            // Since when the key is free matters to those that wait.
            let is_empty = it.holders.is_empty() && it.waiters.is_empty();
            let before = at(long_ago - 1);
            it.expires_at = if is_empty {
                before
            } else {
                it.expires_at.max(before)
            };
            for (client, of) in self.clients.iter_mut().enumerate() {
                of.waits &= it.waiters.iter().any(|it| it.waiter == waiter(client));
            }
        }
        let mut fences: Vec<_> = self.fences().map(|it| *it).collect();
        fences.sort_unstable();
        fences.dedup();
        self.fences()
            .for_each(|it| *it = fence(fences.binary_search(it).unwrap()));
        // The lease of a done tick matters to late requests only.
        let late = self.late.map(|it| it.lease);
        self.done()
            .filter(|it| Some(**it) != late)
            .for_each(|it| *it = strange());
        self.rename(0..setting.alike);
        self.rename(setting.alike..CLIENTS);
        self
    }

    fn fences(&mut self) -> impl Iterator<Item = &mut Fence> {
        let document = self.document.iter_mut().flat_map(|it| {
            let holders = it.holders.iter_mut().map(|it| &mut it.fence);
            holders.chain([&mut it.fence])
        });
        let clients = self.clients.iter_mut().flat_map(|it| &mut it.lease);
        let held = clients.flat_map(|it| &mut it.1);
        let late = self.late.iter_mut().filter_map(|it| match &mut it.ask {
            Ask::Upgrade(fence) | Ask::Downgrade(fence) => Some(fence),
            _ => None,
        });
        let all = document.chain(held.flat_map(|it| &mut it.fence));
        all.chain(late).chain(&mut self.newest)
    }

    /// The leases of done ticks.
    fn done(&mut self) -> impl Iterator<Item = &mut LeaseId> {
        let written = self.document.iter_mut().map(|it| &mut it.done);
        let written = written.filter_map(|it| match it {
            LastDone::Tick(done) => Some(&mut done.lease),
            _ => None,
        });
        written.chain(self.done.iter_mut().map(|it| &mut it.1))
    }

    /// All other leases, and the places.
    fn ids(&mut self) -> impl Iterator<Item = &mut LeaseId> {
        let document = self.document.iter_mut().flat_map(|it| {
            let holders = it.holders.iter_mut().map(|it| &mut it.lease);
            holders.chain(it.waiters.iter_mut().map(|it| &mut it.waiter))
        });
        let clients = self.clients.iter_mut().flat_map(|it| &mut it.lease);
        let late = self.late.iter_mut().map(|it| &mut it.lease);
        document.chain(clients.map(|it| &mut it.0)).chain(late)
    }

    /// Names clients that are alike, and their leases, by what is known of them.
    fn rename(&mut self, alike: Range<usize>) {
        let mut sorted: Vec<_> = alike.clone().map(|it| self.description(it)).collect();
        sorted.sort_unstable();
        let clients = self.clients;
        for (client, (_, first)) in alike.clone().zip(&sorted) {
            self.clients[client] = clients[whose(*first)];
        }
        let rename = |id: &mut LeaseId| {
            let mut known = alike.clone().zip(&sorted);
            if let Some((client, (_, first))) = known.find(|it| whose(it.1.1) == whose(*id)) {
                *id = if *id == waiter(whose(*id)) {
                    waiter(client)
                } else {
                    lease(client, usize::from(id != first))
                };
            }
        };
        self.ids().for_each(rename);
        self.done().for_each(rename);
    }

    /// What is known of a client, without names, and the lease that is to be its first one.
    fn description(&self, client: usize) -> (u64, LeaseId) {
        let known = self.clients[client];
        let of = |first: LeaseId, second: LeaseId| {
            let late = self.late.filter(|it| whose(it.lease) == client);
            let late = late.map(|it| (it.ask, it.age, it.lease == first));
            let held = [first, second].map(|id| {
                let mut holders = self.document.iter().flat_map(|it| &it.holders);
                holders.position(|it| it.lease == id)
            });
            let mut places = self.document.iter().flat_map(|it| &it.waiters);
            let place = places.position(|it| it.waiter == waiter(client));
            let done = self.done.is_some_and(|it| it.1 == first);
            let lease = known.lease.map(|it| it.1);
            let mut hasher = DefaultHasher::new();
            (lease, known.waits, late, held, place, done).hash(&mut hasher);
            (hasher.finish(), first)
        };
        let (one, other) = (lease(client, 0), lease(client, 1));
        match known.lease {
            Some((it, _)) if it == one => of(one, other),
            Some(_) => of(other, one),
            None => of(one, other).min(of(other, one)),
        }
    }
}

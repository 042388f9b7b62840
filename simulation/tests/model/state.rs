//! A state of the model: the document of the key, the clients, and the requests that are late.
//!
//! All times are in ticks from now on the server's clock, and fences have numbers in their order. What differs only by
//! an age that makes no difference, or by the names of clients that are alike, is the same state. So there are finitely
//! many, although nothing bounds the time or the number of requests. (In the trace of a counterexample the names may
//! change from one state to the next.)

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Fence, Holder, Key, Mode, Place,
    jobs::{Done, Tick},
    rules::turn::MAX_BIND_TIME,
    store::{AcquireRequest, LastDone, LeaseId, LockRecord},
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

/// A lease: its client, and which of the two leases of that client it is.
pub type Name = (usize, usize);
/// A lease of no client.
pub const STRANGE: Name = (CLIENTS, 0);

pub static KEY: LazyLock<Key> = LazyLock::new(|| Key::new("key").unwrap());
static IDS: LazyLock<Vec<(LeaseId, LeaseId)>> = LazyLock::new(|| {
    let ids = (0..9).map(|number| format!("00000000-0000-0000-0000-00000000000{number}"));
    ids.map(|id| (LeaseId::parse(&id).unwrap(), LeaseId::parse(&id).unwrap()))
        .collect()
});

pub fn lease((client, id): Name) -> LeaseId {
    IDS[2 * client + id].0
}

pub fn waiter(client: usize) -> LeaseId {
    IDS[client].1
}

fn name(lease: LeaseId) -> Name {
    let number = IDS.iter().position(|it| it.0 == lease).unwrap();
    (number / 2, number % 2)
}

fn span(ticks: i64) -> TimeDelta {
    TimeDelta::milliseconds(ticks * TICK.as_millis() as i64)
}

pub fn at(ticks: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_000_000_000, 0).unwrap() + span(ticks)
}

fn ticks(time: DateTime<Utc>) -> i64 {
    (time - at(0)).num_milliseconds() / span(1).num_milliseconds()
}

/// The clock has passed the fences of all earlier times, unless a request has the time of its sending.
pub fn fence(number: i64) -> Fence {
    Fence::new(at(0).timestamp_millis() * 1_024 - 100 + number)
}

pub fn number(fence: Fence) -> i64 {
    fence.get() + 100 - at(0).timestamp_millis() * 1_024
}

/// The document. The owner of a lease, and what a place is for, are known from its client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Document {
    pub fence: i64,
    pub expires: i64,
    pub holders: Vec<Entry>,
    /// The client, and until when its place counts.
    pub places: Vec<(usize, i64)>,
    pub done: Option<(i64, Name)>,
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub name: Name,
    pub mode: Mode,
    pub permits: i64,
    pub fence: i64,
    pub expires: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    Acquire,
    Renew,
    /// Of the lease with this fence.
    Upgrade(i64),
    Downgrade(i64),
    Release,
    /// A release of a lease whose tick is done.
    Done,
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub name: Name,
    pub ask: Ask,
    /// How long ago it was sent, if that matters.
    pub age: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Which lease it has asked for, and what it believes to hold.
    pub lease: Option<(usize, Option<Held>)>,
    /// Whether it was refused in turn, and has neither been granted the key nor left since.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub mode: Mode,
    /// How long it goes on believing.
    pub left: i64,
    /// Only if clients convert their leases.
    pub fence: Option<i64>,
    /// Whether a downgrade was sent and not answered.
    pub is_unclear: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub document: Option<Document>,
    pub clients: [Client; CLIENTS],
    pub late: Vec<Request>,
    pub is_ahead: bool,
    /// The newest fence of all grants, upgrades and evictions.
    pub newest: Option<i64>,
    /// The newest tick that was done, and its lease.
    pub done: Option<(i64, Name)>,
    /// The property that was violated.
    pub violated: Option<&'static str>,
}

impl Document {
    pub fn read(record: &LockRecord) -> Self {
        let holder = |it: &Holder| Entry {
            name: name(it.lease),
            mode: it.mode,
            permits: it.permits,
            fence: number(it.fence),
            expires: ticks(it.expires_at),
        };
        let client = |it: &Place| IDS.iter().position(|id| id.1 == it.waiter).unwrap();
        let done = match &record.done {
            LastDone::Tick(done) => Some((done.tick.number(), name(done.lease))),
            _ => None,
        };
        Self {
            fence: number(record.fence),
            expires: ticks(record.expires_at),
            holders: record.holders.iter().map(holder).collect(),
            places: record
                .waiters
                .iter()
                .map(|it| (client(it), ticks(it.until)))
                .collect(),
            done,
        }
    }

    pub fn record(&self, setting: &Setting) -> LockRecord {
        let holder = |it: &Entry| {
            let owner = setting.requests[it.name.0].owner.clone();
            let (fence, until) = (fence(it.fence), at(it.expires));
            let mut holder = Holder::exclusive(lease(it.name), owner, fence, at(0), until);
            (holder.mode, holder.permits) = (it.mode, it.permits);
            holder
        };
        let holders = self.holders.iter().map(holder).collect();
        let mut record = LockRecord::new(KEY.clone(), fence(self.fence), holders, at(self.expires));
        let places = self.places.iter().map(|&(client, until)| {
            let AcquireRequest { access, owner, .. } = &setting.requests[client];
            let terms = (access.mode(), access.permits());
            Place::new(waiter(client), owner.clone(), terms, at(0), at(until))
        });
        record.waiters = places.collect();
        if let Some((tick, name)) = self.done {
            let by = (lease(name), "somebody".into());
            record.done = LastDone::Tick(Done::new(Tick::counter(tick), by, at(0), at(0)));
        }
        record
    }
}

impl State {
    /// A lease for a new request. `None` if the document has another lease of the client, or late requests are for both.
    pub fn unused(&self, client: usize) -> Option<Name> {
        let mut holders = self.document.iter().flat_map(|it| &it.holders);
        let is_holder = holders.any(|it| it.name.0 == client);
        let is_unused = |name: &Name| !self.late.iter().any(|it| it.name == *name);
        [(client, 0), (client, 1)]
            .into_iter()
            .find(|it| !is_holder && is_unused(it))
    }

    /// The server's clock goes on.
    pub fn clock(&mut self, ticks: i64) {
        if let Some(it) = &mut self.document {
            it.expires -= ticks;
            it.holders.iter_mut().for_each(|it| it.expires -= ticks);
            it.places.iter_mut().for_each(|it| it.1 -= ticks);
        }
    }

    /// One of the states that are the same.
    pub fn normalised(mut self, setting: &Setting) -> Self {
        // No late request and no step of the clock finds live what ended then.
        let long_ago = -MARGIN - if setting.odd_clock { AGE } else { 0 };
        if let Some(it) = &mut self.document {
            it.holders.retain(|it| it.expires > long_ago);
            it.places.retain(|it| it.1 > long_ago);
            // Since when the key is free matters to those that wait.
            let is_empty = it.holders.is_empty() && it.places.is_empty();
            it.expires = it.expires.max(long_ago - 1);
            it.expires = if is_empty { long_ago - 1 } else { it.expires };
            for (client, of) in self.clients.iter_mut().enumerate() {
                of.waits &= it.places.iter().any(|place| place.0 == client);
            }
        }
        let mut fences: Vec<_> = self.fences().map(|it| *it).collect();
        fences.sort_unstable();
        fences.dedup();
        self.fences()
            .for_each(|it| *it = fences.binary_search(it).unwrap() as i64);
        // The lease of a done tick matters to late requests only.
        let late = self.late.clone();
        for (_, name) in self.done() {
            let is_late = late.iter().any(|it| it.name == *name);
            *name = if is_late { *name } else { STRANGE };
        }
        for alike in setting.alike {
            self.rename(alike);
        }
        self.late.sort_unstable();
        self
    }

    fn done(&mut self) -> impl Iterator<Item = &mut (i64, Name)> {
        let document = self.document.iter_mut().flat_map(|it| &mut it.done);
        document.chain(&mut self.done)
    }

    fn fences(&mut self) -> impl Iterator<Item = &mut i64> {
        let document = self.document.iter_mut();
        let document = document.flat_map(|it| {
            it.holders
                .iter_mut()
                .map(|it| &mut it.fence)
                .chain([&mut it.fence])
        });
        let held = self
            .clients
            .iter_mut()
            .flat_map(|it| &mut it.lease)
            .flat_map(|it| &mut it.1);
        let late = self.late.iter_mut().filter_map(|it| match &mut it.ask {
            Ask::Upgrade(fence) | Ask::Downgrade(fence) => Some(fence),
            _ => None,
        });
        document
            .chain(held.flat_map(|it| &mut it.fence))
            .chain(late)
            .chain(&mut self.newest)
    }

    /// Names clients that are alike, and their leases, by what is known of them.
    fn rename(&mut self, alike: &[usize]) {
        let mut sorted: Vec<_> = alike
            .iter()
            .map(|client| self.description(*client))
            .collect();
        sorted.sort_unstable();
        let renamed = |name: Name| match sorted.iter().position(|it| it.1.0 == name.0) {
            Some(index) => (alike[index], usize::from(sorted[index].1 != name)),
            None => name,
        };
        if let Some(it) = &mut self.document {
            it.holders
                .iter_mut()
                .for_each(|it| it.name = renamed(it.name));
            it.places
                .iter_mut()
                .for_each(|it| it.0 = renamed((it.0, 0)).0);
        }
        self.late
            .iter_mut()
            .for_each(|it| it.name = renamed(it.name));
        self.done().for_each(|it| it.1 = renamed(it.1));
        for (client, mut it) in self.clients.into_iter().enumerate() {
            let (new, id) = renamed((client, it.lease.map_or(0, |it| it.0)));
            it.lease = it.lease.map(|it| (id, it.1));
            self.clients[new] = it;
        }
    }

    /// What is known of a client, without names, and the lease that is to be its first one.
    fn description(&self, client: usize) -> (u64, Name) {
        let known = self.clients[client];
        let of = |name: Name| {
            let late = self.late.iter().filter(|it| it.name.0 == client);
            let mut late: Vec<_> = late.map(|it| (it.ask, it.age, it.name == name)).collect();
            late.sort_unstable();
            let held = [0, 1].map(|other| {
                let mut holders = self.document.iter().flat_map(|it| &it.holders);
                holders.position(|it| it.name == (client, name.1 ^ other))
            });
            let mut places = self.document.iter().flat_map(|it| &it.places);
            let place = places.position(|it| it.0 == client);
            let done = self.done.is_some_and(|it| it.1 == name);
            let mut hasher = DefaultHasher::new();
            let lease = known.lease.map(|it| it.1);
            (lease, known.waits, late, held, place, done).hash(&mut hasher);
            (hasher.finish(), name)
        };
        match known.lease {
            Some((id, _)) => of((client, id)),
            None => of((client, 0)).min(of((client, 1))),
        }
    }
}

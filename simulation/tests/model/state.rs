//! A state of the model: the document of the key, the clients, and the request that is late.
//!
//! Now is always the same time of the server's clock, and the times of the document move instead. All times are whole
//! ticks from now on, and fences are numbered in their order. What differs only by an age that makes no difference is
//! the same state. So there are finitely many, although nothing bounds the time or the number of requests.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use chrono::{DateTime, Utc};
use leasehold::{
    Fence, Key, Mode,
    jobs::Tick,
    rules::turn::MAX_BIND_TIME,
    store::{AcquireRequest, Conversion, LastDone, LeaseId, LockRecord},
};

pub const CLIENTS: usize = 3;
/// A free key is kept for the queue for a tick.
pub const TICK: Duration = MAX_BIND_TIME;
/// How long a lease lives, and how long a place counts.
pub const TTL: i64 = 2;
/// How far the server's clock steps forward, or back again. It is also what a client subtracts from the life of its
/// lease. (A client whose own clock is slow by the margin has the same difference to the server's.)
pub const MARGIN: i64 = 1;
/// From this age on a request gives its client nothing to believe in. A late request may have the time of the server's
/// clock at which it was sent, but no earlier one than this.
pub const AGE: i64 = TTL - MARGIN;

/// Each client has three of them: its lease, an earlier one, and its place.
static IDS: LazyLock<Vec<LeaseId>> = LazyLock::new(|| {
    let ids = (0..12).map(|number| format!("00000000-0000-0000-0000-{number:012}"));
    ids.map(|id| LeaseId::parse(&id).unwrap()).collect()
});

pub fn lease(client: usize) -> LeaseId {
    IDS[3 * client]
}

/// An earlier lease of a client, for which a request is late.
pub fn old(client: usize) -> LeaseId {
    IDS[3 * client + 1]
}

pub fn waiter(client: usize) -> LeaseId {
    IDS[3 * client + 2]
}

pub fn whose(id: LeaseId) -> usize {
    IDS.iter().position(|it| *it == id).unwrap() / 3
}

/// A client's request for an exclusive lease.
pub fn exclusive(lease: LeaseId, owner: &str) -> AcquireRequest {
    let key = Key::new("key").unwrap();
    AcquireRequest::exclusive(key, lease, owner.into(), TICK * TTL as u32)
}

/// A time of the server's clock. Now is 0.
pub fn at(ticks: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_000_000_000 + ticks * TICK.as_secs() as i64, 0).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    Acquire,
    Renew,
    /// Of the lease with this fence.
    Convert(Conversion, Fence),
    /// Of a lease under which this tick was done, if it was for one.
    Release(Option<Tick>),
    Leave(LeaseId),
    /// An operator asks for it. The lease does not matter.
    Evict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub lease: LeaseId,
    pub ask: Ask,
    /// How long ago it was sent, or [`AGE`].
    pub age: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Which lease it has asked for, and what it believes to hold.
    pub lease: Option<(LeaseId, Option<Held>)>,
    /// Whether it was refused, has a place, and has neither been granted the key nor left since.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub mode: Mode,
    /// How long it goes on believing.
    pub left: i64,
    /// Of its lease, if it may convert that. It waits for the answer to a downgrade: an upgrade that overtakes the
    /// downgrade finds nothing to do, and the downgrade then undoes it.
    pub fence: Option<Fence>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Before the first grant the rules do not get it.
    pub document: LockRecord,
    pub clients: [Client; CLIENTS],
    pub late: Option<Request>,
    pub is_ahead: bool,
    /// The newest fence of all grants, upgrades and evictions.
    pub newest: Option<Fence>,
    /// The newest tick that was done, and by which client.
    pub done: Option<(Tick, usize)>,
    /// The property that was violated.
    pub violated: Option<&'static str>,
}

/// The other fields of the document make no difference: the client of a lease or a place tells them, or no rule here
/// reads them.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for it in &self.document.holders {
            (it.lease, it.mode, it.fence, it.expires_at).hash(hasher);
        }
        for it in &self.document.waiters {
            (it.waiter, it.until).hash(hasher);
        }
        if let LastDone::Tick(it) = &self.document.done {
            (it.tick, it.lease).hash(hasher);
        }
        (self.document.fence, self.document.expires_at).hash(hasher);
        (self.clients, self.late, self.is_ahead).hash(hasher);
        (self.newest, self.done, self.violated).hash(hasher);
    }
}

impl State {
    /// The server's clock goes on.
    pub fn clock(&mut self, ticks: i64) {
        let (time, it) = (at(ticks) - at(0), &mut self.document);
        it.expires_at -= time;
        it.holders.iter_mut().for_each(|it| it.expires_at -= time);
        it.waiters.iter_mut().for_each(|it| it.until -= time);
    }

    /// One of the states that are the same.
    pub fn normalised(mut self) -> Self {
        // No late request and no step of the clock finds live what ended then.
        let long_ago = -MARGIN - AGE;
        let it = &mut self.document;
        it.holders.retain(|it| it.expires_at > at(long_ago));
        it.waiters.retain(|it| it.until > at(long_ago));
        it.expires_at = it.expires_at.max(at(long_ago - 1));
        for (client, of) in self.clients.iter_mut().enumerate() {
            of.waits &= it.waiters.iter().any(|it| it.waiter == waiter(client));
        }
        let fences: BTreeSet<_> = self.fences().map(|it| *it).collect();
        // They are ahead of the clock. So the next one is greater only if the rule reads the one in the document.
        let first = at(0).timestamp_millis() * 1_024 + 100;
        for it in self.fences() {
            *it = Fence::new(first + fences.range(..*it).count() as i64);
        }
        self
    }

    fn fences(&mut self) -> impl Iterator<Item = &mut Fence> {
        let holders = self.document.holders.iter_mut().map(|it| &mut it.fence);
        let clients = self.clients.iter_mut().flat_map(|it| &mut it.lease);
        let held = clients.flat_map(|it| &mut it.1);
        let late = self.late.iter_mut().filter_map(|it| match &mut it.ask {
            Ask::Convert(_, fence) => Some(fence),
            _ => None,
        });
        let all = holders.chain(held.flat_map(|it| &mut it.fence)).chain(late);
        all.chain(&mut self.newest)
            .chain([&mut self.document.fence])
    }
}

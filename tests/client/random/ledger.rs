//! What the tasks have: each lease is noted when its task gets it, and is then compared with all others that are live.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    ops::AddAssign,
    rc::{Rc, Weak},
};

use leasehold::{Fence, Lease, Mode, SharedLease};

/// How often each thing has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Leases with a fence that the task got while they were live.
    pub granted: u64,
    pub shared: u64,
    pub reentrant: u64,
    pub refused: u64,
    pub dropped: u64,
    pub lost: u64,
    pub resumed: u64,
    pub converted: u64,
    pub evicted: u64,
}

impl Tally {
    /// Whether each thing has happened this often.
    pub fn has_all(&self, times: u64) -> bool {
        let Self {
            granted,
            shared,
            reentrant,
            refused,
            dropped,
            lost,
            resumed,
            converted,
            evicted,
        } = *self;
        let rare = [10 * lost, 2 * evicted];
        let often = [
            granted, shared, reentrant, refused, dropped, resumed, converted,
        ];
        let mut all = often.iter().chain(&rare);
        all.all(|happened| *happened >= times)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.granted += other.granted;
        self.shared += other.shared;
        self.reentrant += other.reentrant;
        self.refused += other.refused;
        self.dropped += other.dropped;
        self.lost += other.lost;
        self.resumed += other.resumed;
        self.converted += other.converted;
        self.evicted += other.evicted;
    }
}

/// The guard of a lease.
pub enum Guard {
    Lease(Lease),
    /// It shows no fence.
    Shared(SharedLease),
}

/// A lease that a task has.
pub struct Had {
    pub guard: Guard,
    pub is_reentrant: bool,
    /// The store may have made the lease shared, although the answer has not come.
    pub may_be_shared: Cell<bool>,
}

impl Had {
    pub fn new(guard: Guard, is_reentrant: bool) -> Rc<Self> {
        Rc::new(Self {
            guard,
            is_reentrant,
            may_be_shared: Cell::new(false),
        })
    }

    pub fn is_live(&self) -> bool {
        match &self.guard {
            Guard::Lease(lease) => lease.is_live(),
            Guard::Shared(lease) => lease.is_live(),
        }
    }

    fn key(&self) -> &str {
        match &self.guard {
            Guard::Lease(lease) => lease.key().as_str(),
            Guard::Shared(lease) => lease.key().as_str(),
        }
    }

    fn owner(&self) -> &str {
        match &self.guard {
            Guard::Lease(lease) => lease.owner(),
            Guard::Shared(lease) => lease.owner(),
        }
    }

    fn is_exclusive(&self) -> bool {
        match &self.guard {
            Guard::Lease(lease) => lease.mode() == Mode::Exclusive && !self.may_be_shared.get(),
            Guard::Shared(_) => false,
        }
    }

    /// Whether the two may be live at the same time.
    fn is_compatible(&self, other: &Self) -> bool {
        let is_inner = (self.is_reentrant || other.is_reentrant) && self.owner() == other.owner();
        is_inner || !(self.is_exclusive() || other.is_exclusive())
    }
}

impl fmt::Debug for Had {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.guard {
            Guard::Lease(lease) => lease.fmt(f)?,
            Guard::Shared(lease) => lease.fmt(f)?,
        }
        let (reentrant, shared) = (self.is_reentrant, self.may_be_shared.get());
        write!(f, " (reentrant: {reentrant}, may be shared: {shared})")
    }
}

/// The newest fences of a key.
#[derive(Clone, Copy, Default)]
struct Newest {
    exclusive: Option<Fence>,
    any: Option<Fence>,
}

#[derive(Default)]
pub struct Ledger {
    /// Whether the leases are compared.
    compares: bool,
    all: RefCell<Vec<Weak<Had>>>,
    fences: RefCell<HashMap<String, Newest>>,
    tally: RefCell<Tally>,
}

impl Ledger {
    pub fn new(compares: bool) -> Self {
        Self {
            compares,
            ..Self::default()
        }
    }

    pub fn tally(&self) -> Tally {
        *self.tally.borrow()
    }

    pub fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.borrow_mut());
    }

    /// Notes a lease that a task has just got.
    pub fn granted(&self, had: &Rc<Had>) {
        if !had.is_live() {
            self.count(|tally| tally.lost += 1);
            return;
        }
        self.count(|tally| match &had.guard {
            _ if had.is_reentrant => tally.reentrant += 1,
            Guard::Lease(_) => tally.granted += 1,
            Guard::Shared(_) => tally.shared += 1,
        });
        self.all.borrow_mut().push(Rc::downgrade(had));
        self.check();
        // A reentrant lease has the fence of the lease that it enters.
        if let Guard::Lease(lease) = &had.guard
            && !had.is_reentrant
        {
            self.fence_rises(lease.key().as_str(), lease.fence(), had.is_exclusive());
        }
    }

    /// Notes a lease that a task has resumed. It may have the fence that the task before it has seen.
    pub fn resumed(&self, had: &Rc<Had>) {
        self.count(|tally| tally.resumed += 1);
        self.all.borrow_mut().push(Rc::downgrade(had));
        self.check();
        if let Guard::Lease(lease) = &had.guard
            && !had.is_reentrant
        {
            let mut fences = self.fences.borrow_mut();
            let newest = fences.entry(lease.key().to_string()).or_default();
            newest.any = newest.any.max(Some(lease.fence()));
        }
    }

    /// Notes that an upgrade has given a lease a new fence.
    pub fn upgraded(&self, had: &Had) {
        self.check();
        if let Guard::Lease(lease) = &had.guard
            && had.is_live()
            && !had.is_reentrant
        {
            self.fence_rises(lease.key().as_str(), lease.fence(), true);
        }
    }

    /// Leases that exclude each other are granted in the order of their fences. Of two that share a key, the task of
    /// the second may be the first to hear of it.
    fn fence_rises(&self, key: &str, fence: Fence, is_exclusive: bool) {
        let mut fences = self.fences.borrow_mut();
        if !self.compares {
            return;
        }
        let newest = fences.entry(key.to_owned()).or_default();
        let before = if is_exclusive {
            newest.any
        } else {
            newest.exclusive
        };
        assert!(before < Some(fence), "{before:?} comes before {fence:?}");
        newest.any = newest.any.max(Some(fence));
        if is_exclusive {
            newest.exclusive = Some(fence);
        }
    }

    /// Compares all leases that are live.
    pub fn check(&self) {
        let mut all = self.all.borrow_mut();
        all.retain(|had| had.strong_count() > 0);
        let live: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        let live: Vec<_> = live.iter().filter(|had| had.is_live()).collect();
        for (at, one) in live.iter().enumerate().filter(|_| self.compares) {
            for other in &live[..at] {
                let are_apart = one.key() != other.key() || one.is_compatible(other);
                assert!(are_apart, "two tasks have a key: {other:?} and {one:?}");
            }
        }
    }
}

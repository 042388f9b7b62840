//! The ways in which a process waits for a key that another process holds.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::{Attempt, Lease, Leases};

use crate::{
    locks::{Guard, Locks, SharedLocks},
    ours::WholeGuard,
    raw::PAUSE,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The default of leasehold.
    InTurn,
    /// `.barging()`: without a place in the queue of the processes.
    Barging,
    /// `try_acquire` every 10 ms. A raw client has no shared locks, so the writer's case uses this instead of it.
    Polling,
}

impl Way {
    /// The way that belongs to the side with this name.
    pub fn of(side: &str) -> Option<Self> {
        let all = [Self::InTurn, Self::Barging, Self::Polling];
        all.into_iter().find(|way| way.side() == side)
    }

    pub fn side(self) -> &'static str {
        match self {
            Self::InTurn => "leasehold",
            Self::Barging => "leasehold-barging",
            Self::Polling => "leasehold-polling",
        }
    }

    pub fn shared_locks(self, leases: Leases, shared: bool) -> SharedLocks {
        Arc::new(Waiting {
            way: self,
            leases,
            shared,
        })
    }

    /// Waits for a lease of the key: a shared or an exclusive one.
    pub async fn acquire_as(
        self,
        leases: &Leases,
        key: &str,
        ttl: Duration,
        shared: bool,
    ) -> Result<Lease> {
        if self == Self::Polling {
            loop {
                if let Some(lease) = ask(leases, key, ttl, shared).await? {
                    return Ok(lease);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let mut acquire = leases.acquire(key, ttl);
        if shared {
            acquire = acquire.shared();
        }
        if self == Self::Barging {
            acquire = acquire.barging();
        }
        Ok(acquire.await?)
    }
}

/// Tries once.
async fn ask(leases: &Leases, key: &str, ttl: Duration, shared: bool) -> Result<Option<Lease>> {
    let mut attempt = leases.try_acquire(key, ttl);
    if shared {
        attempt = attempt.shared();
    }
    Ok(match attempt.await? {
        Attempt::Acquired(lease) => Some(lease),
        Attempt::Held(_) => None,
    })
}

struct Waiting {
    way: Way,
    leases: Leases,
    shared: bool,
}

#[async_trait]
impl Locks for Waiting {
    fn name(&self) -> &'static str {
        self.way.side()
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let lease = ask(&self.leases, key, ttl, self.shared).await?;
        Ok(lease.map(|lease| Box::new(WholeGuard(lease)) as _))
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let (leases, shared) = (&self.leases, self.shared);
        let lease = self.way.acquire_as(leases, key, ttl, shared).await?;
        Ok(Box::new(WholeGuard(lease)))
    }
}

//! leasehold as applications use it, and its bare store, which shows what the client adds.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use leasehold::{
    Attempt, Key, Lease, Leases, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseAnswer, ReleaseRequest},
};
use mongodb::{Collection, bson::Document};

use crate::locks::{Guard, Locks, SharedLocks};

/// Opens a store in this collection, set up as the documentation says.
pub async fn mongo_store(locks: &Collection<Document>) -> Result<MongoStore> {
    let store = MongoStore::new(locks);
    store.prepare().await?;
    Ok(store)
}

/// The client: `try_acquire`, `acquire` and `release`.
pub struct Whole {
    name: &'static str,
    leases: Leases,
}

impl Whole {
    pub fn shared(leases: &Leases) -> SharedLocks {
        Self::named("leasehold", leases)
    }

    pub fn named(name: &'static str, leases: &Leases) -> SharedLocks {
        Arc::new(Self::of(name, leases))
    }

    pub fn of(name: &'static str, leases: &Leases) -> Self {
        let leases = leases.clone();
        Self { name, leases }
    }
}

#[async_trait]
impl Locks for Whole {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        Ok(match self.leases.try_acquire(key, ttl).await? {
            Attempt::Acquired(lease) => Some(Box::new(WholeGuard(lease))),
            Attempt::Held(_) => None,
        })
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let lease = self.leases.acquire(key, ttl).await?;
        Ok(Box::new(WholeGuard(lease)))
    }
}

pub(crate) struct WholeGuard(pub(crate) Lease);

#[async_trait]
impl Guard for WholeGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        Ok(self.0.release().await?)
    }

    fn leave(self: Box<Self>) {
        drop(self.0.detach());
    }
}

/// The same client, with guards that are dropped instead of released.
pub struct Dropped(pub Whole);

#[async_trait]
impl Locks for Dropped {
    fn name(&self) -> &'static str {
        self.0.name
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let attempt = self.0.leases.try_acquire(key, ttl).await?;
        Ok(match attempt {
            Attempt::Acquired(lease) => Some(Box::new(DroppedGuard(lease))),
            Attempt::Held(_) => None,
        })
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        Ok(Box::new(DroppedGuard(
            self.0.leases.acquire(key, ttl).await?,
        )))
    }
}

struct DroppedGuard(Lease);

#[async_trait]
impl Guard for DroppedGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        drop(self.0);
        Ok(())
    }

    fn leave(self: Box<Self>) {
        drop(self.0.detach());
    }
}

/// The store without the client: `Store::acquire` and `Store::release`.
pub struct Bare(pub Arc<dyn Store>);

impl Bare {
    pub fn shared(store: impl Store) -> SharedLocks {
        Arc::new(Self(Arc::new(store)))
    }
}

#[async_trait]
impl Locks for Bare {
    fn name(&self) -> &'static str {
        "leasehold-store"
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let (key, lease) = (Key::new(key)?, LeaseId::random());
        let request = AcquireRequest::exclusive(key.clone(), lease, "bench".into(), ttl).fresh();
        Ok(match self.0.acquire(&request).await? {
            AcquireAnswer::Granted(_) => Some(Box::new(BareGuard {
                store: self.0.clone(),
                key,
                lease,
            })),
            AcquireAnswer::Held(_) | AcquireAnswer::Done(_) => None,
        })
    }

    async fn acquire(&self, _: &str, _: Duration) -> Result<Box<dyn Guard>> {
        bail!("a store does not wait")
    }
}

struct BareGuard {
    store: Arc<dyn Store>,
    key: Key,
    lease: LeaseId,
}

#[async_trait]
impl Guard for BareGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        let request = ReleaseRequest::new(self.key, self.lease)
            .likely_sole()
            .undoable();
        let answer = self.store.release(&request).await?;
        ensure!(answer == ReleaseAnswer::Released, "{answer:?}");
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}

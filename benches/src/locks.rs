//! What all locks have in common, as far as they are measured.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;

/// Longer than any case takes.
pub const LONG: Duration = Duration::from_secs(3_600);

/// One way to lock keys.
#[async_trait]
pub trait Locks: Send + Sync + 'static {
    /// What the side is called.
    fn name(&self) -> &'static str;

    /// Asks once. `None` if somebody else holds the key.
    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>>;

    /// Waits until the key is free.
    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>>;

    /// Waits for what goes on in the background; it belongs to the turn.
    async fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// A lock that is held.
#[async_trait]
pub trait Guard: Send + Sync {
    async fn release(self: Box<Self>) -> Result<()>;

    /// Goes away and leaves the lock behind, until it expires.
    fn leave(self: Box<Self>);
}

/// One free acquire and its release.
pub async fn cycle(locks: &dyn Locks, key: &str) -> Result<()> {
    let guard = locks.try_acquire(key, LONG).await?;
    guard.context("a free key is held")?.release().await
}

/// An attempt that has to find the key held.
pub async fn held(locks: &dyn Locks, key: &str) -> Result<()> {
    match locks.try_acquire(key, LONG).await? {
        None => Ok(()),
        Some(_) => bail!("a held key was granted"),
    }
}

pub type SharedLocks = Arc<dyn Locks>;

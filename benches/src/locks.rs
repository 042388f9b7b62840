//! The interface that all measured locks share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;

/// Longer than any case takes.
pub const LONG: Duration = Duration::from_secs(3_600);

/// One way to lock keys.
#[async_trait]
pub trait Locks: Send + Sync + 'static {
    /// The name of the side.
    fn name(&self) -> &'static str;

    /// Tries once. Returns `None` if another holder has the key.
    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>>;

    /// Waits until the key is granted.
    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>>;

    /// Waits for background work, which counts as part of the turn.
    async fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// A lock that is held.
#[async_trait]
pub trait Guard: Send + Sync {
    async fn release(self: Box<Self>) -> Result<()>;

    /// Leaves the lock unreleased, until it expires.
    fn leave(self: Box<Self>);
}

/// Acquires a free key and releases it. Returns how long the acquire took.
pub async fn cycle(locks: &dyn Locks, key: &str) -> Result<Duration> {
    let begin = Instant::now();
    let guard = locks.try_acquire(key, LONG).await?;
    let took = begin.elapsed();
    guard.context("a free key is held")?.release().await?;
    Ok(took)
}

/// Tries to acquire a key that must be held.
pub async fn held(locks: &dyn Locks, key: &str) -> Result<()> {
    match locks.try_acquire(key, LONG).await? {
        None => Ok(()),
        Some(_) => bail!("a held key was granted"),
    }
}

pub type SharedLocks = Arc<dyn Locks>;

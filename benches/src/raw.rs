//! The lower bound on MongoDB: the bare driver, and the smallest document that makes a fenced lock on the server's
//! clock.
//!
//! An acquire is one `findOneAndUpdate`, and a release is one `updateOne`. Both filter by `_id` alone, which is the
//! server's shortest path. A write is acknowledged when it survives a kill of the server: see
//! [`durable`](crate::engines::durable). Only what the caller needs is decoded from the answer. A document has one
//! owner and no name for the holder; the only index is `_id`; there is no other kind of lock, and nothing cleans up
//! after a cancelled request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use mongodb::{
    Collection, IndexModel,
    action::Action,
    bson::{Document, RawDocumentBuf, doc},
    options::{Acknowledgment, IndexOptions, ReturnDocument, WriteConcern},
};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use crate::locks::{Guard, Locks};

/// How long a waiter pauses between two requests if another process has the key.
pub const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct RawLocks {
    name: &'static str,
    locks: Collection<RawDocumentBuf>,
    /// The write concern of releases, if it is not that of the client.
    release_concern: Option<WriteConcern>,
    /// The waiters of this process for each key, first in, first out.
    queues: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}

impl RawLocks {
    pub fn new(name: &'static str, locks: &Collection<Document>) -> Self {
        Self {
            name,
            locks: locks.clone_with_type(),
            release_concern: None,
            queues: Arc::default(),
        }
    }

    /// Uses releases that only the primary acknowledges.
    pub fn released_by_the_primary(mut self) -> Self {
        self.release_concern = Some(primary_alone());
        self
    }

    /// Creates the index by which the server removes dead locks. The other sides have one too.
    pub async fn with_ttl_index(
        name: &'static str,
        locks: &Collection<Document>,
    ) -> Result<RawLocks> {
        let options = IndexOptions::builder()
            .expire_after(Duration::from_secs(24 * 60 * 60))
            .build();
        let keys = doc! { "expires_at": 1 };
        let index = IndexModel::builder().keys(keys).options(options).build();
        locks.create_index(index).await?;
        Ok(Self::new(name, locks))
    }

    async fn ask(&self, key: &str, ttl: Duration) -> Result<Option<RawGuard>> {
        let lease = Uuid::new_v4().to_string();
        let document = self
            .locks
            .find_one_and_update(doc! { "_id": key }, acquire(&lease, ttl))
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await?
            .context("an upsert gave back no document")?;
        // A lock that was just released has no owner.
        if document.get("owner")?.and_then(|owner| owner.as_str()) != Some(&lease) {
            return Ok(None);
        }
        document.get_i64("fence")?;
        Ok(Some(RawGuard {
            locks: self.locks.clone(),
            concern: self.release_concern.clone(),
            key: key.to_owned(),
            lease,
            turn: None,
        }))
    }
}

/// The write concern of a release that a failover may undo.
pub fn primary_alone() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Nodes(1)).build()
}

fn acquire(lease: &str, ttl: Duration) -> Vec<Document> {
    let granted = doc! {
        "_id": "$_id",
        "fence": { "$add": [{ "$ifNull": ["$fence", 0_i64] }, 1_i64] },
        "owner": lease,
        "expires_at": { "$add": ["$$NOW", ttl.as_millis() as i64] },
    };
    // A missing expiry sorts before every date.
    let free = doc! { "$lte": ["$expires_at", "$$NOW"] };
    vec![doc! { "$replaceWith": { "$cond": [free, granted, "$$ROOT"] } }]
}

fn release(lease: &str) -> Vec<Document> {
    let released = doc! { "_id": "$_id", "fence": "$fence", "expires_at": "$$NOW" };
    let holds = doc! { "$eq": ["$owner", lease] };
    vec![doc! { "$replaceWith": { "$cond": [holds, released, "$$ROOT"] } }]
}

#[async_trait]
impl Locks for RawLocks {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let guard = self.ask(key, ttl).await?;
        Ok(guard.map(|guard| Box::new(guard) as _))
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let queue = self
            .queues
            .lock()
            .entry(key.to_owned())
            .or_default()
            .clone();
        let turn = queue.lock_owned().await;
        loop {
            if let Some(guard) = self.ask(key, ttl).await? {
                return Ok(Box::new(RawGuard {
                    turn: Some(turn),
                    ..guard
                }));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

struct RawGuard {
    locks: Collection<RawDocumentBuf>,
    concern: Option<WriteConcern>,
    key: String,
    lease: String,
    /// The place at the head of this process's queue.
    turn: Option<OwnedMutexGuard<()>>,
}

#[async_trait]
impl Guard for RawGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        let released = self
            .locks
            .update_one(doc! { "_id": &self.key }, release(&self.lease))
            .optional(self.concern, |released, concern| {
                released.write_concern(concern)
            })
            .await?;
        ensure!(released.modified_count == 1, "not released");
        drop(self.turn);
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}

/// Takes a permit of a limiter with fixed windows on the server's clock. It sends one command for one document.
pub async fn permit(
    limiters: &Collection<RawDocumentBuf>,
    key: &str,
    limit: i64,
    window: Duration,
) -> Result<()> {
    let request = Uuid::new_v4().to_string();
    let window = window.as_millis() as i64;
    let now = doc! { "$toLong": "$$NOW" };
    let update = doc! { "$let": {
        "vars": { "window": { "$subtract": [&now, { "$mod": [&now, window] }] } },
        "in": { "$switch": {
            "branches": [
                {
                    "case": { "$ne": ["$window", "$$window"] },
                    "then": {
                        "_id": "$_id", "window": "$$window", "used": 1_i64, "last": &request,
                    },
                },
                {
                    "case": { "$lt": ["$used", limit] },
                    "then": {
                        "_id": "$_id",
                        "window": "$window",
                        "used": { "$add": ["$used", 1_i64] },
                        "last": &request,
                    },
                },
            ],
            "default": "$$ROOT",
        } },
    } };
    let document = limiters
        .find_one_and_update(doc! { "_id": key }, vec![doc! { "$replaceWith": update }])
        .upsert(true)
        .return_document(ReturnDocument::After)
        .await?
        .context("an upsert gave back no document")?;
    ensure!(document.get_str("last")? == request, "the limiter is full");
    Ok(())
}

//! The TTL indexes that remove dead locks and limiters, and the lock that is tried: it is taken and released to see
//! that the server lets a client do that.

use std::time::Duration;

use mongodb::{
    IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};

use super::{
    MongoStore,
    concern::Deployment,
    error::{INDEX_CONFLICTS, INDEX_REFUSED, classify, failed, has_code, not_prepared, sentence},
    fitness::FOR_LOCKS,
    statements,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest},
    model::{Error, Key, LIMITER_SCHEMA, LeaseId, SCHEMA, brief},
    store::Store as _,
};

/// How long `prepare` may take: to build an index on a collection in use takes time.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The ttl of the lock that is tried. The trial ends sooner, unless this process ends in the middle of it.
const TTL: Duration = Duration::from_secs(60);
/// The beginning of its key, and its owner.
const NAME: &str = "leasehold prepare";

/// A TTL index.
pub(super) struct Index {
    pub(super) name: &'static str,
    /// The field with the date from which `expires_after` counts.
    pub(super) field: &'static str,
    pub(super) expires_after: Duration,
    /// The filter for our documents. Those that a later version or another program put into the collection
    /// are left alone.
    pub(super) ours: Document,
}

impl MongoStore {
    /// Creates the TTL indexes that remove dead locks and limiters, and the collection with them. Then it takes a lock
    /// on a key that nobody uses, releases it, and removes its document, to see that locks work.
    ///
    /// The call can be repeated, at every start of the application for example, and by several processes at
    /// once; a changed [`retention`](MongoStore::retention) of limiters is taken over. Locking works without
    /// the indexes, but then documents of dead locks stay until a [`purge`](crate::Leases::purge).
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the collection is not fit for locks, as [`check`](MongoStore::check) says. The same
    /// error says that the engine refuses a TTL index: then [`purge`](crate::Leases::purge) from time to time.
    ///
    /// Otherwise as [`Error`] says: among others [`Error::Denied`] if the user may not create an index or, for a
    /// changed retention, has no right `collMod`. The locks work all the same. It is also the error for a user who may
    /// not acquire, or not list collections or indexes: what could be done was done then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop what was sent. A repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        let this = self.clone();
        let work = async move {
            let hidden = this.ensure_fit_for_locks().await?;
            if this.has_pipelines().await? {
                for index in indexes(this.retention) {
                    this.create(index).await?;
                }
            }
            this.try_a_lock().await?;
            hidden.map_or(Ok(()), Err)
        };
        self.locks.call("prepare", PREPARE_TIMEOUT, work).await
    }

    /// Checks that the collection is fit for locks. Nothing is changed: the update that is tried finds no document.
    ///
    /// The first acquire of each store looks at the same, but for the engine and for what this user may not see.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the collection
    ///
    /// - is a view or one of a time series, or is capped (the server may remove a lock that somebody has), or has a
    ///   collation (which may take two keys for one);
    /// - is in one of the server's own databases, `admin`, `config` and `local`;
    /// - has a TTL index on a date of ours that somebody else made: it would remove locks that are held, or whose fence
    ///   is ahead of the clock, so that the next fence would be smaller;
    /// - has a unique index on another field than `_id` (which refuses all locks but one, unless it is sparse, or has a
    ///   filter, so that they are not in it);
    /// - is sharded by another key than `_id`; a user who may not read the cluster's settings (`config.collections`) is
    ///   not told of that;
    /// - is behind routers of two clusters; a user who may not read `config.version` is not told of that;
    /// - is one of an engine that takes no updates with pipelines; a user who may only read is not told of that.
    ///
    /// [`Error::Denied`] if nothing of these was seen, and the user may not list collections or indexes. Otherwise the
    /// error with which the server answers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point.
    pub async fn check(&self) -> Result<(), Error> {
        let this = self.clone();
        let work = async move { this.ensure_fit_for_locks().await?.map_or(Ok(()), Err) };
        self.locks.call("check", PREPARE_TIMEOUT, work).await
    }

    /// Fails if what can be seen of the collection is not fit. The value says why a part cannot be seen.
    async fn ensure_fit_for_locks(&self) -> Result<Option<Error>, Error> {
        let (facts, hidden) = self.locks.look().await?;
        let judged = FOR_LOCKS.judge(&facts);
        self.first_look.record(judged.is_ok());
        judged?;
        if self.locks.ask_deployment().await? == Deployment::Sharded {
            self.ensure_one_cluster().await?;
        }
        // This also finds out whether a sharded collection is fit.
        if self.has_pipelines().await? {
            self.try_pipeline().await?;
        }
        Ok(hidden)
    }

    /// Tries an update with a pipeline, and the server's time in it, that changes nothing.
    async fn try_pipeline(&self) -> Result<(), Error> {
        let clock = self.statement_clock().await?;
        let update = clock.update(vec![doc! { "$replaceWith": { "at": "$$NOW" } }]);
        let locks = self.locks.durable_writes().await?;
        let tried = locks
            // No key has this id.
            .find_one_and_update(doc! { "_id": { "leasehold": "clock" } }, update)
            .await;
        match tried.map_err(classify) {
            // A user who may only read is refused this update. Such a user may use the store all the same.
            Ok(_) | Err(Error::Denied { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a lock that nobody else uses, releases it, and removes its document, also if one of these steps fails.
    ///
    /// # Errors
    ///
    /// The error of the first step that failed: the collection may have a validator, for example, or this user may only
    /// read.
    async fn try_a_lock(&self) -> Result<(), Error> {
        let lease = LeaseId::random();
        let key = Key::new(format!("{NAME} {lease}"))?;
        let tried = self.take_and_release(&key, lease).await;
        let locks = self.locks.durable_writes().await?;
        let removed = locks.delete_one(statements::filter(&key)).await;
        tried?;
        removed.map(drop).map_err(classify)
    }

    async fn take_and_release(&self, key: &Key, lease: LeaseId) -> Result<(), Error> {
        let acquire = AcquireRequest::exclusive(key.clone(), lease, NAME.into(), TTL).fresh();
        if !matches!(self.acquire(&acquire).await?, AcquireAnswer::Granted(_)) {
            return Err(failed("a lock on a new key was refused"));
        }
        let release = ReleaseRequest::new(key.clone(), lease);
        match self.release(&release).await? {
            ReleaseAnswer::Released => Ok(()),
            ReleaseAnswer::NotHeld => Err(failed("a lock was gone before its release")),
        }
    }

    async fn create(&self, index: Index) -> Result<(), Error> {
        // The index takes whole seconds in 32 bits.
        let seconds = index.expires_after.as_secs().min(i32::MAX as u64);
        let options = IndexOptions::builder()
            .name(index.name.to_owned())
            .expire_after(Duration::from_secs(seconds))
            .partial_filter_expression(index.ours)
            .build();
        let model = IndexModel::builder()
            .keys(doc! { index.field: 1 })
            .options(options)
            .build();
        let locks = self.locks.durable_writes().await?;
        match locks.create_index(model).await {
            Ok(_) => Ok(()),
            Err(conflict) if has_code(&conflict, &INDEX_CONFLICTS) => {
                let change = doc! {
                    "collMod": locks.name(),
                    "index": { "name": index.name, "expireAfterSeconds": seconds as i64 },
                    "writeConcern": self.locks.write_concern().await?,
                };
                let database = self.locks.database();
                database.run_command(change).await.map_err(classify)?;
                Ok(())
            }
            Err(refused) if has_code(&refused, &INDEX_REFUSED) => Err(not_prepared(format!(
                "its engine refuses the TTL index {}: {}; locks work, but purge the dead ones",
                index.name,
                brief(&sentence(&refused.kind), 45)
            ))),
            Err(error) => Err(classify(error)),
        }
    }
}

/// The TTL indexes. For locks the statements write the date of removal, which includes the retention. For
/// limiters the index adds the retention.
pub(super) fn indexes(retention: Duration) -> [Index; 2] {
    [
        Index {
            name: "leasehold_cleanup_at",
            field: "cleanup_at",
            expires_after: Duration::ZERO,
            ours: doc! { "schema": SCHEMA },
        },
        Index {
            name: "leasehold_over_at",
            field: "over_at",
            expires_after: retention,
            ours: doc! { "limiter": LIMITER_SCHEMA },
        },
    ]
}

//! The TTL indexes that remove dead locks and limiters.

use std::time::Duration;

use futures::TryStreamExt as _;
use mongodb::{
    IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};

use super::{
    MongoStore,
    concern::Deployment,
    error::{
        INDEX_CONFLICTS, INDEX_NOT_FOUND, INDEX_REFUSED, NAMESPACE_NOT_FOUND, STORE, classify,
        code, sentence, unique_index,
    },
    fitness::{refuses_locks, removes_too_early, unfit},
};
use crate::{
    model::{Error, LIMITER_SCHEMA, SCHEMA},
    runtime,
};

/// How long `prepare` may take: to build an index on a collection in use takes time.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The TTL index on `expires_at` that earlier versions created, before locks had a clean-up date.
const FORMER_INDEX: &str = "leasehold_expires_at";

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
    /// Creates the TTL indexes that remove dead locks and limiters, and the collection with them.
    ///
    /// The call can be repeated, at every start of the application for example, and by several processes at
    /// once; a changed [`retention`](MongoStore::retention) of limiters is taken over. Locking works without
    /// the indexes, but then documents of dead locks stay until a [`purge`](crate::Leases::purge).
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the collection is not fit for locks, as [`check`](MongoStore::check) says, or has a
    /// TTL index on another date of ours: it would remove locks that are held, or whose fence is ahead of the clock, so
    /// that the next fence would be smaller. Drop it. The same error says that the engine refuses such an index: then
    /// [`purge`](crate::Leases::purge) from time to time.
    ///
    /// Otherwise as [`Error`] says: among others [`Error::Denied`] if the user may not create an index or, for a
    /// changed retention, has no right `collMod`. The locks work all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop what was sent. A repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        let this = self.clone();
        runtime::call("prepare", PREPARE_TIMEOUT, async move {
            this.fit_for_locks().await?;
            if this.ask_whether_classic().await? {
                return this.forbid_early_removal().await;
            }
            for index in indexes(this.retention) {
                this.create(index).await?;
            }
            this.forbid_early_removal().await
        })
        .await
    }

    /// Checks that the collection is fit for locks. Nothing is changed: the update that is tried finds no document.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the collection
    ///
    /// - is a view or one of a time series, or is capped (the server may remove a lock that somebody has), or has a
    ///   collation (which may take two keys for one); a user who may not list collections is not told of these;
    /// - has a unique index on another field than `_id` (which refuses all locks but one, unless it is sparse, or has a
    ///   filter, so that they are not in it);
    /// - is sharded by another key than `_id`; a user who may not read the cluster's settings (`config.collections`) is
    ///   not told of that;
    /// - is behind routers of two clusters; a user who may not read `config.version` is not told of that;
    /// - is one of an engine that takes no updates with pipelines; a user who may only read is not told of that.
    ///
    /// Otherwise the error with which the server answers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point.
    pub async fn check(&self) -> Result<(), Error> {
        let this = self.clone();
        let check = async move { this.fit_for_locks().await };
        runtime::call("check", PREPARE_TIMEOUT, check).await
    }

    async fn fit_for_locks(&self) -> Result<(), Error> {
        let locks = self.locks.reads();
        let database = self.locks.database();
        let list = doc! { "listCollections": 1, "filter": { "name": locks.name() } };
        let listed = match database.run_cursor_command(list).await.map_err(classify) {
            Ok(listed) => listed.try_collect().await.map_err(classify)?,
            Err(Error::Denied { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let problem = listed.iter().find_map(unfit);
        if let Some(problem) = problem {
            return Err(not_prepared(problem.to_owned()));
        }
        if self.locks.ask_deployment().await? == Deployment::Sharded {
            self.ensure_one_cluster().await?;
        }
        // This also finds out whether a sharded collection is fit.
        if !self.ask_whether_classic().await? {
            self.try_pipeline().await?;
        }
        if listed.is_empty() {
            return Ok(());
        }
        let indexes = locks.list_indexes().await.map_err(classify)?;
        let indexes: Vec<_> = indexes.try_collect().await.map_err(classify)?;
        match indexes.iter().find_map(refuses_locks) {
            Some(name) => Err(not_prepared(unique_index(&name))),
            None => Ok(()),
        }
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
            Err(conflict) if code(&conflict).is_some_and(|at| INDEX_CONFLICTS.contains(&at)) => {
                let change = doc! {
                    "collMod": locks.name(),
                    "index": { "name": index.name, "expireAfterSeconds": seconds as i64 },
                    "writeConcern": self.locks.write_concern().await?,
                };
                let database = self.locks.database();
                database.run_command(change).await.map_err(classify)?;
                Ok(())
            }
            Err(refused) if code(&refused).is_some_and(|at| INDEX_REFUSED.contains(&at)) => {
                Err(not_prepared(format!(
                    "its engine refuses the TTL index {}: {}. Locks work without it, but the documents of dead locks stay: \
                     purge them from time to time",
                    index.name,
                    sentence(&refused.kind)
                )))
            }
            Err(error) => Err(classify(error)),
        }
    }

    /// Drops the TTL index on `expires_at` that earlier versions created, and refuses any other TTL index on a field of
    /// ours: it would remove a lock that is held, or one whose fence is ahead of the clock.
    async fn forbid_early_removal(&self) -> Result<(), Error> {
        let indexes = match self.locks.reads().list_indexes().await {
            // There is no collection yet.
            Err(missing) if code(&missing) == Some(NAMESPACE_NOT_FOUND) => return Ok(()),
            indexes => indexes.map_err(classify)?,
        };
        let indexes: Vec<_> = indexes.try_collect().await.map_err(classify)?;
        for index in indexes.into_iter().filter(removes_too_early) {
            let name = index.options.and_then(|options| options.name);
            let name = name.unwrap_or_default();
            if name != FORMER_INDEX {
                let problem = format!(
                    "its TTL index {name} removes locks that are held, or whose fence is ahead of the clock: \
                     drop it"
                );
                return Err(not_prepared(problem));
            }
            match self.locks.durable_writes().await?.drop_index(name).await {
                // Another process has dropped it already.
                Err(gone) if code(&gone) == Some(INDEX_NOT_FOUND) => {}
                dropped => dropped.map_err(classify)?,
            }
        }
        Ok(())
    }
}

fn not_prepared(problem: String) -> Error {
    Error::NotPrepared {
        store: STORE,
        problem,
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

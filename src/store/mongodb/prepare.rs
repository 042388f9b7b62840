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
    error::{INDEX_CONFLICTS, INDEX_NOT_FOUND, STORE, classify, code},
};
use crate::{
    model::{Error, LIMITER_SCHEMA, SCHEMA},
    runtime,
};

/// How long `prepare` may take: to build an index on a collection in use takes time.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The TTL index on `expires_at` that `prepare` made before locks had a date for their clean-up.
const ONCE_OURS: &str = "leasehold_expires_at";

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
    /// [`Error::NotPrepared`] if the collection has another TTL index on `expires_at`: it would remove locks
    /// whose fence is ahead of the clock, and the next fence would be smaller. Drop it.
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
            for index in indexes(this.retention) {
                this.create(index).await?;
            }
            this.without_early_removal().await
        })
        .await
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
        let locks = self.locks.writes().await?;
        match locks.create_index(model).await {
            Ok(_) => Ok(()),
            Err(conflict) if code(&conflict).is_some_and(|at| INDEX_CONFLICTS.contains(&at)) => {
                let change = doc! {
                    "collMod": locks.name(),
                    "index": { "name": index.name, "expireAfterSeconds": seconds as i64 },
                    "writeConcern": self.locks.write_concern().await?,
                };
                let database = locks.client().database(&locks.namespace().db);
                database.run_command(change).await.map_err(classify)?;
                Ok(())
            }
            Err(error) => Err(classify(error)),
        }
    }

    /// Drops the TTL index on `expires_at` that earlier versions created, and refuses any other such index:
    /// both remove a document although its fence is ahead of the clock.
    async fn without_early_removal(&self) -> Result<(), Error> {
        let indexes = self.locks.reads().list_indexes().await.map_err(classify)?;
        let indexes: Vec<_> = indexes.try_collect().await.map_err(classify)?;
        for index in indexes.into_iter().filter(removes_by_expiry) {
            let name = index.options.and_then(|options| options.name);
            let name = name.unwrap_or_default();
            if name != ONCE_OURS {
                let problem = format!(
                    "its TTL index {name} on expires_at removes locks whose fence is ahead of the clock, \
                     drop it"
                );
                return Err(Error::NotPrepared {
                    store: STORE,
                    problem,
                });
            }
            match self.locks.writes().await?.drop_index(name).await {
                // Another process has dropped it already.
                Err(gone) if code(&gone) == Some(INDEX_NOT_FOUND) => {}
                dropped => dropped.map_err(classify)?,
            }
        }
        Ok(())
    }
}

fn removes_by_expiry(index: &IndexModel) -> bool {
    let is_ttl = |options: &IndexOptions| options.expire_after.is_some();
    index.options.as_ref().is_some_and(is_ttl) && index.keys.contains_key("expires_at")
}

/// The TTL indexes. For locks the statements write the date of removal, which includes the retention. For
/// limiters the index adds the retention.
pub(super) fn indexes(retention: Duration) -> [Index; 2] {
    [
        Index {
            name: "leasehold_cleanup_at",
            field: "cleanup_at",
            expires_after: Duration::ZERO,
            ours: doc! { "schema": SCHEMA, "fence": { "$type": "number" } },
        },
        Index {
            name: "leasehold_over_at",
            field: "over_at",
            expires_after: retention,
            ours: doc! { "limiter": LIMITER_SCHEMA },
        },
    ]
}

//! The indexes that remove what is dead.

use std::time::Duration;

use mongodb::{
    IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};

use super::{
    MongoStore,
    concern::majority,
    error::{INDEX_CONFLICTS, code, sorted},
};
use crate::{
    Error, keeper,
    record::{LIMITER_SCHEMA, SCHEMA},
};

/// How long `prepare` may take: an index on a collection that is in use takes its time.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// A TTL index.
pub(super) struct Index {
    pub(super) name: &'static str,
    /// From when on the retention counts.
    pub(super) field: &'static str,
    /// What a later version or somebody else put into the collection is left alone.
    pub(super) ours: Document,
}

impl MongoStore {
    /// Creates the TTL indexes that remove dead locks and limiters, and the collection with them.
    ///
    /// It can be repeated, at every start of the application for example, and by several
    /// processes at once; a changed [`retention`](MongoStore::retention) is taken over. Locking
    /// works without it, but then documents of dead locks stay until a
    /// [`purge`](crate::Leases::purge).
    ///
    /// # Errors
    ///
    /// As [`Error`] says: among others [`Error::Denied`] if the user may not create an index or, for a
    /// changed retention, has no right `collMod`. The locks work all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop what was sent. A repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        let this = self.clone();
        keeper::call("prepare", PREPARE_TIMEOUT, async move {
            for index in indexes() {
                this.create(index).await?;
            }
            Ok(())
        })
        .await
    }

    async fn create(&self, index: Index) -> Result<(), Error> {
        // The index takes whole seconds in 32 bits.
        let seconds = self.retention.as_secs().min(i32::MAX as u64);
        let options = IndexOptions::builder()
            .name(index.name.to_owned())
            .expire_after(Duration::from_secs(seconds))
            .partial_filter_expression(index.ours)
            .build();
        let model = IndexModel::builder()
            .keys(doc! { index.field: 1 })
            .options(options)
            .build();
        match self.locks.create_index(model).await {
            Ok(_) => Ok(()),
            Err(conflict) if code(&conflict).is_some_and(|at| INDEX_CONFLICTS.contains(&at)) => {
                let change = doc! {
                    "collMod": self.locks.name(),
                    "index": { "name": index.name, "expireAfterSeconds": seconds as i64 },
                    "writeConcern": majority(),
                };
                let database = self.locks.client().database(&self.locks.namespace().db);
                database.run_command(change).await.map_err(sorted)?;
                Ok(())
            }
            Err(error) => Err(sorted(error)),
        }
    }
}

pub(super) fn indexes() -> [Index; 2] {
    [
        Index {
            name: "leasehold_expires_at",
            field: "expires_at",
            ours: doc! { "schema": SCHEMA, "fence": { "$type": "number" } },
        },
        Index {
            name: "leasehold_over_at",
            field: "over_at",
            ours: doc! { "limiter": LIMITER_SCHEMA },
        },
    ]
}

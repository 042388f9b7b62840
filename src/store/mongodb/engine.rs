//! What the engine behind a store can do, and so which [dialect](Dialect) the store speaks.

use chrono::{DateTime, Utc};
use mongodb::{
    bson::{Document, doc},
    options::ReturnDocument,
};
use tokio::time::Instant;

use super::{
    MongoStore,
    concern::Deployment,
    dialect::Dialect,
    error::{UNKNOWN_EXPRESSION, classify, has_code, not_prepared},
    statement_clock::{StatementClock, shard_date},
};
use crate::model::Error;

impl MongoStore {
    /// The dialect. Asks the cluster once, if it is a sharded one.
    pub(super) async fn ask_dialect(&self) -> Result<Dialect, Error> {
        if self.locks.ask_deployment().await? != Deployment::Sharded {
            let pipelines = Dialect::Pipelines(StatementClock::Command);
            return Ok(if self.pipelines {
                pipelines
            } else {
                Dialect::Classic
            });
        }
        self.check_routers_when_due().await?;
        let known = *self.sharded.lock();
        if let Some(dialect) = known {
            return Ok(dialect);
        }
        self.ensure_one_document_a_key().await?;
        let has_pipelines = self.pipelines
            && self.ask_whether_shards_have_date().await?
            && !self.ask_whether_documents_are_classic().await?;
        let dialect = if has_pipelines {
            Dialect::Pipelines(StatementClock::ShardDate)
        } else {
            Dialect::Classic
        };
        *self.sharded.lock() = Some(dialect);
        Ok(dialect)
    }

    /// Whether the changes of this store are pipelines; if not, it speaks the [classic
    /// dialect](MongoStore::without_pipelines), and has no TTL index. Asks a sharded cluster once.
    ///
    /// # Errors
    ///
    /// The error with which the server answers, on a sharded cluster also [`Error::Denied`] for a user who may only
    /// read; [`Error::NotPrepared`] for a collection that is sharded by another key than `_id`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn has_pipelines(&self) -> Result<bool, Error> {
        Ok(self.ask_dialect().await? != Dialect::Classic)
    }

    /// The clock for a pipeline that is sent outside of the operations of [`Store`](crate::store::Store).
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] where there are no pipelines.
    pub(super) async fn statement_clock(&self) -> Result<StatementClock, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Ok(clock),
            Dialect::Classic => Err(not_prepared(
                "what was asked for takes an update with a pipeline, which the store does not send here",
            )),
        }
    }

    /// Checks that the collection is not sharded by another key than `_id`: two shards could then each have a document
    /// of one key. The check is left out if the user may not read the cluster's settings.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if it is sharded by another key.
    async fn ensure_one_document_a_key(&self) -> Result<(), Error> {
        let locks = self.locks.reads();
        let collections = self.locks.other_database("config");
        let collections = collections.collection::<Document>("collections");
        let found = collections.find_one(doc! { "_id": locks.namespace().to_string() });
        let found = match found.await.map_err(classify) {
            Err(Error::Denied { .. }) | Ok(None) => return Ok(()),
            Err(error) => return Err(error),
            Ok(Some(found)) => found,
        };
        match found.get_document("key") {
            Ok(key) if !key.keys().eq(["_id"]) => Err(not_prepared(
                "it is sharded by another key than _id, so two shards may have a document of one key each: \
                          give the locks a collection that is sharded by _id, or by none",
            )),
            _ => Ok(()),
        }
    }

    /// Asks whether the shards know `$currentDate`, by a statement that changes nothing. That does not follow from the
    /// server's version alone: the cluster's feature compatibility version may be an older one.
    async fn ask_whether_shards_have_date(&self) -> Result<bool, Error> {
        let update = vec![doc! { "$set": { "touched": shard_date() } }];
        let locks = self.locks.reads();
        let asked = locks
            // No key has this id.
            .find_one_and_update(doc! { "_id": { "leasehold": "clock" } }, update)
            .return_document(ReturnDocument::Before)
            .await;
        match asked {
            Ok(_) => Ok(true),
            Err(error) if has_code(&error, &UNKNOWN_EXPRESSION) => Ok(false),
            Err(error) => Err(classify(error)),
        }
    }

    /// Records the time of the server for estimates. Not on a sharded cluster, where each shard has a clock of its own.
    pub(super) fn record_time(&self, time: DateTime<Utc>) {
        if self.sharded.lock().is_none() {
            self.clock.record_time(time, Instant::now());
        }
    }
}

//! Evictions, removals and purges: the operations that end leases and remove documents.

use std::time::Duration;

use mongodb::options::ReturnDocument;

use super::{decode, error::classify, pipelines::Pipelines, statements};
use crate::{
    messages::Eviction,
    model::{Error, Key},
    rules,
};

impl Pipelines<'_> {
    /// Ends all leases of a key.
    pub(super) async fn evict(self, key: &Key) -> Result<Option<Eviction>, Error> {
        let clock = self.statement_clock;
        let update = clock.update(statements::evict(self.store.retention));
        let locks = self.store.locks.durable_writes().await?;
        let evicted = locks
            .find_one_and_update(statements::filter(key), update)
            .projection(clock.projection())
            .return_document(ReturnDocument::After)
            .await
            .map_err(classify);
        let evicted = match evicted {
            Err(error) => return Err(self.explain_failure(key, error).await),
            Ok(None) => return Ok(None),
            Ok(Some(evicted)) => evicted,
        };
        // An eviction is not sent again, because it would evict a holder that came after it. So its answer may come
        // from the driver's retry, without the time, which it does not need.
        let record = decode::eviction(&evicted, key)?;
        // The expiry that an eviction writes is the server's time.
        self.store.record_time(record.expires_at);
        Ok(Some(rules::answer_evict(&record)))
    }

    /// Removes the document of a key if it is a dead lock. Returns whether it did.
    pub(super) async fn remove_expired(self, key: &Key) -> Result<bool, Error> {
        let expired = self.statement_clock.filter(statements::expired(key));
        let locks = self.store.locks.durable_writes().await?;
        let removed = locks.delete_one(expired).await.map_err(classify)?;
        if removed.deleted_count > 0 {
            return Ok(true);
        }
        self.explain_refusal(key).await?;
        Ok(false)
    }

    /// Removes the locks and limiters that have been dead for `retention`, and returns how many.
    pub(super) async fn purge(self, retention: Duration) -> Result<u64, Error> {
        let mut purged = 0;
        for dead in [
            statements::expired_since(retention),
            statements::over_since(retention),
        ] {
            let locks = self.store.locks.durable_writes().await?;
            let dead = self.statement_clock.filter(dead);
            let removed = locks.delete_many(dead).await.map_err(classify)?;
            purged += removed.deleted_count;
        }
        Ok(purged)
    }
}

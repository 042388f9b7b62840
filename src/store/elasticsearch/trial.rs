//! The lock with which `prepare` tries out an index.
//!
//! An index can meet all conditions of `fitness.rs` and still be of no use: the cluster forbids inline scripts, for
//! example, or something that no condition names changes what is written. So a lock is granted, found, released and
//! removed.

use std::time::Duration;

use super::{index_store::IndexStore, transport::Transport};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, Filter, Grant, ListRequest, ReleaseRequest},
    model::{Error, Key, LeaseId},
    store::Store,
};

/// The owner of the lock, and the beginning of its key.
const OWNER: &str = "leasehold prepare";
/// Longer than any pause between the grant and the search for it.
const TTL: Duration = Duration::from_secs(300);
/// How often the removal is asked for. The document can be removed as soon as the clock has passed its fence, which is
/// the millisecond of the grant.
const REMOVALS: usize = 10;

impl<C: Transport> IndexStore<C> {
    /// Grants, finds, releases and removes the lock of a key that nobody else has.
    ///
    /// A user who may create an index but not write to it cannot try that out. That is no error, because other users
    /// may use the locks.
    pub(super) async fn try_lock(&self) -> Result<(), Error> {
        let key = Key::new(format!("{OWNER} {}", LeaseId::random()))?;
        let request = AcquireRequest::exclusive(key, LeaseId::random(), OWNER.into(), TTL);
        let tried = match self.acquire(&request).await {
            Ok(AcquireAnswer::Granted(grant)) => self.find(&request, &grant).await,
            Ok(_) => Err(self.malformed("nobody has the key, and it is not granted")),
            Err(Error::Denied { .. }) => return Ok(()),
            Err(error) if !error.is_ambiguous() => return Err(error),
            Err(error) => Err(error),
        };
        let removed = self.remove(&request).await;
        tried.and(removed)
    }

    /// Whether a search finds the lock as it was granted.
    async fn find(&self, request: &AcquireRequest, grant: &Grant) -> Result<(), Error> {
        let key = &request.key;
        let filter = Filter::new().prefix(key.as_str());
        let page = match self.list(&ListRequest::new(filter, None, 1)).await {
            // This user may write, and not search.
            Err(Error::Denied { .. }) => return Ok(()),
            page => page?,
        };
        let Some(found) = page.locks.iter().find(|lock| lock.key == *key) else {
            return Err(self.last_server().not_prepared(
                "a search of its index does not find a lock that was just granted, so that lists and purges miss locks",
            ));
        };
        let is_it = found.fence == grant.fence
            && found.holders.iter().any(|holder| {
                holder.lease == request.lease
                    && holder.fence == grant.fence
                    && holder.expires_at == grant.expires_at
            });
        if is_it {
            return Ok(());
        }
        Err(self.last_server().not_prepared(
            "its index does not keep a lock as it was granted, so that two may hold one key: look for what changes \
             documents that are written there",
        ))
    }

    async fn remove(&self, request: &AcquireRequest) -> Result<(), Error> {
        let release = ReleaseRequest::new(request.key.clone(), request.lease);
        self.release(&release).await?;
        for _ in 0..REMOVALS {
            if self.remove_expired(&request.key).await? {
                break;
            }
        }
        Ok(())
    }
}

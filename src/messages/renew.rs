//! The request for a renewal, and its answer.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::acquire::Grant;
use crate::model::{Cause, Error, Fence, Key, LeaseId};

/// A request of [`Store::renew`](crate::Store::renew), for one lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The key.
    pub key: Key,
    /// The id of the lease.
    pub lease: LeaseId,
    /// How long the lease lives from now on, at least, in whole milliseconds.
    pub ttl: Duration,
    /// What the holder knows of its grant, if the lease is exclusive and its acquire was sent only once. No other grant
    /// can then have the same lease id, so a store may answer that the lease was renewed without reading its document.
    pub known: Option<KnownGrant>,
}

/// What the holder of a lease knows of its grant. A lease id is used for one key only, so a store can find the document
/// by the id alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownGrant {
    /// The fencing token.
    pub fence: Fence,
    /// When the lease was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
}

impl RenewRequest {
    /// A request to renew a lease.
    pub fn new(key: Key, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            known: None,
        }
    }

    /// The same request for an exclusive lease whose grant is [known](RenewRequest#structfield.known).
    pub fn known(mut self, grant: KnownGrant) -> Self {
        self.known = Some(grant);
        self
    }
}

/// The answers of [`Store::renew`](crate::Store::renew), in the order of the requests.
pub type RenewAnswers = Vec<Result<RenewAnswer, Error>>;

/// The answer to one request of [`Store::renew`](crate::Store::renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The lease lives until the expiry of this grant. That is later than a ttl from now if an earlier renewal gave it
    /// more time.
    Renewed(Grant),
    /// The lease has expired. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

/// The most renewals in one call. One command with this many does not delay the other commands of the database. Even
/// with keys of [`MAX_KEY_BYTES`](crate::limits::MAX_KEY_BYTES) it is smaller than a megabyte. On search engines each
/// renewal has its script, so it may have several megabytes.
pub const MAX_RENEWALS: usize = 1_000;

/// The answer to the only request of a call.
pub(crate) fn only_renewal(answers: Result<RenewAnswers, Error>) -> Result<RenewAnswer, Error> {
    answers?.pop().unwrap_or_else(|| Err(renewal_left_out()))
}

/// The error of a renewal that has no answer in the answer of its call.
pub(crate) fn renewal_left_out() -> Error {
    Error::Store {
        store: "the store",
        source: Cause::text("it left a renewal without an answer"),
    }
}

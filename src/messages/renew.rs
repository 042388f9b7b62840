//! The question for a renewal, and its answer.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::acquire::Grant;
use crate::model::{Cause, Error, Fence, Key, LeaseId};

/// A question of [`Store::renew`](crate::Store::renew).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// How long the grant lives from now at least, in whole milliseconds.
    pub ttl: Duration,
    /// What the holder knows of an exclusive grant whose acquire was sent only once. No other grant can then
    /// have the same lease id, and a store may answer that this one was renewed without reading its document.
    pub known: Option<KnownGrant>,
}

/// What the holder of a lease knows of its grant. No two keys have a lease of the same id, so that the id alone
/// tells which document is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownGrant {
    /// The fencing token.
    pub fence: Fence,
    /// When it was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
}

impl RenewRequest {
    /// A request to renew.
    pub fn new(key: Key, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            known: None,
        }
    }

    /// The same for an exclusive grant that is [known](RenewRequest::known).
    pub fn known(mut self, grant: KnownGrant) -> Self {
        self.known = Some(grant);
        self
    }
}

/// The answers of [`Store::renew`](crate::Store::renew), in the order of the requests.
pub type RenewAnswers = Vec<Result<RenewAnswer, Error>>;

/// An answer of [`Store::renew`](crate::Store::renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The lease lives on, until the expiry that the grant tells: later than a ttl from now if it had
    /// been renewed for longer before.
    Renewed(Grant),
    /// The lease is over: it was not renewed in time. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

/// How many renewals are asked for in one call: as many as go into one command of a database without
/// holding up others. With keys of [`MAX_KEY_BYTES`](crate::limits::MAX_KEY_BYTES) that is less than a megabyte.
pub const MAX_RENEWALS: usize = 1_000;

/// The answer to a single renewal.
pub(crate) fn only_renewal(answers: Result<RenewAnswers, Error>) -> Result<RenewAnswer, Error> {
    answers?.pop().unwrap_or_else(|| Err(renewal_left_out()))
}

/// Why a renewal has no answer although its call has.
pub(crate) fn renewal_left_out() -> Error {
    Error::Store {
        store: "the store",
        source: Cause::text("it left a renewal without an answer"),
    }
}

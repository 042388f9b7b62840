//! The question for another mode, and its answer.

use super::acquire::Grant;
use crate::model::{Conversion, Held, Key, LeaseId};

/// A question of [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// The mode that it is to have.
    pub conversion: Conversion,
}

impl ConvertRequest {
    /// A request to make a shared grant exclusive.
    pub fn upgrade(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            conversion: Conversion::Upgrade,
        }
    }

    /// A request to make an exclusive grant shared.
    pub fn downgrade(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            conversion: Conversion::Downgrade,
        }
    }
}

/// An answer of [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertAnswer {
    /// The lease has the mode that was asked for: now, or since an earlier request.
    Converted(Grant),
    /// Others are live, so it stays as it is. Nothing was written.
    Held(Held),
    /// The lease is over: it was not renewed in time. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

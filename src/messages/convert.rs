//! The request to change the mode of a lease, and its answer.

use super::acquire::Grant;
use crate::model::{Conversion, Held, Key, LeaseId};

/// A request of [`Store::convert`](crate::Store::convert): to change the mode of a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The key.
    pub key: Key,
    /// The id of the lease.
    pub lease: LeaseId,
    /// The change: an upgrade or a downgrade.
    pub conversion: Conversion,
}

impl ConvertRequest {
    /// A request to make a shared lease exclusive.
    pub fn upgrade(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            conversion: Conversion::Upgrade,
        }
    }

    /// A request to make an exclusive lease shared.
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
    /// The lease has the wanted mode, by this request or an earlier one.
    Converted(Grant),
    /// Other holders are live, so the lease keeps its mode. Nothing was written.
    Held(Held),
    /// The lease has expired. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

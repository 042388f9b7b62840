//! The request for permits of a limiter, its answer, and the request that gives permits back.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{Key, PermitId, PermitsLeft, Quota};

/// A request of [`Store::permit`](crate::Store::permit).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PermitRequest {
    /// The key of the limiter. A lock with the same key does not affect it.
    pub key: Key,
    /// The id of the request. It is new for each request, and the same in its retries.
    pub id: PermitId,
    /// How much the limiter lets through.
    pub quota: Quota,
    /// How many permits one caller wants. It gets all of them or none. At least 1, and at most
    /// [`Quota::most_at_once`](crate::store::Quota::most_at_once).
    pub permits: u32,
    /// How many callers the request asks for, at least 1. The store grants `permits` to each caller that the limiter
    /// has room for.
    pub times: u32,
}

impl PermitRequest {
    /// A request of one caller for this many permits.
    pub fn new(key: Key, id: PermitId, quota: Quota, permits: u32) -> Self {
        Self {
            key,
            id,
            quota,
            permits,
            times: 1,
        }
    }

    /// The same request, for up to this many callers.
    pub fn up_to(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// An answer of [`Store::permit`](crate::Store::permit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitAnswer {
    /// Permits were granted, by this request or by an earlier one with the same id in the same window.
    Granted {
        /// How many permits were granted: a multiple of the request's `permits`.
        permits: u32,
        /// When they were granted, on the server's clock.
        granted_at: DateTime<Utc>,
        /// How long it takes until the permits for one more caller are back; zero if they are there already.
        retry_in: Duration,
        /// What is left after the grant.
        left: PermitsLeft,
    },
    /// The limiter has no room for the permits of one caller. Nothing was written.
    Full {
        /// How long it takes until they are back, counted from the time of the server when it answered.
        retry_in: Duration,
        /// What is left: fewer permits than one caller wants.
        left: PermitsLeft,
    },
}

/// A request of [`Store::give_back`](crate::Store::give_back).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GiveBackRequest {
    /// The key of the limiter.
    pub key: Key,
    /// The quota by which the permits were granted.
    pub quota: Quota,
    /// How many permits are given back.
    pub permits: u32,
    /// When they were granted, on the server's clock.
    pub granted_at: DateTime<Utc>,
}

impl GiveBackRequest {
    /// A request that gives back this many permits.
    pub fn new(key: Key, quota: Quota, permits: u32, granted_at: DateTime<Utc>) -> Self {
        Self {
            key,
            quota,
            permits,
            granted_at,
        }
    }
}

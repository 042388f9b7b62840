//! The question to a limiter, and its answer.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{Key, PermitId, Quota};

/// A question of [`Store::permit`](crate::Store::permit).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PermitRequest {
    /// The key of the limiter. Locks of the same key have nothing to do with it.
    pub key: Key,
    /// The name of the grant, new for each request and the same in its retries.
    pub id: PermitId,
    /// How much the limiter lets through.
    pub quota: Quota,
    /// How many permits belong together; at least 1, and at most what the quota has at once.
    pub permits: u32,
    /// How many times they are asked for; at least 1. As many times as there is room for are granted.
    pub times: u32,
}

impl PermitRequest {
    /// A request for so many permits, once.
    pub fn new(key: Key, id: PermitId, quota: Quota, permits: u32) -> Self {
        Self {
            key,
            id,
            quota,
            permits,
            times: 1,
        }
    }

    /// The same for up to so many times the permits.
    pub fn up_to(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// An answer of [`Store::permit`](crate::Store::permit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitAnswer {
    /// Permits were granted: now, or by an earlier request with the same name in the same window.
    Granted {
        /// How many: a multiple of those that belong together.
        permits: u32,
        /// When, on the server's clock.
        granted_at: DateTime<Utc>,
        /// How long until there are as many once more as belong together; zero if there are.
        retry_in: Duration,
    },
    /// There is no room for them. Nothing was written.
    Full {
        /// How long until there is, on the server's clock as it answered.
        retry_in: Duration,
    },
}

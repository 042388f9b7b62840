//! Locks and limiters as they are stored: one document a key, the same in every store.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{
    fence::Fence,
    ids::{LeaseId, PermitId},
    key::Key,
    mode::Mode,
};

/// One grant within a lock's document.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The name of the grant.
    pub lease: LeaseId,
    /// Who holds it: the text given to [`LeasesBuilder::owner`](crate::LeasesBuilder::owner).
    pub owner: Arc<str>,
    /// What it allows beside itself.
    pub mode: Mode,
    /// How many permits it takes; 1 unless the mode is [`Mode::Permits`].
    pub permits: i64,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// When it was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When it ends unless it is renewed, on the server's clock. It is live before this instant.
    pub expires_at: DateTime<Utc>,
    /// A remark for people.
    pub note: Option<Arc<str>>,
}

impl Holder {
    /// An exclusive holder: what a store puts together from the fields of a document.
    pub fn exclusive(
        lease: LeaseId,
        owner: Arc<str>,
        fence: Fence,
        acquired_at: DateTime<Utc>,
        expires_at: DateTime<Utc>,
    ) -> Self {
        Self {
            lease,
            owner,
            mode: Mode::Exclusive,
            permits: 1,
            fence,
            acquired_at,
            expires_at,
            note: None,
        }
    }

    /// Whether the grant still counts at this time of the server's clock.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.expires_at > now
    }
}

/// The document of one key.
///
/// A released lock keeps its document, without holders, so that its fence survives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRecord {
    /// The key.
    pub key: Key,
    /// The fencing token of the newest grant. It never decreases.
    pub fence: Fence,
    /// The grants, oldest first. Those that have expired stay until the next grant.
    pub holders: Vec<Holder>,
    /// The latest expiry among the holders; without holders, the time of the release. From here
    /// on the key is free, and clean-up counts its retention from here.
    pub expires_at: DateTime<Utc>,
    /// Those whose lease the last operation ended by force, as they were: it tells who was evicted, and
    /// nothing else looks at it. A grant drops it. A store that reads the document for another
    /// operation may leave it empty.
    pub evicted: Vec<Holder>,
}

impl LockRecord {
    /// Puts a record together, without evicted holders.
    pub fn new(key: Key, fence: Fence, holders: Vec<Holder>, expires_at: DateTime<Utc>) -> Self {
        Self {
            key,
            fence,
            holders,
            expires_at,
            evicted: Vec::new(),
        }
    }

    /// The holders that still count at this time of the server's clock.
    pub fn live_holders(&self, now: DateTime<Utc>) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(move |holder| holder.is_live(now))
    }
}

/// The document of one limiter: of a key, for windows of one length and kind. It says what is used up,
/// and nothing of how much there is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterRecord {
    /// The key.
    pub key: Key,
    /// When the newest grant was made, on the server's clock.
    pub granted_at: DateTime<Utc>,
    /// What is used up. Of fixed windows, how many permits of the window of the newest grant; of smooth
    /// ones, how long it takes from the newest grant on until all is earned back, in nanoseconds.
    pub used: i64,
    /// The name of the newest grant.
    pub last: PermitId,
    /// How many permits it has.
    pub granted: i64,
    /// From here on the document means nothing, and clean-up counts its retention from here.
    pub over_at: DateTime<Utc>,
}

impl LimiterRecord {
    /// Puts a record together.
    pub fn new(
        key: Key,
        granted_at: DateTime<Utc>,
        used: i64,
        (last, granted): (PermitId, i64),
        over_at: DateTime<Utc>,
    ) -> Self {
        Self {
            key,
            granted_at,
            used,
            last,
            granted,
            over_at,
        }
    }
}

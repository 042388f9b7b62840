//! Locks and limiters as they are stored: one document a key, the same in every store.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Fence, Key};

/// The version of the shape of a lock's document that this crate reads and writes.
pub const SCHEMA: i64 = 1;

/// The version of the shape of a limiter's document that this crate reads and writes.
#[cfg(any(
    feature = "mongodb",
    feature = "elasticsearch",
    feature = "opensearch",
    feature = "sqlite"
))]
pub(crate) const LIMITER_SCHEMA: i64 = 1;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A name that no other grant has.
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// Reads the form that [`Display`](fmt::Display) writes; `None` if it is not a UUID.
            pub fn parse(text: &str) -> Option<Self> {
                Uuid::try_parse(text).ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.as_hyphenated(), f)
            }
        }
    };
}

name! {
    /// The name of one grant.
    ///
    /// The client makes it before it asks and keeps it through its retries, so that a repeated
    /// request is recognised and a release can only ever free the grant that it belongs to.
    LeaseId
}

name! {
    /// The name of one grant of a limiter.
    ///
    /// The client makes it before it asks and keeps it through its retries, so that a repeated
    /// request is recognised.
    PermitId
}

/// What a holder allows beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other shared holders.
    Shared,
    /// With other holders of permits, up to a capacity.
    Permits,
}

impl Mode {
    /// The word that stands in the document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits => "permits",
        }
    }

    /// Reads the word that stands in a document; `None` if this version does not know it.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared, Self::Permits]
            .into_iter()
            .find(|mode| mode.as_str() == text)
    }
}

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
    /// Puts a record together, of which nobody was evicted.
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

/// The time a while after another, at the resolution of the stores; the end of time if there is
/// no such time.
pub(crate) fn after(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by)
        .ok()
        .and_then(|by| at.checked_add_signed(by))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
        .trunc_subsecs(3)
}

/// How long from one time to another; zero if it is not later.
pub(crate) fn between(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_and_a_lease_id_read_back_what_they_write() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits] {
            assert_eq!(Mode::parse(mode.as_str()), Some(mode));
        }
        assert_eq!(Mode::parse("EXCLUSIVE"), None);
        let id = LeaseId::random();
        assert_eq!(LeaseId::parse(&id.to_string()), Some(id));
        assert_eq!(LeaseId::parse("not a lease"), None);
    }

    #[test]
    fn times_saturate() {
        let now = DateTime::<Utc>::UNIX_EPOCH;
        assert_eq!(after(now, Duration::from_millis(5)).timestamp_millis(), 5);
        assert!(after(now, Duration::MAX) > now);
        assert_eq!(
            between(after(now, Duration::from_secs(1)), now),
            Duration::ZERO
        );
        assert_eq!(
            between(now, after(now, Duration::from_secs(1))),
            Duration::from_secs(1)
        );
        let span = between(DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
        assert!(span > Duration::from_secs(1));
    }
}

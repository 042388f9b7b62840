//! The bounds of what may be asked for, and the versions of what is stored.

use std::time::Duration;

/// The text in the field `schema` that tells the document of a lock from any other. It ends with the version of the
/// shape of the document that this crate reads and writes.
pub const SCHEMA: &str = "leasehold.lock.1";

/// The end of the fences: each is below this number, up to which also those languages count exactly that have only
/// floating-point numbers. It is the time of the year 287,396, in milliseconds.
#[cfg(any(
    feature = "mongodb",
    feature = "elasticsearch",
    feature = "opensearch",
    feature = "sqlite"
))]
pub(crate) const FENCE_END: i64 = 1 << 53;

/// The version of the shape of a limiter's document that this crate reads and writes.
#[cfg(any(
    feature = "mongodb",
    feature = "elasticsearch",
    feature = "opensearch",
    feature = "sqlite"
))]
pub(crate) const LIMITER_SCHEMA: i64 = 1;

/// The longest key, in bytes of UTF-8. Elasticsearch refuses a longer `_id`, and every store keeps
/// to the same bound so that a key which works on one works on all.
pub const MAX_KEY_BYTES: usize = 512;

/// The longest name of an owner, in bytes of UTF-8: it is looked for as a whole, and shown to people.
pub const MAX_OWNER_BYTES: usize = 512;

/// The longest remark of a holder, in bytes of UTF-8: a line for people, which goes along with every
/// answer.
pub const MAX_NOTE_BYTES: usize = 1_024;

/// The most live holders of one key: its shared leases, or those with permits.
///
/// All of them stand in one document, which each grant, renewal and release writes anew and each answer
/// shows. A holder with the longest owner and note has some 1.7 KB, so that many stay far below the
/// 16 MB that MongoDB takes, and the server is not kept busy with one key.
pub const MAX_HOLDERS: usize = 1_000;

/// The longest time to live: 365 days. A lease meant to outlast it is not a lease.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest window of a limiter: 365 days.
pub const MAX_WINDOW: Duration = MAX_TTL;

//! The bounds of keys, names, times and holders, and the versions of the stored documents.

use std::time::Duration;

/// The text in the field `schema` of the document of each lock, by which a store recognises a lock. It ends with the
/// version of the format that this crate reads and writes.
pub const SCHEMA: &str = "leasehold.lock.1";

/// The end of the fences: each fence is below this number. Languages that have only floating-point numbers are exact up
/// to it. A clock reaches it in the year 2248.
pub(crate) const FENCE_END: i64 = 1 << 53;

/// How many fences there are for each millisecond of the clock. The first fence of a key is the time, in this unit. So
/// the fences of a key stay behind the clock as long as it takes no more than a million of them a second.
pub(crate) const FENCES_PER_MILLI: i64 = 1_024;

/// The version of the format of a limiter's document that this crate reads and writes.
#[allow(dead_code, reason = "the store in memory has no documents")]
pub(crate) const LIMITER_SCHEMA: i64 = 1;

/// The end of what a limiter can have used, in the unit of its kind. It is far more than the nanoseconds of a year.
#[allow(dead_code, reason = "the store in memory has no documents")]
pub(crate) const USED_END: i64 = 1 << 62;

/// The longest key, in bytes of UTF-8. Elasticsearch refuses a longer `_id`. Every store has the same bound, so that a
/// key which works on one store works on all.
pub const MAX_KEY_BYTES: usize = 512;

/// The longest name of an owner, in bytes of UTF-8.
pub const MAX_OWNER_BYTES: usize = 512;

/// The longest note of a holder, in bytes of UTF-8. It is bounded because each answer about the key contains it.
pub const MAX_NOTE_BYTES: usize = 1_024;

/// The most live holders of one key: its shared leases, or its leases with permits.
///
/// All holders of a key are in one document. Each grant, renewal and release writes the whole document, and each answer
/// contains it. A holder with the longest owner and note takes some 1.7 KB, so a thousand of them stay far below the
/// 16 MB that MongoDB allows, and one key does not keep the server busy.
pub const MAX_HOLDERS: usize = 1_000;

/// The most places in the queue of one key. Further processes have no place, and ask from time to time.
///
/// A place with the longest owner takes some 0.7 KB, and each answer about the key contains all places.
pub const MAX_PLACES: usize = 100;

/// The longest time for which a place counts without being renewed.
pub const MAX_PLACE_TIME: Duration = Duration::from_secs(60);

/// The longest time to live: 365 days.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest window of a limiter: 365 days.
pub const MAX_WINDOW: Duration = MAX_TTL;

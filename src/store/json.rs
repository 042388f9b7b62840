//! A lock and a limiter as JSON documents, read and not trusted.
//!
//! Elasticsearch and OpenSearch store them so, and so do the rows of an SQLite file. Times are in
//! milliseconds since 1970.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(feature = "sqlite")]
use serde_json::json;

use crate::model::{
    Error, Fence, Holder, Key, LIMITER_SCHEMA, LeaseId, LimiterRecord, LockRecord, Mode, PermitId,
    SCHEMA,
};

/// The document of a lock.
#[derive(Deserialize, Serialize)]
struct Lock {
    schema: i64,
    fence: i64,
    holders: Vec<LockHolder>,
    expires_at: i64,
    /// Only the answer to an eviction reads it: see [`evicted`].
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<LockHolder>,
}

#[derive(Deserialize, Serialize)]
struct LockHolder {
    lease: String,
    owner: String,
    mode: String,
    permits: i64,
    fence: i64,
    acquired_at: i64,
    expires_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The document of a limiter.
#[derive(Deserialize, Serialize)]
struct Limiter {
    limiter: i64,
    key: String,
    granted_at: i64,
    used: i64,
    last: String,
    granted: i64,
    over_at: i64,
}

/// Reads the document of a lock.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALock`] for anything
/// else that is not a lock.
pub(crate) fn lock(document: &Value, key: &Key) -> Result<LockRecord, Error> {
    let damaged = |problem: String| Error::NotALock {
        key: key.clone(),
        problem,
    };
    known(&document["schema"], SCHEMA, key, damaged)?;
    let stored = Lock::deserialize(document).map_err(|error| damaged(error.to_string()))?;
    Ok(LockRecord::new(
        key.clone(),
        Fence::new(stored.fence),
        holders(stored.holders, &damaged)?,
        time(stored.expires_at).map_err(damaged)?,
    ))
}

/// Reads the evicted holders from the document of a lock as the eviction left it.
///
/// # Errors
///
/// [`Error::NotALock`] if the document does not say it.
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub(crate) fn evicted(document: &Value, key: &Key) -> Result<Vec<Holder>, Error> {
    let damaged = |problem: String| Error::NotALock {
        key: key.clone(),
        problem,
    };
    let stored = Vec::deserialize(&document["evicted"]);
    let stored = stored.map_err(|error| damaged(format!("who was evicted: {error}")))?;
    holders(stored, &damaged)
}

fn holders(
    stored: Vec<LockHolder>,
    damaged: &impl Fn(String) -> Error,
) -> Result<Vec<Holder>, Error> {
    let holders = stored.into_iter().map(|stored| {
        let lease = LeaseId::parse(&stored.lease);
        let mut holder = Holder::exclusive(
            lease.ok_or_else(|| damaged("a lease is no UUID".to_owned()))?,
            stored.owner.into(),
            Fence::new(stored.fence),
            time(stored.acquired_at).map_err(damaged)?,
            time(stored.expires_at).map_err(damaged)?,
        );
        let mode = Mode::parse(&stored.mode);
        holder.mode = mode.ok_or_else(|| damaged("a mode is not known here".to_owned()))?;
        holder.permits = stored.permits;
        holder.note = stored.note.map(Into::into);
        Ok(holder)
    });
    holders.collect()
}

/// Reads the document of a limiter.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALimiter`] for
/// anything else that is not the limiter of this key.
pub(crate) fn limiter(document: &Value, key: &Key) -> Result<LimiterRecord, Error> {
    let damaged = |problem: String| Error::NotALimiter {
        key: key.clone(),
        problem,
    };
    known(&document["limiter"], LIMITER_SCHEMA, key, damaged)?;
    let stored = Limiter::deserialize(document).map_err(|error| damaged(error.to_string()))?;
    if stored.key != key.as_str() {
        return Err(damaged("it is the document of another key".to_owned()));
    }
    let last = PermitId::parse(&stored.last);
    let last = last.ok_or_else(|| damaged("its last grant is no UUID".to_owned()))?;
    Ok(LimiterRecord::new(
        key.clone(),
        time(stored.granted_at).map_err(damaged)?,
        stored.used,
        (last, stored.granted),
        time(stored.over_at).map_err(damaged)?,
    ))
}

/// Whether a document has the schema that this version reads.
fn known(
    schema: &Value,
    ours: i64,
    key: &Key,
    damaged: impl Fn(String) -> Error,
) -> Result<(), Error> {
    match schema.as_i64() {
        Some(schema) if schema == ours => Ok(()),
        Some(found) => Err(Error::UnsupportedSchema {
            key: key.clone(),
            found,
        }),
        None => Err(damaged("it has no schema number".to_owned())),
    }
}

fn time(millis: i64) -> Result<DateTime<Utc>, String> {
    DateTime::from_timestamp_millis(millis).ok_or_else(|| format!("{millis} is no time"))
}

/// The document of a lock, for a store that writes it as a whole.
#[cfg(feature = "sqlite")]
pub(crate) fn of_lock(lock: &LockRecord) -> Value {
    let of_holder = |holder: &Holder| LockHolder {
        lease: holder.lease.to_string(),
        owner: holder.owner.to_string(),
        mode: holder.mode.as_str().to_owned(),
        permits: holder.permits,
        fence: holder.fence.get(),
        acquired_at: holder.acquired_at.timestamp_millis(),
        expires_at: holder.expires_at.timestamp_millis(),
        note: holder.note.as_deref().map(str::to_owned),
    };
    json!(Lock {
        schema: SCHEMA,
        fence: lock.fence.get(),
        holders: lock.holders.iter().map(of_holder).collect(),
        expires_at: lock.expires_at.timestamp_millis(),
        evicted: lock.evicted.iter().map(of_holder).collect(),
    })
}

/// The document of a limiter, for a store that writes it as a whole.
#[cfg(feature = "sqlite")]
pub(crate) fn of_limiter(limiter: &LimiterRecord) -> Value {
    json!(Limiter {
        limiter: LIMITER_SCHEMA,
        key: limiter.key.to_string(),
        granted_at: limiter.granted_at.timestamp_millis(),
        used: limiter.used,
        last: limiter.last.to_string(),
        granted: limiter.granted,
        over_at: limiter.over_at.timestamp_millis(),
    })
}

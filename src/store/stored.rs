//! Decides whether a stored document is a lock, and reads its holders.
//!
//! Each database has its own types, so a store gives access to its documents by [`Fields`]. The rule is the same for
//! all databases, and the statements of each dialect check the same before they change a document:
//!
//! - A document is a lock if `schema` is [`SCHEMA`], `fence` is a number below [`FENCE_END`], and `expires_at` is a
//!   time. A missing fence counts as 0.
//! - The key is free if `expires_at` is missing or past. No other field decides then.
//! - Otherwise the lease in `lease` holds the key, or, if there is no `lease`, those in `holders`. If one of them has
//!   no valid lease id, mode, number of permits, fence or expiry, if two of them have the same lease id, or if the
//!   latest expiry in the list is not `expires_at`, the document is damaged, and is not a lock.
//! - Owner, note and the time of a grant decide nothing. An invalid one counts as missing.
//! - `done` needs a valid kind, tick and end. Otherwise it is unreadable. Its other fields count as missing if they are
//!   invalid.
//! - A place in `waiters` without a valid id, mode, number of permits or time counts as missing.
//!
//! A document is a limiter if `limiter` is [`LIMITER_SCHEMA`], `granted_at` is a time, and `used` and `granted` are
//! numbers from 0 to below [`USED_END`]. An invalid `last` or `over_at` counts as missing.

use std::collections::HashSet;

use chrono::{DateTime, Utc};

use crate::model::{
    Done, Error, FENCE_END, Fence, Holder, Key, LIMITER_SCHEMA, LastDone, LeaseId, LimiterRecord,
    LockRecord, Mode, PermitId, Place, SCHEMA, Tick, TickKind, USED_END,
};

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field<T> {
    /// The field is missing or null.
    Missing,
    /// The field has the type that was asked for.
    Is(T),
    /// The field has another type.
    Wrong,
}

impl<T> Field<T> {
    fn or_missing(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Missing | Self::Wrong => None,
        }
    }

    fn required(self, field: &'static str) -> Result<T, Damage> {
        self.or_missing().ok_or(field)
    }

    fn optional(self, field: &'static str) -> Result<Option<T>, Damage> {
        match self {
            Self::Wrong => Err(field),
            other => Ok(other.or_missing()),
        }
    }

    /// The value as this function reads it.
    fn parsed<U>(self, parse: impl Fn(T) -> Option<U>, field: &'static str) -> Result<U, Damage> {
        self.or_missing().and_then(parse).ok_or(field)
    }
}

/// The fields of a document, in the types of its database.
pub(super) trait Fields: Sized {
    /// A text.
    fn text(&self, field: &str) -> Field<&str>;
    /// A number, without its fraction.
    fn number(&self, field: &str) -> Field<i64>;
    /// A number, as near as a double can be.
    fn float(&self, field: &str) -> Field<f64>;
    /// A whole number.
    fn whole(&self, field: &str) -> Field<i64>;
    /// A time. A time beyond the calendar becomes the first or the last time of the calendar.
    fn time(&self, field: &str) -> Field<DateTime<Utc>>;
    /// A document, as the value of a field.
    fn document(&self, field: &str) -> Field<Self>;
    /// A list of documents. An element that is not a document counts as one without fields.
    fn list(&self, field: &str) -> Field<Vec<Self>>;
}

/// A lock that was read from a document, before it is known whether its holders are live.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    record: LockRecord,
    damage: Option<Damage>,
}

/// The name of a field that is missing or malformed.
type Damage = &'static str;

impl Found {
    /// The lock at this time.
    ///
    /// # Errors
    ///
    /// [`Error::NotALock`] if the key is held, and the document is damaged.
    pub(crate) fn at(self, now: DateTime<Utc>) -> Result<LockRecord, Error> {
        match self.damage {
            Some(damage) if self.record.expires_at > now => {
                Err(not_a_lock(&self.record.key, damage))
            }
            _ => Ok(self.record),
        }
    }

    /// The lock, if the time is not known. A damaged document with an expiry is then an error, whatever the expiry is.
    #[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
    pub(crate) fn at_any_time(self) -> Result<LockRecord, Error> {
        self.at(DateTime::<Utc>::MIN_UTC)
    }

    /// When this lease was granted, if it is among the holders.
    #[cfg(feature = "mongodb")]
    pub(crate) fn granted_at(&self, lease: LeaseId) -> Option<DateTime<Utc>> {
        let mut holders = self.record.holders.iter();
        holders
            .find(|holder| holder.lease == lease)
            .map(|mine| mine.acquired_at)
    }
}

/// Reads a document as a lock.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for a document of another version, [`Error::NotALock`] for anything else that is not
/// a lock.
pub(super) fn lock(document: &impl Fields, key: &Key) -> Result<Found, Error> {
    match document.text("schema") {
        Field::Is(SCHEMA) => {}
        Field::Is(other) if other.starts_with(SCHEMA_FAMILY) => {
            return Err(Error::UnsupportedSchema {
                key: key.clone(),
                found: other.to_owned(),
            });
        }
        _ => return Err(not_a_lock(key, "schema")),
    }
    read(document, key).map_err(|damage| not_a_lock(key, damage))
}

/// The text with which the schemas of all versions begin.
const SCHEMA_FAMILY: &str = "leasehold.lock.";

fn read(document: &impl Fields, key: &Key) -> Result<Found, Damage> {
    let fence = fence(document)?;
    let expires_at = document.time("expires_at").optional("expires_at")?;
    let released_at = document.time("released_at").or_missing();
    let free_since = released_at.unwrap_or(DateTime::UNIX_EPOCH);
    // The holders of a free key are read as well: the answer to a late renewal depends on them.
    let until = expires_at.unwrap_or(DateTime::UNIX_EPOCH);
    let (mut holders, mut damage) = match holders(document, fence, until) {
        Ok(holders) => (holders, None),
        Err(damage) => (Vec::new(), Some(damage)),
    };
    let last = holders.iter().map(|holder| holder.expires_at).max();
    if last != expires_at {
        damage = damage.or(Some("holders"));
    }
    // In the document of a free key, a holder may have a later expiry, because a person has freed the key.
    for holder in &mut holders {
        holder.expires_at = holder.expires_at.min(until);
    }
    // Without an expiry the key is free, whatever the list says.
    damage = damage.filter(|_| expires_at.is_some());
    let expires_at = expires_at.unwrap_or(free_since);
    let mut record = LockRecord::new(key.clone(), fence, holders, expires_at);
    record.waiters = places(document);
    record.done = last_done(document);
    Ok(Found { record, damage })
}

/// The processes that wait.
fn places(document: &impl Fields) -> Vec<Place> {
    let entries = document.list("waiters").or_missing();
    let entries = entries.iter().flatten();
    entries.filter_map(place).collect()
}

fn place(entry: &impl Fields) -> Option<Place> {
    let mode = Mode::parse(entry.text("mode").or_missing()?)?;
    let permits = entry.whole("permits").or_missing()?;
    Some(Place::new(
        LeaseId::parse(entry.text("waiter").or_missing()?)?,
        entry.text("owner").or_missing().unwrap_or_default().into(),
        (mode, permits),
        entry.time("since").or_missing()?,
        entry.time("until").or_missing()?,
    ))
}

/// The newest done tick.
fn last_done(document: &impl Fields) -> LastDone {
    match document.document("done") {
        Field::Missing => LastDone::Nothing,
        Field::Wrong => LastDone::Unreadable,
        Field::Is(fields) => done(&fields).map_or(LastDone::Unreadable, LastDone::Tick),
    }
}

fn done(fields: &impl Fields) -> Option<Done> {
    let kind = TickKind::parse(fields.text("kind").or_missing()?)?;
    let tick = Tick::stored(kind, fields.whole("tick").or_missing()?);
    let until = fields.time("until").or_missing()?;
    let lease = fields.text("lease").or_missing().and_then(LeaseId::parse);
    let by = fields.text("by").or_missing().unwrap_or_default();
    let at = fields.time("at").or_missing();
    let lease = lease.unwrap_or(LeaseId::NONE);
    let at = at.unwrap_or(DateTime::UNIX_EPOCH);
    Some(Done::new(tick, (lease, by.into()), at, until))
}

/// Reads the evicted holders from the document of a lock, as the eviction left it.
///
/// # Errors
///
/// [`Error::NotALock`] if the field is missing or malformed.
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(super) fn evicted(document: &impl Fields, key: &Key) -> Result<Vec<Holder>, Error> {
    several(document, "evicted").map_err(|damage| not_a_lock(key, damage))
}

fn holders(
    document: &impl Fields,
    fence: Fence,
    until: DateTime<Utc>,
) -> Result<Vec<Holder>, Damage> {
    match document.text("lease") {
        Field::Missing => several(document, "holders"),
        lease => {
            let lease = lease.parsed(LeaseId::parse, "lease")?;
            Ok(vec![exclusive_holder(document, lease, fence, until)])
        }
    }
}

fn several(document: &impl Fields, field: &'static str) -> Result<Vec<Holder>, Damage> {
    let entries = document.list(field).required(field)?;
    let holders: Vec<_> = entries.iter().map(holder).collect::<Result<_, _>>()?;
    let leases: HashSet<_> = holders.iter().map(|holder| holder.lease).collect();
    // Nobody could tell which of two holders a renewal or a release of their lease means.
    (leases.len() == holders.len())
        .then_some(holders)
        .ok_or(field)
}

fn holder(entry: &impl Fields) -> Result<Holder, Damage> {
    let lease = entry.text("lease").parsed(LeaseId::parse, "lease")?;
    let expires_at = entry.time("expires_at").required("expires_at")?;
    let mut holder = exclusive_holder(entry, lease, fence(entry)?, expires_at);
    holder.mode = entry.text("mode").parsed(Mode::parse, "mode")?;
    holder.permits = entry.whole("permits").required("permits")?;
    Ok(holder)
}

/// Builds a holder. Owner, note and `acquired_at` are optional, and malformed ones count as missing.
fn exclusive_holder(
    fields: &impl Fields,
    lease: LeaseId,
    fence: Fence,
    expires_at: DateTime<Utc>,
) -> Holder {
    let owner = fields.text("owner").or_missing().unwrap_or_default();
    let acquired_at = fields.time("acquired_at").or_missing();
    let acquired_at = acquired_at.unwrap_or(DateTime::UNIX_EPOCH);
    let mut holder = Holder::exclusive(lease, owner.into(), fence, acquired_at, expires_at);
    holder.note = fields.text("note").or_missing().map(Into::into);
    holder
}

fn fence(fields: &impl Fields) -> Result<Fence, Damage> {
    let fence = fields.number("fence").optional("fence")?.unwrap_or(0);
    if fence >= FENCE_END {
        return Err("fence");
    }
    Ok(Fence::new(fence))
}

fn not_a_lock(key: &Key, field: Damage) -> Error {
    Error::not_a_lock(key, makes_no_sense(field))
}

fn makes_no_sense(field: Damage) -> String {
    format!("its field {field} is missing or makes no sense")
}

/// Reads a document as the limiter of this key.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for a document of another version, [`Error::NotALimiter`] for anything else that is not
/// a limiter.
pub(super) fn limiter(document: &impl Fields, key: &Key) -> Result<LimiterRecord, Error> {
    let damaged = |field| Error::NotALimiter {
        key: key.clone(),
        problem: makes_no_sense(field),
    };
    let schema = document.float("limiter").required("limiter");
    match schema.map_err(damaged)? {
        schema if schema == LIMITER_SCHEMA as f64 => read_limiter(document, key).map_err(damaged),
        other if other.fract() == 0.0 => Err(Error::UnsupportedSchema {
            key: key.clone(),
            found: other.to_string(),
        }),
        _ => Err(damaged("limiter")),
    }
}

fn read_limiter(document: &impl Fields, key: &Key) -> Result<LimiterRecord, Damage> {
    let count = |field| {
        let is_number = document.float(field).required(field)? > -1.0;
        let number = document.number(field).required(field)?;
        if is_number && number < USED_END {
            Ok(number)
        } else {
            Err(field)
        }
    };
    let last = document.text("last").or_missing();
    let over_at = document.time("over_at").or_missing();
    Ok(LimiterRecord::new(
        key.clone(),
        document.time("granted_at").required("granted_at")?,
        count("used")?,
        (
            last.and_then(PermitId::parse).unwrap_or(PermitId::NONE),
            count("granted")?,
        ),
        over_at.unwrap_or(DateTime::<Utc>::MAX_UTC),
    ))
}

/// The time this many milliseconds after the start of 1970.
pub(super) fn time_of(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or(if millis < 0 {
        DateTime::<Utc>::MIN_UTC
    } else {
        DateTime::<Utc>::MAX_UTC
    })
}

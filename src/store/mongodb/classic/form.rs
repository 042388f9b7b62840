//! The documents of the classic dialect, and the updates that write them. Each document has one of these forms, under
//! one `_id` and with the fields `schema`, `version` and `fence`:
//!
//! | form | fields | what it says |
//! |---|---|---|
//! | new | none | an upsert has created the document, and nothing was decided yet; its fence is 0 |
//! | free | `free`, `released_at` | nobody holds the key, no process waits for it, and no tick is done |
//! | stamped | `lease`, `owner`, `note`, `ttl`, `acquired_at`, `renewed_at` | a sole holder; the server has stamped the times, and the lease expires `ttl` milliseconds after `renewed_at` |
//! | state | `state` | any other state of a lock or a limiter, in the form of a whole document of the other dialect |
//!
//! Invariant: each change writes a new `version`. So a compare-and-set on it changes the document that was seen, or
//! nothing.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, RawDocument, doc, oid::ObjectId};

use crate::{
    messages::AcquireRequest,
    model::{
        Error, FENCE_END, Fence, Holder, Key, LIMITER_SCHEMA, LastDone, LeaseId, LimiterRecord,
        LockRecord, Place, SCHEMA, after,
    },
    store::mongodb::{
        decode,
        error::makes_no_sense,
        statements::{millis, utc},
    },
};

/// The version of the format of the documents.
pub(super) const CLASSIC_SCHEMA: &str = "leasehold.classic.1";

/// The fields of all forms. A change removes those that it does not write.
const FIELDS: [&str; 9] = [
    "free",
    "released_at",
    "lease",
    "owner",
    "note",
    "ttl",
    "acquired_at",
    "renewed_at",
    "state",
];

/// A record that a document contains.
pub(super) trait ClassicForm: Sized {
    /// The record in a document; `None` if the document is new.
    fn read(document: &RawDocument, key: &Key, now: DateTime<Utc>) -> Result<Option<Self>, Error>;

    /// The fields for this record, and the fence. `before` is the document as it was.
    fn fields(&self, before: &RawDocument) -> (Document, i64);
}

/// An update after which the document has these fields, and those of every form, and no others.
pub(super) fn written<R: ClassicForm>(record: &R, before: &RawDocument) -> Document {
    let (mut fields, fence) = record.fields(before);
    let gone = gone(&fields);
    fields.extend(doc! { "fence": fence, "version": ObjectId::new() });
    doc! { "$set": fields, "$unset": gone }
}

fn gone(kept: &Document) -> Document {
    let gone = FIELDS.iter().filter(|field| !kept.contains_key(**field));
    gone.map(|field| ((*field).to_owned(), "".into())).collect()
}

/// A condition on a value that is no list. A condition alone also matches a list that has such a value.
fn one(mut condition: Document) -> Document {
    condition.insert("$not", doc! { "$type": "array" });
    condition
}

/// The grant of an exclusive request on a free document, as a filter and an update. The filter lets nothing pass that
/// cannot be [read](ClassicForm::read).
pub(super) fn stamped_grant(request: &AcquireRequest) -> (Document, Document) {
    let fences = i64::from(request.fences.get());
    let filter = doc! {
        "_id": request.key.as_str(),
        "schema": CLASSIC_SCHEMA,
        "state": { "$exists": false },
        "free": one(doc! { "$eq": true }),
        // There are enough fences left. (A new document is not free, because its first fence has to come from the
        // clock.)
        "fence": one(doc! { "$type": "long", "$gte": 0_i64, "$lt": FENCE_END - fences }),
        "released_at": one(doc! { "$type": "date" }),
    };
    let mut fields = doc! {
        "lease": request.lease.to_string(),
        "owner": &*request.owner,
        "ttl": millis(request.ttl),
    };
    if let Some(note) = &request.note {
        fields.insert("note", &**note);
    }
    fields.insert("version", ObjectId::new());
    let update = doc! {
        "$set": fields,
        "$unset": { "free": "", "released_at": "" },
        "$inc": { "fence": fences },
        "$currentDate": { "acquired_at": true, "renewed_at": true },
    };
    (filter, update)
}

/// Whether the document has a list of waiting processes. Only a document with a state can have one.
pub(super) fn has_places(document: &RawDocument) -> bool {
    let waiters = decode::get(document, "state").and_then(|state| {
        let state = state.as_document()?;
        decode::get(state, "waiters")?.as_array()
    });
    waiters.is_some_and(|waiters| waiters.into_iter().next().is_some())
}

/// The release of a stamped lease, as a filter and an update. The filter lets nothing pass that cannot be
/// [read](ClassicForm::read).
pub(super) fn stamped_release(key: &Key, lease: LeaseId) -> (Document, Document) {
    let filter = doc! {
        "_id": key.as_str(),
        "schema": CLASSIC_SCHEMA,
        "state": { "$exists": false },
        "lease": one(doc! { "$eq": lease.to_string() }),
        "fence": one(doc! { "$type": "long", "$gte": 0_i64, "$lt": FENCE_END }),
        "ttl": one(doc! { "$type": "long", "$gte": 0_i64 }),
        "acquired_at": one(doc! { "$type": "date" }),
        "renewed_at": one(doc! { "$type": "date" }),
    };
    let update = doc! {
        "$set": { "free": true, "version": ObjectId::new() },
        "$unset": gone(&doc! { "free": true, "released_at": true }),
        "$currentDate": { "released_at": true },
    };
    (filter, update)
}

impl ClassicForm for LockRecord {
    fn read(document: &RawDocument, key: &Key, now: DateTime<Utc>) -> Result<Option<Self>, Error> {
        let wrong = |field: &str| Error::not_a_lock(key, makes_no_sense(field));
        if let Some(state) = decode::get(document, "state") {
            let state = state.as_document().ok_or_else(|| wrong("state"))?;
            return decode::found(state, key)?.at(now).map(Some);
        }
        let fence = document.get_i64("fence").unwrap_or(-1);
        let date = |field: &str| {
            let date = document.get_datetime(field).ok();
            date.and_then(utc).ok_or_else(|| wrong(field))
        };
        if !(0..FENCE_END).contains(&fence) {
            return Err(wrong("fence"));
        }
        let of = |holders, until| {
            let fence = Fence::new(fence);
            Some(Self::new(key.clone(), fence, holders, until))
        };
        if document.get_bool("free").is_ok_and(|free| free) {
            return Ok(of(Vec::new(), date("released_at")?));
        }
        let Ok(lease) = document.get_str("lease") else {
            return match fence {
                0 => Ok(None),
                _ => Err(wrong("state")),
            };
        };
        let text = |field: &str| document.get_str(field).ok().map(Into::into);
        let ttl = document.get_i64("ttl").ok();
        let ttl = ttl.and_then(|ttl| u64::try_from(ttl).ok());
        let ttl = Duration::from_millis(ttl.ok_or_else(|| wrong("ttl"))?);
        let expires_at = after(date("renewed_at")?, ttl);
        let mut holder = Holder::exclusive(
            LeaseId::parse(lease).ok_or_else(|| wrong("lease"))?,
            text("owner").unwrap_or_default(),
            Fence::new(fence),
            date("acquired_at")?,
            expires_at,
        );
        holder.note = text("note");
        Ok(of(vec![holder], expires_at))
    }

    fn fields(&self, before: &RawDocument) -> (Document, i64) {
        let at = date_of(self.expires_at);
        let fence = self.fence.get();
        if self.holders.is_empty() && self.waiters.is_empty() && self.done == LastDone::Nothing {
            return (doc! { "free": true, "released_at": at }, fence);
        }
        let mut state = doc! { "schema": SCHEMA, "fence": fence };
        // If all holders expired before the key was released, they do not hold it.
        let is_held = self
            .holders
            .iter()
            .any(|it| it.expires_at >= self.expires_at);
        state.insert(if is_held { "expires_at" } else { "released_at" }, at);
        if !self.holders.is_empty() {
            let holders: Vec<_> = self.holders.iter().map(holder).collect();
            state.insert("holders", holders);
        }
        if !self.waiters.is_empty() {
            let waiters: Vec<_> = self.waiters.iter().map(place).collect();
            state.insert("waiters", waiters);
        }
        match &self.done {
            LastDone::Nothing => {}
            LastDone::Tick(done) => {
                let done = doc! {
                    "kind": done.tick.kind().as_str(),
                    "tick": done.tick.number(),
                    "at": date_of(done.at),
                    "by": &*done.by,
                    "lease": done.lease.to_string(),
                    "until": date_of(done.until),
                };
                state.insert("done", done);
            }
            // A later version may have written it.
            LastDone::Unreadable => {
                let before = before.get_document("state").ok();
                let done = before.and_then(|state| decode::get(state, "done"));
                if let Some(done) = done.and_then(|done| Bson::try_from(done).ok()) {
                    state.insert("done", done);
                }
            }
        }
        (doc! { "state": state }, fence)
    }
}

fn holder(holder: &Holder) -> Document {
    let mut written = doc! {
        "lease": holder.lease.to_string(),
        "owner": &*holder.owner,
        "mode": holder.mode.as_str(),
        "permits": holder.permits,
        "fence": holder.fence.get(),
        "acquired_at": date_of(holder.acquired_at),
        "expires_at": date_of(holder.expires_at),
    };
    if let Some(note) = &holder.note {
        written.insert("note", &**note);
    }
    written
}

fn place(place: &Place) -> Document {
    doc! {
        "waiter": place.waiter.to_string(),
        "owner": &*place.owner,
        "mode": place.mode.as_str(),
        "permits": place.permits,
        "since": date_of(place.since),
        "until": date_of(place.until),
    }
}

impl ClassicForm for LimiterRecord {
    fn read(document: &RawDocument, key: &Key, _: DateTime<Utc>) -> Result<Option<Self>, Error> {
        let Some(state) = decode::get(document, "state") else {
            return Ok(None);
        };
        let state = state.as_document().ok_or_else(|| Error::NotALimiter {
            key: key.clone(),
            problem: makes_no_sense("state"),
        })?;
        decode::limiter_document(state, key).map(Some)
    }

    fn fields(&self, _: &RawDocument) -> (Document, i64) {
        let state = doc! {
            "limiter": LIMITER_SCHEMA,
            "granted_at": date_of(self.granted_at),
            "used": self.used,
            "last": self.last.to_string(),
            "granted": self.granted,
            "over_at": date_of(self.over_at),
        };
        (doc! { "state": state }, 0)
    }
}

fn date_of(time: DateTime<Utc>) -> bson::DateTime {
    bson::DateTime::from_millis(time.timestamp_millis())
}

#[cfg(test)]
mod tests;

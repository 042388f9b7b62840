//! The classic dialect: for engines whose updates do not support pipelines, and for sharded clusters on which a
//! pipeline cannot use the clock of the shard.
//!
//! A classic update can neither compare a date with the clock nor compute with the clock. It can only write the clock
//! (`$currentDate`), and that is the clock of the server that keeps the document. So an operation has two steps:
//!
//! 1. It writes `asked_at`, and reads the document and the time from the answer. The [rule](crate::rules) decides by
//!    them.
//! 2. It writes what the rule has decided, if the document still has the `version` that step 1 saw. A lease or a place
//!    that was over by the time of step 1 is over for good, unless somebody has changed the document since.
//!
//! A free key without a queue is granted in one step, and a lease that was granted in that way is released in one step
//! (`form.rs`).
//!
//! Documents have a schema of their own: the other dialect refuses them, and this one refuses those of the other
//! dialect.
//!
//! What the rest of the store knows of this dialect: `dialect.rs` and `engine.rs` say when it is used, which a sharded
//! cluster may need without being told, so no feature switches it off. `by_dialect.rs` sends the operations here. With it
//! there are no change streams and no TTL index ([`MongoStore::has_pipelines`]).

mod form;
mod operations;
mod pages;
#[cfg(test)]
mod protocol_templates;

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::{
    Collection,
    bson::{Bson, Document, RawDocumentBuf, doc, oid::ObjectId},
    options::ReturnDocument,
};
use tokio::time::sleep;

use self::form::{CLASSIC_SCHEMA, ClassicForm, written};
use super::{
    MongoStore,
    error::{classify, interrupted, is_race, makes_no_sense},
    statements::utc,
};
use crate::{
    model::{Error, Key, LockRecord},
    rules::{Decision, Write},
};

/// How often an operation reads the document again if other clients change it in between each time.
const ATTEMPTS: u32 = 100;
/// The longest pause before that, in milliseconds. A part of it is random, so that many requests do not come at the
/// same moment again.
const LONGEST_PAUSE: u64 = 64;

/// A store in its classic dialect, with the operations of [`Store`](crate::store::Store).
#[derive(Clone, Copy)]
pub(super) struct Classic<'a>(pub(super) &'a MongoStore);

/// Which members must have the document that was read, before it decides an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadLevel {
    /// A majority: the answer may be that the lease was granted or released, or the tick done, before.
    Majority,
    /// The primary: a refusal need not be confirmed. If the request writes, the write is confirmed together with everything
    /// that was there before.
    Primary,
}

/// A document and the server's time.
struct DocumentAt {
    document: RawDocumentBuf,
    version: ObjectId,
    now: DateTime<Utc>,
}

impl MongoStore {
    /// Asks whether the collection has a document of the classic dialect.
    pub(super) async fn ask_whether_documents_are_classic(&self) -> Result<bool, Error> {
        let locks = self.locks.reads();
        let found = locks.find_one(doc! { "schema": CLASSIC_SCHEMA });
        Ok(found.await.map_err(classify)?.is_some())
    }
}

impl Classic<'_> {
    /// Reads the lock of this key, lets a rule decide, and writes what the rule has decided, if there is a document.
    async fn change<A>(
        self,
        key: &Key,
        rule: impl Fn(Option<&LockRecord>, DateTime<Utc>) -> Decision<A, LockRecord>,
    ) -> Result<A, Error> {
        let id = key.as_str().into();
        self.decide(ReadLevel::Majority, id, key, false, rule).await
    }

    /// Reads the document with this id, lets a rule decide, and writes what the rule has decided. A missing document is
    /// created only for a rule that may write one.
    async fn decide<R: ClassicForm, A>(
        self,
        level: ReadLevel,
        id: Bson,
        key: &Key,
        may_insert: bool,
        rule: impl Fn(Option<&R>, DateTime<Utc>) -> Decision<A, R>,
    ) -> Result<A, Error> {
        let locks = self.0.locks.durable_writes().await?;
        let reads = match level {
            ReadLevel::Majority => locks,
            ReadLevel::Primary => self.0.locks.undoable_writes(),
        };
        for attempt in 0..ATTEMPTS {
            pause(attempt).await;
            let Some(seen) = read_at(reads, &id, key, may_insert).await? else {
                if may_insert {
                    continue;
                }
                return Ok(rule(None, DateTime::<Utc>::MIN_UTC).answer);
            };
            let record = R::read(&seen.document, key, seen.now)?;
            let Decision { write, answer } = rule(record.as_ref(), seen.now);
            let unchanged = unchanged(&id, seen.version);
            let changed = match write {
                Write::Keep => true,
                Write::Put(record) => {
                    let update = written(&record, &seen.document);
                    let changed = locks.update_one(unchanged, update).await;
                    changed.map_err(classify)?.matched_count > 0
                }
                Write::Remove => {
                    let removed = locks.delete_one(unchanged).await;
                    removed.map_err(classify)?.deleted_count > 0
                }
            };
            if changed {
                return Ok(answer);
            }
        }
        Err(interrupted("other clients got in between each time"))
    }
}

/// Pauses before an attempt. There is no pause before the first attempt, and the longest possible pause grows with
/// each.
async fn pause(attempt: u32) {
    if attempt > 0 {
        let longest = 2_u64.saturating_pow(attempt).min(LONGEST_PAUSE);
        sleep(Duration::from_millis(fastrand::u64(0..=longest))).await;
    }
}

/// A look at a document, as a filter and an update: it writes the server's time, and creates a missing document if it
/// may.
fn look(id: &Bson, may_insert: bool) -> (Document, Document) {
    let mut update = doc! { "$currentDate": { "asked_at": true } };
    if may_insert {
        let new = doc! { "version": ObjectId::new(), "fence": 0_i64 };
        update.insert("$setOnInsert", new);
    }
    (doc! { "_id": id.clone(), "schema": CLASSIC_SCHEMA }, update)
}

/// Matches the document with this id if nobody has changed it since it had this version.
fn unchanged(id: &Bson, version: ObjectId) -> Document {
    doc! { "_id": id.clone(), "version": version }
}

/// Asks the server for its time and the document. `None` if the document does not exist, or if another request created
/// it at the same moment.
async fn read_at(
    locks: &Collection<RawDocumentBuf>,
    id: &Bson,
    key: &Key,
    may_insert: bool,
) -> Result<Option<DocumentAt>, Error> {
    let (filter, update) = look(id, may_insert);
    let asked = locks
        .find_one_and_update(filter, update)
        .upsert(may_insert)
        .return_document(ReturnDocument::After)
        .await;
    match asked {
        Ok(Some(document)) => seen(document, key).map(Some),
        Ok(None) => refused(locks, id, key).await,
        Err(race) if is_race(&race, "_id") => refused(locks, id, key).await,
        Err(error) => Err(classify(error)),
    }
}

/// `None`, or an error if there is a document that is not of this dialect.
async fn refused(
    locks: &Collection<RawDocumentBuf>,
    id: &Bson,
    key: &Key,
) -> Result<Option<DocumentAt>, Error> {
    let found = locks.find_one(doc! { "_id": id.clone() }).await;
    match found.map_err(classify)? {
        Some(found) => match found.get_str("schema") {
            Ok(CLASSIC_SCHEMA) => Ok(None),
            Ok(schema) if is_other_version(schema) => Err(Error::UnsupportedSchema {
                key: key.clone(),
                found: schema.to_owned(),
            }),
            _ => Err(Error::not_a_lock(key, "it is none of the classic dialect")),
        },
        None => Ok(None),
    }
}

/// Whether this is the schema of the classic dialect in another version.
fn is_other_version(schema: &str) -> bool {
    let version = CLASSIC_SCHEMA.trim_end_matches(|it: char| it.is_ascii_digit());
    let other = schema.strip_prefix(version);
    other.is_some_and(|other| !other.is_empty() && other.bytes().all(|it| it.is_ascii_digit()))
}

fn seen(document: RawDocumentBuf, key: &Key) -> Result<DocumentAt, Error> {
    let wrong = |field| Error::not_a_lock(key, makes_no_sense(field));
    let version = document.get_object_id("version");
    let version = version.map_err(|_| wrong("version"))?;
    let now = document.get_datetime("asked_at").ok().and_then(utc);
    Ok(DocumentAt {
        version,
        now: now.ok_or_else(|| wrong("asked_at"))?,
        document,
    })
}

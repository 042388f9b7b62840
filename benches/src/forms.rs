//! The two commands in several forms, from the smallest one to leasehold's own, to measure the cost of each part.

use std::{future::IntoFuture, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use mongodb::{
    Collection, Database,
    action::Action,
    bson::{self, Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc},
    options::ReturnDocument,
};
use uuid::Uuid;

use crate::{
    locks::{Guard, Locks, SharedLocks},
    raw::primary_alone,
};

/// What the commands contain in addition to the smallest form.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// The fields of leasehold's document.
    pub fields: bool,
    /// Conditions that detect a damaged document, in the acquire and in the release.
    pub checks: bool,
    /// The date at which the clean-up may remove the document.
    pub cleanup: bool,
    /// What the acquire looks for among the places of waiting processes.
    pub places: Places,
    /// The server's time in the answer.
    pub projection: bool,
    /// A release that only the primary acknowledges.
    pub primary: bool,
    /// A read of the document before the acquire.
    pub look: bool,
    /// A timer around each command.
    pub timer: bool,
}

/// What an acquire looks for among the places of waiting processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Places {
    #[default]
    Nothing,
    /// Whether there are any.
    Any,
    /// Whether all of them are over, which leasehold asks.
    Over,
}

/// Longer than any command takes.
const LIMIT: Duration = Duration::from_secs(10);
const SCHEMA: &str = "leasehold.lock.1";
const DAY: i64 = 24 * 60 * 60 * 1_000;
const STEP: i64 = 1_000_000;

impl Form {
    /// The form that leasehold sends.
    pub fn whole() -> Self {
        Self {
            fields: true,
            checks: true,
            cleanup: true,
            places: Places::Over,
            primary: true,
            ..Self::default()
        }
    }

    fn owner(self, answer: &RawDocument) -> Result<Option<&str>> {
        let field = if self.fields { "lease" } else { "owner" };
        Ok(answer.get(field)?.and_then(RawBsonRef::as_str))
    }
}

#[derive(Clone)]
pub struct FormLocks {
    name: &'static str,
    form: Form,
    locks: Collection<RawDocumentBuf>,
}

impl FormLocks {
    pub fn shared(name: &'static str, form: Form, locks: &Collection<Document>) -> SharedLocks {
        std::sync::Arc::new(Self {
            name,
            form,
            locks: locks.clone_with_type(),
        })
    }
}

fn is_lock(form: Form) -> Document {
    let mut conditions = vec![doc! { "$eq": ["$schema", SCHEMA] }];
    if form.checks {
        conditions.push(doc! { "$lt": ["$fence", 1_i64 << 53] });
        let time = doc! { "$in": [{ "$type": "$expires_at" }, ["date", "missing", "null"]] };
        conditions.push(time);
    }
    doc! { "$and": conditions }
}

fn cleanup_at(ttl: i64) -> Document {
    let newest = doc! { "$max": ["$fence", { "$toLong": "$$NOW" }] };
    doc! { "$max": ["$cleanup_at", { "$add": [
        bson::DateTime::from_millis(ttl + DAY + STEP + 2),
        { "$trunc": [newest, -6_i64] },
    ] }] }
}

fn acquire(form: Form, key: &str, lease: &str, ttl: Duration) -> Vec<Document> {
    let ttl = ttl.as_millis() as i64;
    let fence = doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$toLong": "$$NOW" }] };
    let expires_at = doc! { "$add": ["$$NOW", ttl] };
    let over = doc! { "$lte": ["$expires_at", "$$NOW"] };
    let (free, mut granted) = if form.fields {
        let new = doc! { "$eq": ["$$ROOT", { "_id": { "$literal": key } }] };
        let granted = doc! {
            "_id": "$_id",
            "schema": SCHEMA,
            "fence": fence,
            "lease": lease,
            "owner": { "$literal": "bench" },
            "acquired_at": "$$NOW",
            "expires_at": expires_at,
            "waiters": "$waiters",
            "done": "$done",
        };
        let mut known = vec![over, is_lock(form)];
        known.extend(match form.places {
            Places::Nothing => None,
            Places::Any => Some(doc! { "$lte": ["$waiters", Bson::Null] }),
            Places::Over => Some(doc! { "$lte": [{ "$max": "$waiters.until" }, "$$NOW"] }),
        });
        (doc! { "$or": [{ "$and": known }, new] }, granted)
    } else {
        (
            over,
            doc! { "_id": "$_id", "fence": fence, "owner": lease, "expires_at": expires_at },
        )
    };
    if form.cleanup {
        granted.insert("cleanup_at", cleanup_at(ttl));
    }
    vec![doc! { "$replaceWith": { "$cond": [free, granted, "$$ROOT"] } }]
}

fn release(form: Form, lease: &str) -> Vec<Document> {
    let (holds, mut released) = if form.fields {
        let released = doc! {
            "_id": "$_id",
            "schema": SCHEMA,
            "fence": "$fence",
            "released_at": "$$NOW",
            "waiters": "$waiters",
            "done": "$done",
        };
        let mine = doc! { "$and": [{ "$eq": ["$lease", lease] }, is_lock(form)] };
        (mine, released)
    } else {
        (
            doc! { "$eq": ["$owner", lease] },
            doc! { "_id": "$_id", "fence": "$fence", "expires_at": "$$NOW" },
        )
    };
    if form.cleanup {
        released.insert("cleanup_at", "$cleanup_at");
    }
    vec![doc! { "$replaceWith": { "$cond": [holds, released, "$$ROOT"] } }]
}

fn projection() -> Document {
    doc! { "_id": 0, "document": "$$ROOT", "now": "$$NOW" }
}

#[async_trait]
impl Locks for FormLocks {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        if self.form.timer {
            tokio::time::timeout(LIMIT, self.ask(key, ttl)).await?
        } else {
            self.ask(key, ttl).await
        }
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let guard = self.try_acquire(key, ttl).await?;
        guard.context("nobody waits for these locks")
    }
}

impl FormLocks {
    async fn ask(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let lease = Uuid::new_v4().to_string();
        if self.form.look
            && let Some(found) = self.locks.find_one(doc! { "_id": key }).await?
            && found.get_datetime("expires_at")? > bson::DateTime::now()
        {
            return Ok(None);
        }
        let update = acquire(self.form, key, &lease, ttl);
        let asked = self
            .locks
            .find_one_and_update(doc! { "_id": key }, update)
            .upsert(true)
            .return_document(ReturnDocument::After);
        let answer = if self.form.projection {
            asked.projection(projection()).await?
        } else {
            asked.await?
        };
        let answer = answer.context("an upsert gave back no document")?;
        let document = if self.form.projection {
            answer.get_document("document")?
        } else {
            &answer
        };
        if self.form.owner(document)? != Some(&lease) {
            return Ok(None);
        }
        Ok(Some(Box::new(FormGuard {
            locks: self.clone(),
            key: key.to_owned(),
            lease,
        })))
    }
}

struct FormGuard {
    locks: FormLocks,
    key: String,
    lease: String,
}

#[async_trait]
impl Guard for FormGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        let update = release(self.locks.form, &self.lease);
        let concern = self.locks.form.primary.then(primary_alone);
        let released = self
            .locks
            .locks
            .update_one(doc! { "_id": &self.key }, update)
            .optional(concern, |released, concern| released.write_concern(concern));
        let released = if self.locks.form.timer {
            tokio::time::timeout(LIMIT, released.into_future()).await??
        } else {
            released.await?
        };
        ensure!(released.modified_count == 1, "not released");
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}

/// The query plan for a document, with or without a projection, by the names of the stages in `explain`.
pub async fn plan(database: &Database, collection: &str, projected: bool) -> Result<String> {
    let mut command = doc! {
        "findAndModify": collection,
        "query": { "_id": "a key" },
        "update": acquire(Form::default(), "a key", "a lease", Duration::from_secs(1)),
        "upsert": true,
        "new": true,
    };
    if projected {
        command.insert("fields", projection());
    }
    let explained = database
        .run_command(doc! { "explain": command, "verbosity": "queryPlanner" })
        .await?;
    let planner = explained.get_document("queryPlanner")?;
    let mut stages = Vec::new();
    let mut stage = Some(planner.get_document("winningPlan")?);
    while let Some(found) = stage {
        stages.push(found.get_str("stage")?.to_owned());
        stage = found.get("inputStage").and_then(Bson::as_document);
    }
    Ok(stages.join(" > "))
}

//! The forms of the two commands between the least one and leasehold's, to see what each part costs.

use std::{future::IntoFuture, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc},
    options::{ReturnDocument, WriteConcern},
};
use uuid::Uuid;

use crate::locks::{Guard, Locks, SharedLocks};

/// What the commands have beyond the least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// The document of leasehold, with its list of holders, instead of the least one.
    pub whole: bool,
    /// The server's time in the answer.
    pub projection: bool,
    /// A release that finds its lease among others.
    pub filter: bool,
    /// A timer around each command.
    pub timer: bool,
}

/// Longer than any command takes.
const LIMIT: Duration = Duration::from_secs(10);

impl Form {
    fn owner(self, answer: &RawDocument) -> Result<Option<&str>> {
        let Self { whole: true, .. } = self else {
            return Ok(answer.get("owner")?.and_then(RawBsonRef::as_str));
        };
        let holders = answer.get_array("holders")?;
        let holder = holders.get(0)?.and_then(RawBsonRef::as_document);
        Ok(holder.map(|holder| holder.get_str("lease")).transpose()?)
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

fn is_lock() -> Document {
    doc! { "$and": [
        { "$eq": ["$schema", 1_i64] },
        { "$isArray": "$holders" },
        { "$eq": [{ "$type": "$expires_at" }, "date"] },
        { "$in": [{ "$type": "$fence" }, ["long", "int"]] },
    ] }
}

fn acquire(form: Form, key: &str, lease: &str, ttl: Duration) -> Vec<Document> {
    let fence = doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$toLong": "$$NOW" }] };
    let expires_at = doc! { "$add": ["$$NOW", ttl.as_millis() as i64] };
    let over = doc! { "$lte": ["$expires_at", "$$NOW"] };
    let (free, granted) = if form.whole {
        let new = doc! { "$eq": ["$$ROOT", { "_id": { "$literal": key } }] };
        let holder = doc! {
            "lease": lease,
            "owner": { "$literal": "bench" },
            "mode": "exclusive",
            "permits": 1_i64,
            "fence": &fence,
            "acquired_at": "$$NOW",
            "expires_at": &expires_at,
        };
        let granted = doc! {
            "_id": "$_id",
            "schema": 1_i64,
            "fence": fence,
            "holders": [holder],
            "expires_at": expires_at,
        };
        (
            doc! { "$and": [over, { "$or": [is_lock(), new] }] },
            granted,
        )
    } else {
        (
            over,
            doc! { "_id": "$_id", "fence": fence, "owner": lease, "expires_at": expires_at },
        )
    };
    vec![doc! { "$replaceWith": { "$cond": [free, granted, "$$ROOT"] } }]
}

fn release(form: Form, lease: &str) -> Vec<Document> {
    let (holds, released) = match form {
        Form { whole: false, .. } => (
            doc! { "$eq": ["$owner", lease] },
            doc! { "_id": "$_id", "fence": "$fence", "expires_at": "$$NOW" },
        ),
        Form { filter: false, .. } => (
            doc! { "$eq": ["$holders.lease", [lease]] },
            doc! { "$mergeObjects": ["$$ROOT", { "holders": [], "expires_at": "$$NOW" }] },
        ),
        Form { filter: true, .. } => {
            let others = doc! { "$filter": {
                "input": "$holders",
                "cond": { "$not": [{ "$eq": ["$$this.lease", lease] }] },
            } };
            let released = doc! { "$let": {
                "vars": { "holders": others },
                "in": { "$mergeObjects": ["$$ROOT", {
                    "holders": "$$holders",
                    "expires_at": { "$ifNull": [{ "$max": "$$holders.expires_at" }, "$$NOW"] },
                }] },
            } };
            let holds = doc! { "$and": [is_lock(), { "$in": [lease, "$holders.lease"] }] };
            (holds, released)
        }
    };
    vec![doc! { "$replaceWith": { "$cond": [holds, released, "$$ROOT"] } }]
}

fn projection() -> Document {
    doc! { "schema": 1, "fence": 1, "holders": 1, "owner": 1, "expires_at": 1, "now": "$$NOW" }
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
        let update = acquire(self.form, key, &lease, ttl);
        let asked = self
            .locks
            .find_one_and_update(doc! { "_id": key }, update)
            .upsert(true)
            .return_document(ReturnDocument::After)
            .write_concern(WriteConcern::majority());
        let answer = if self.form.projection {
            asked.projection(projection()).await?
        } else {
            asked.await?
        };
        let answer = answer.context("an upsert gave back no document")?;
        if self.form.owner(&answer)? != Some(&lease) {
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
        let released = self
            .locks
            .locks
            .update_one(doc! { "_id": &self.key }, update)
            .write_concern(WriteConcern::majority());
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

/// The way that the server takes to a document, with a projection or without, as `explain` names it.
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

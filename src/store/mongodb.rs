//! Locks in MongoDB.

mod decode;
mod dialect;
pub(crate) mod distributed_lock;
mod error;

use std::{collections::HashMap, fmt, time::Duration};

use async_trait::async_trait;
use mongodb::{
    Collection, IndexModel,
    bson::{Document, doc},
    options::{
        Acknowledgment, CollectionOptions, IndexOptions, ReadConcern, ReadPreference,
        ReturnDocument, SelectionCriteria, WriteConcern,
    },
};

use self::error::{DUPLICATE_KEY, INDEX_CONFLICTS, code, sorted};
use crate::{
    AcquireAnswer, AcquireRequest, Error, Eviction, Key, ListRequest, LockState, LossReason, Page,
    ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Store, rules,
};

/// How far the clocks of two members of a replica set are taken to differ.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// How long the document of a dead lock is kept unless [`MongoStore::retention`] says otherwise.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the server waits for a majority before it says that there is none. Without a bound it
/// waits for ever, and the connection with it.
const MAJORITY_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a lost race between two inserts of one key is run again. The second time the document
/// exists, so a third is only needed if it was removed in between.
const RACES: u32 = 3;
/// How many renewals go into one command: well below the server's limit of 100,000 statements, and
/// small enough not to hold up other commands.
const BATCH: usize = 1_000;
const TTL_INDEX: &str = "leasehold_expires_at";

/// Keeps locks in a MongoDB collection, one document a key.
///
/// It takes the application's own [`Collection`], so that authentication, TLS and pools are the
/// application's, and asks for a majority of every write and for the primary in every read,
/// whatever the collection's defaults. The collection should hold nothing but locks. It needs
/// MongoDB 4.2 or newer, and the role `readWrite` on the collection.
///
/// # What it guarantees
///
/// - Every operation is one atomic command on one document, on the clock of the server that
///   carries it out (`$$NOW`; on a sharded cluster that of the `mongos`).
/// - A grant was acknowledged by a majority, so it survives a failover. The next primary may have
///   another clock: the clock margin of 100 ms covers a difference up to that, and
///   [`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin) a greater one.
/// - A refused attempt writes nothing, not even to the oplog.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
/// use leasehold::{Leases, MongoStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = mongodb::Client::with_uri_str("mongodb://localhost").await?;
/// let locks = client.database("app").collection::<mongodb::bson::Document>("locks");
/// let store = MongoStore::new(&locks);
/// store.prepare().await?;
/// let lease = Leases::new(store).acquire("report:42", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MongoStore {
    locks: Collection<Document>,
    retention: Duration,
}

impl MongoStore {
    /// A store in this collection. Nothing is sent yet.
    pub fn new<T: Send + Sync>(collection: &Collection<T>) -> Self {
        Self {
            locks: with_our_concerns(collection),
            retention: RETENTION,
        }
    }

    /// How long the document of a dead lock is kept, and with it the key's last fence; a day by
    /// default. Takes effect with [`prepare`](MongoStore::prepare), in whole seconds.
    ///
    /// A fence goes on rising after that too, unless the server's clock goes back by more than
    /// this.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Creates the TTL index that removes dead locks, and the collection with it.
    ///
    /// It can be repeated, at every start of the application for example, and by several
    /// processes at once; a changed [`retention`](MongoStore::retention) is taken over. Locking
    /// works without it, but then documents of dead locks stay until a
    /// [`purge`](crate::Leases::purge).
    ///
    /// # Errors
    ///
    /// As [`Error`] says: among others [`Error::Denied`] if the user may not create an index.
    ///
    /// # Cancel safety
    ///
    /// Do not drop the future midway: the driver's futures are not cancel safe. A repeated call is
    /// harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        // The index takes whole seconds in 32 bits.
        let seconds = self.retention.as_secs().min(i32::MAX as u64);
        let options = IndexOptions::builder()
            .name(TTL_INDEX.to_owned())
            .expire_after(Duration::from_secs(seconds))
            // What a later version or somebody else put here is left alone.
            .partial_filter_expression(doc! { "schema": crate::SCHEMA })
            .build();
        let index = IndexModel::builder()
            .keys(doc! { "expires_at": 1 })
            .options(options)
            .build();
        match self.locks.create_index(index).await {
            Ok(_) => Ok(()),
            Err(conflict) if code(&conflict).is_some_and(|at| INDEX_CONFLICTS.contains(&at)) => {
                let change = doc! {
                    "collMod": self.locks.name(),
                    "index": { "name": TTL_INDEX, "expireAfterSeconds": seconds as i64 },
                };
                let database = self.locks.client().database(&self.locks.namespace().db);
                database.run_command(change).await.map_err(sorted)?;
                Ok(())
            }
            Err(error) => Err(sorted(error)),
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<Document>, Error> {
        self.locks
            .find_one(dialect::filter(key))
            .projection(dialect::projection())
            .await
            .map_err(sorted)
    }

    /// Why a conditional change did not touch the document: an error if the document is not a lock
    /// of this version, nothing if the condition did not hold.
    async fn explain_refusal(&self, key: &Key) -> Result<(), Error> {
        if let Some(document) = self.read(key).await? {
            decode::record(&document, key)?;
        }
        Ok(())
    }

    async fn renew_one(&self, request: &RenewRequest) -> Result<RenewAnswer, Error> {
        let document = self
            .locks
            .find_one_and_update(dialect::filter(&request.key), dialect::renew(request))
            .projection(dialect::projection())
            .return_document(ReturnDocument::After)
            .await
            .map_err(sorted)?;
        Ok(renewal(document.as_ref(), request))
    }

    /// Renews many leases with one command and reads the outcome with a second one. The number of
    /// changed documents would not tell: a renewal may change nothing, see
    /// [`rules::answer_renew`].
    async fn renew_batch(&self, requests: &[RenewRequest]) -> Result<Vec<RenewAnswer>, Error> {
        let updates: Vec<_> = requests
            .iter()
            .map(
                |request| doc! { "q": dialect::filter(&request.key), "u": dialect::renew(request) },
            )
            .collect();
        let command = doc! {
            "update": self.locks.name(),
            "updates": updates,
            // One document that cannot be changed does not stop the rest.
            "ordered": false,
            "writeConcern": {
                "w": "majority",
                "wtimeout": MAJORITY_TIMEOUT.as_millis() as i64,
            },
        };
        let database = self.locks.client().database(&self.locks.namespace().db);
        let answer = database.run_command(command).await.map_err(sorted)?;
        if answer.contains_key("writeConcernError") {
            return Err(Error::Interrupted {
                store: "MongoDB",
                source: "the renewals were not confirmed by a majority in time".into(),
            });
        }
        let keys: Vec<_> = requests
            .iter()
            .map(|request| request.key.as_str())
            .collect();
        let mut found = self
            .locks
            .find(doc! { "_id": { "$in": keys } })
            .projection(dialect::projection())
            .await
            .map_err(sorted)?;
        let mut documents = HashMap::new();
        while found.advance().await.map_err(sorted)? {
            let document = found.deserialize_current().map_err(sorted)?;
            if let Ok(key) = document.get_str("_id") {
                documents.insert(key.to_owned(), document);
            }
        }
        Ok(requests
            .iter()
            .map(|request| renewal(documents.get(request.key.as_str()), request))
            .collect())
    }
}

/// The same collection with majority writes and primary reads.
fn with_our_concerns<T: Send + Sync, U: Send + Sync>(collection: &Collection<T>) -> Collection<U> {
    let majority = WriteConcern::builder()
        .w(Acknowledgment::Majority)
        .w_timeout(MAJORITY_TIMEOUT)
        .build();
    let options = CollectionOptions::builder()
        .write_concern(majority)
        .read_concern(ReadConcern::local())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    let namespace = collection.namespace();
    collection
        .client()
        .database(&namespace.db)
        .collection_with_options(&namespace.coll, options)
}

/// A document that is no lock of ours any more holds no lease of ours.
fn renewal(document: Option<&Document>, request: &RenewRequest) -> RenewAnswer {
    match document.map(|document| decode::record(document, &request.key)) {
        Some(Ok((record, now))) => rules::answer_renew(Some(&record), request.lease, now),
        Some(Err(error)) => {
            tracing::warn!(key = %request.key, %error, "a lease cannot be renewed");
            RenewAnswer::Lost(LossReason::TakenOver)
        }
        None => RenewAnswer::Lost(LossReason::Expired),
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: its options hold the credentials.
        f.debug_struct("MongoStore")
            .field("collection", &self.locks.namespace().to_string())
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MongoStore {
    fn clock_margin(&self) -> Duration {
        CLOCK_MARGIN
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        for _ in 0..RACES {
            let outcome = self
                .locks
                .find_one_and_update(dialect::filter(&request.key), dialect::acquire(request))
                .upsert(true)
                .projection(dialect::projection())
                .return_document(ReturnDocument::After)
                .await;
            let document = match outcome {
                Ok(document) => document,
                Err(race) if code(&race) == Some(DUPLICATE_KEY) => continue,
                Err(error) => return Err(sorted(error)),
            };
            let Some(document) = document else {
                return Err(Error::Interrupted {
                    store: "MongoDB",
                    source: "an upsert gave back no document".into(),
                });
            };
            let (record, now) = decode::record(&document, &request.key)?;
            return Ok(rules::answer_acquire(&record, request.lease, now));
        }
        Err(Error::Contention {
            key: request.key.clone(),
        })
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<Vec<RenewAnswer>, Error> {
        if let [request] = requests {
            return Ok(vec![self.renew_one(request).await?]);
        }
        let mut answers = Vec::with_capacity(requests.len());
        for batch in requests.chunks(BATCH) {
            answers.extend(self.renew_batch(batch).await?);
        }
        Ok(answers)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let changed = self
            .locks
            .update_one(dialect::filter(&request.key), dialect::release(request))
            .await
            .map_err(sorted)?;
        // A release that finds its lease always changes the document, so the count is reliable.
        if changed.modified_count > 0 {
            return Ok(ReleaseAnswer::Released);
        }
        self.explain_refusal(&request.key).await?;
        Ok(ReleaseAnswer::NotHeld)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let Some(document) = self.read(key).await? else {
            return Ok(None);
        };
        let (record, now) = decode::record(&document, key)?;
        Ok(Some(rules::inspect(&record, now)))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        let mut found = self
            .locks
            .find(dialect::page(request))
            .projection(dialect::projection())
            .sort(doc! { "_id": 1 })
            .limit(limit)
            .await
            .map_err(sorted)?;
        let mut page = Page::default();
        let mut looked_at = 0;
        while found.advance().await.map_err(sorted)? {
            looked_at += 1;
            let document = found.deserialize_current().map_err(sorted)?;
            let Ok(id) = document.get_str("_id") else {
                continue;
            };
            if !id.starts_with(request.filter.wanted_prefix()) {
                // Behind the last key with the prefix there is no other.
                looked_at = 0;
                break;
            }
            // An id that is no key is no lock of ours.
            let Ok(key) = Key::new(id) else { continue };
            let (record, now) = decode::record(&document, &key)?;
            let state = rules::inspect(&record, now);
            if rules::matches(&state, &request.filter) {
                page.locks.push(state);
            }
            page.next = Some(key);
        }
        if looked_at < request.limit {
            page.next = None;
        }
        Ok(page)
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let evicted = self
            .locks
            .find_one_and_update(dialect::filter(key), dialect::evict())
            .projection(dialect::projection())
            .return_document(ReturnDocument::After)
            .await
            .map_err(sorted)?;
        let Some(evicted) = evicted else {
            return Ok(None);
        };
        let (record, _) = decode::record(&evicted, key)?;
        Ok(Some(rules::answer_evict(&record)))
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let removed = self
            .locks
            .delete_one(dialect::expired(key))
            .await
            .map_err(sorted)?;
        if removed.deleted_count > 0 {
            return Ok(true);
        }
        self.explain_refusal(key).await?;
        Ok(false)
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let removed = self
            .locks
            .delete_many(dialect::expired_since(retention))
            .await
            .map_err(sorted)?;
        Ok(removed.deleted_count)
    }
}

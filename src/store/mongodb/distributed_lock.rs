//! The port of a Java class, to share locks with services that run it.

use std::{fmt, time::Duration};

use chrono::{DateTime, Utc};
use mongodb::{
    Collection, IndexModel,
    bson::{Document, doc},
    options::{IndexOptions, ReturnDocument},
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    MAX_SENDS,
    concern::Collections,
    error::{DUPLICATE_KEY, classify, code, duplicate, failed, is_race, not_prepared, sentence},
    fitness::{FOR_COUNTED_LOCKS, FOR_COUNTED_LOCKS_WITHOUT_INDEX},
    look::FirstLook,
    statements::integer,
};
use crate::{
    model::{Error, Key, after, validation},
    random,
};

/// The longest time that one call may take, with all of its commands.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The `MongoDistributedLock` of Java services, on the same documents: `key`, `value`, and `expire` in milliseconds.
///
/// Use it to share locks with a running service that has that class. Otherwise use [`MongoStore`](crate::MongoStore),
/// which has fences, renewal and guards, and needs one round trip where this one needs two or three. It needs MongoDB
/// 5.1 or newer.
///
/// The class is published in many copies of one article, "Mongo distributed lock by example". An increment that returns
/// the new value decides which contender comes first: 1 is the winner. An expired lock is removed by a delete that is
/// bounded by the expiry. So if two contenders both saw the lock expired, the slower one cannot remove the lock that
/// the faster one has just taken.
///
/// | Java | here | repaired, and why |
/// |---|---|---|
/// | `getLock(key, expire)` | [`acquire`](Self::acquire): a read; if it shows an expired lock, a bounded delete; one increment | returns a grant with the holder, which a release needs |
/// | `MongoLockDao.getByKey` | the read, which brings the server's time along | compared with the server's clock instead of the client's: a client that is ahead would take over locks that are alive |
/// | `releaseLockExpire`, `removeExpire` | [`remove_expired`](Self::remove_expired): a delete bounded by `expire` | bounded by the server's clock, in the same command |
/// | `incrByWithExpire` | [`increment`](Self::increment): `findAndModify`, upsert, `$inc`, new value | granted only if the document that comes back has our holder and expiry: Java also takes a document with the value 0. Sent once: Java sends it twice, so the winner of an empty field counts to 2 in the database. `$setOnInsert` for `expire`: Java's losers set it, and so extend the winner's lock |
/// | `releaseLock(key)` | [`release`](Self::release): a delete bounded by key and holder | Java deletes by key alone, so a slow holder frees the lock of the next one |
/// | none | [`prepare`](Self::prepare): a unique index on `key` | without it two upserts at once can both insert, and both read 1 |
///
/// The field `holder` is new. The Java class neither reads nor removes it.
///
/// # What it cannot repair
///
/// The Java services stay as they are. If a Java service loses, it moves the `expire` of our lock back. Its
/// `releaseLock` frees our lock, and its clock decides when it takes over. There is no fence.
///
/// On a sharded cluster the router's clock decides, as the client's does in Java, and routers often run beside the
/// applications: do not use it there unless their clocks agree. [`MongoStore`](crate::MongoStore) uses the shard's
/// clock.
///
/// A contender that loses writes too. Before its increment, an acquire finds no lock, or deletes an expired one. If the
/// lock is released between that and the increment of a contender that came second, the increment inserts the lock
/// again. If that contender is a Java service, it takes the value 2 of its second increment for a loss. Then nobody
/// holds the lock, and nobody can take it for a whole expiry.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
/// use leasehold::MongoDistributedLock;
///
/// # async fn example(client: mongodb::Client) -> Result<(), leasehold::Error> {
/// let collection = client.database("app").collection::<mongodb::bson::Document>("mongoLock");
/// let locks = MongoDistributedLock::new(&collection);
/// locks.prepare().await?;
/// if let Some(grant) = locks.acquire("invoice-run", Duration::from_secs(60)).await? {
///     // The work goes here.
///     locks.release(&grant).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MongoDistributedLock {
    locks: Collections<Document>,
    first_look: FirstLook,
}

/// A lock that [`MongoDistributedLock::acquire`] granted. Dropping it releases nothing: the lock stays until its
/// expiry.
#[derive(Clone, Debug)]
pub struct DistributedLockGrant {
    key: Key,
    holder: Uuid,
    expires_at: DateTime<Utc>,
    deadline: Instant,
}

/// The largest difference that is assumed between the clocks of two members of a replica set.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);

impl DistributedLockGrant {
    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The value of the document's field `holder`.
    pub fn holder(&self) -> Uuid {
        self.holder
    }

    /// When the lock expires, on the server's clock.
    pub fn expires_at(&self) -> DateTime<Utc> {
        self.expires_at
    }

    /// How long the holder may still rely on the lock, by the clock of this process, counted from the instant before
    /// the first command was sent. Zero when that time is over. It is 100 ms shorter than the ttl, because after a
    /// failover the clock of another server decides.
    pub fn remaining(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        left.saturating_sub(CLOCK_MARGIN)
    }
}

impl MongoDistributedLock {
    /// Makes locks in this collection. Sends nothing yet.
    pub fn new<T: Send + Sync>(collection: &Collection<T>) -> Self {
        Self {
            locks: Collections::new(collection),
            first_look: FirstLook::default(),
        }
    }

    /// Sets whether a write must be in the server's journal before it is acknowledged, as
    /// [`MongoStore::journal`](crate::MongoStore::journal) says. The default is `true`.
    pub fn journal(mut self, journal: bool) -> Self {
        self.locks = self.locks.journal(journal);
        self
    }

    /// Creates the unique index on `key`, and takes and releases a lock on a key that nobody uses. The call can be
    /// repeated.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the collection has documents of another program, or several documents of one key. The
    /// Java class can leave such documents behind: stop the services, remove the documents, and prepare again. The same
    /// error says that the collection is a view or a time series, is capped, has a collation, is in one of the server's
    /// own databases, has a unique index that refuses all locks but one, or a validator that refuses locks. Otherwise as
    /// [`Error`] says.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. That does not stop a command that was sent. A repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        let this = self.clone();
        let work = async move {
            let (facts, _) = this.locks.look().await?;
            FOR_COUNTED_LOCKS_WITHOUT_INDEX.judge(&facts)?;
            this.create_index().await?;
            this.try_a_lock().await?;
            this.first_look.record(true);
            Ok(())
        };
        self.locks.call("prepare", CALL_TIMEOUT, work).await
    }

    /// Takes a lock that nobody else uses, and releases it: the collection may have a validator, or this user may only
    /// read.
    async fn try_a_lock(&self) -> Result<(), Error> {
        let key = Key::new(format!("leasehold prepare {}", Uuid::new_v4()))?;
        let (ttl, sent) = (CALL_TIMEOUT, Instant::now());
        let (_, now) = self.read(&key).await?;
        if let Some(grant) = self.count_up(key, ttl, now, sent + ttl).await? {
            self.delete_own(&grant.key, grant.holder).await?;
        }
        Ok(())
    }

    async fn create_index(&self) -> Result<(), Error> {
        let unique = IndexOptions::builder().unique(true).build();
        let keys = doc! { "key": 1 };
        let index = IndexModel::builder().keys(keys).options(unique).build();
        match self.locks.durable_writes().await?.create_index(index).await {
            Ok(_) => Ok(()),
            Err(twice) if code(&twice) == Some(DUPLICATE_KEY) => {
                let text = sentence(&twice.kind);
                let value = duplicate(&text).map_or("", |found| found.value);
                Err(not_prepared(in_the_way(value)))
            }
            Err(error) => Err(classify(error)),
        }
    }

    /// Takes the lock if it is free or has expired; `None` if it is held. Java: `getLock`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::InvalidTtl`] unless the ttl is between 1 ms and 365 days;
    /// [`Error::NotPrepared`] if the first look at the collection shows that it is not as [`prepare`](Self::prepare)
    /// leaves it (a user who may not list collections and indexes is not told); and the error with which the server
    /// answers. After [`Error::TimedOut`] (10 s) the lock may still be taken, until its expiry.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: an acquire that was sent is carried out, and a lock that it takes stays until its expiry.
    pub async fn acquire(
        &self,
        key: impl AsRef<str>,
        ttl: Duration,
    ) -> Result<Option<DistributedLockGrant>, Error> {
        self.take("acquire", Key::new(key)?, ttl, true).await
    }

    /// Removes the lock if it has expired. Returns whether it did. Java: `removeExpire`.
    ///
    /// A document whose `expire` is not a number stays. If the key has several documents, all that have expired go.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], and the error with which the server answers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. That does not stop a delete that was sent. A repeated call is harmless.
    pub async fn remove_expired(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let (this, key) = (self.clone(), Key::new(key)?);
        let work = async move { this.delete_expired(&key).await };
        self.locks.call("remove expired", CALL_TIMEOUT, work).await
    }

    /// The step that decides: adds 1 to the lock's `value`, and takes the lock if the new value is 1 and this call has
    /// inserted the document. Java: `incrByWithExpire`. [`acquire`](Self::acquire) reads the lock first, so that it writes nothing if the lock is
    /// held.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, like [`acquire`](Self::acquire).
    pub async fn increment(
        &self,
        key: impl AsRef<str>,
        ttl: Duration,
    ) -> Result<Option<DistributedLockGrant>, Error> {
        self.take("increment", Key::new(key)?, ttl, false).await
    }

    /// Frees the lock of this grant, and no other. Returns `false` if it was no longer held. Java: `releaseLock`.
    ///
    /// # Errors
    ///
    /// The error with which the server answers. The release can be repeated.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. That does not stop a release that was sent.
    pub async fn release(&self, grant: &DistributedLockGrant) -> Result<bool, Error> {
        let (this, key, holder) = (self.clone(), grant.key.clone(), grant.holder);
        let work = async move { this.delete_own(&key, holder).await };
        self.locks.call("release", CALL_TIMEOUT, work).await
    }

    /// Increments the lock, perhaps only after a look at who holds it.
    async fn take(
        &self,
        operation: &'static str,
        key: Key,
        ttl: Duration,
        after_a_look: bool,
    ) -> Result<Option<DistributedLockGrant>, Error> {
        let ttl = validation::checked_ttl(ttl, Duration::ZERO)?;
        let this = self.clone();
        let work = async move {
            let sent = Instant::now();
            let judge = |facts: &_| FOR_COUNTED_LOCKS.judge(facts);
            this.first_look.ensure_fit(&this.locks, judge).await?;
            let (expire, now) = this.read(&key).await?;
            if after_a_look && let Some(expire) = expire {
                if expire >= now {
                    return Ok(None);
                }
                this.delete_expired(&key).await?;
            }
            this.count_up(key, ttl, now, sent + ttl).await
        };
        self.locks.call(operation, CALL_TIMEOUT, work).await
    }

    /// Reads the lock and the server's time, in one command. A pipeline cannot contain `$inc`, and only a pipeline can
    /// contain `$$NOW`. So the increment needs a time that was read before.
    ///
    /// Returns the expiry, if there is a lock, and the time, in milliseconds of the server's clock.
    async fn read(&self, key: &Key) -> Result<(Option<i64>, i64), Error> {
        let lock = doc! { "$lookup": {
            "from": self.locks.reads().name(),
            "pipeline": [
                { "$match": { "key": key.as_str() } },
                { "$limit": 1 },
                { "$project": { "expire": 1 } },
            ],
            "as": "locks",
        } };
        let time = doc! { "$documents": [{ "now": { "$toLong": "$$NOW" } }] };
        let database = self.locks.database();
        let read = database.aggregate([time, lock]).await;
        let mut cursor = read.map_err(classify)?;
        let found = if cursor.advance().await.map_err(classify)? {
            cursor.deserialize_current().map_err(classify)?
        } else {
            Document::new()
        };
        let (Some(now), Ok(locks)) = (found.get("now").and_then(integer), found.get_array("locks"))
        else {
            return Err(failed("the server does not tell its time"));
        };
        let damaged = || Error::not_a_lock(key, "its field expire is not a number of milliseconds");
        let expire = locks.first().map(|lock| {
            let expire = lock.as_document().and_then(|lock| lock.get("expire"));
            expire.and_then(integer).ok_or_else(damaged)
        });
        Ok((expire.transpose()?, now))
    }

    async fn delete_expired(&self, key: &Key) -> Result<bool, Error> {
        let expired = doc! {
            "key": key.as_str(),
            // Without this condition, a value that is missing, null or NaN would count as expired: it is less than any
            // number in an expression, and of no order with numbers in a query, which is what the class sends.
            "expire": { "$lt": i64::MAX },
            "$expr": { "$lt": ["$expire", { "$toLong": "$$NOW" }] },
        };
        let locks = self.locks.durable_writes().await?;
        // A collection without the unique index may have several documents of the key.
        let removed = locks.delete_many(expired).await.map_err(classify)?;
        Ok(removed.deleted_count > 0)
    }

    async fn delete_own(&self, key: &Key, holder: Uuid) -> Result<bool, Error> {
        let own = doc! { "key": key.as_str(), "holder": holder.to_string() };
        let locks = self.locks.durable_writes().await?;
        let removed = locks.delete_one(own).await.map_err(classify)?;
        Ok(removed.deleted_count > 0)
    }

    async fn count_up(
        &self,
        key: Key,
        ttl: Duration,
        now: i64,
        deadline: Instant,
    ) -> Result<Option<DistributedLockGrant>, Error> {
        let now = DateTime::from_timestamp_millis(now).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let expires_at = after(now, ttl);
        let holder = random::uuid();
        let update = doc! {
            // `$inc` of a double, as Java sends it.
            "$inc": { "value": 1.0 },
            "$setOnInsert": {
                "expire": expires_at.timestamp_millis(),
                "holder": holder.to_string(),
            },
        };
        let locks = self.locks.durable_writes().await?;
        for _ in 0..MAX_SENDS {
            let counted = locks
                .find_one_and_update(doc! { "key": key.as_str() }, update.clone())
                .upsert(true)
                .return_document(ReturnDocument::After)
                .await;
            let document = match counted {
                Ok(document) => document,
                Err(race) if is_race(&race, "key") => continue,
                Err(error) => {
                    let error = classify(error);
                    if error.is_ambiguous() {
                        // The lock may have been taken, and the caller has no grant to release it with. If the delete
                        // fails too, the lock is free at its expiry.
                        let _ = self.delete_own(&key, holder).await;
                    }
                    return Err(error);
                }
            };
            let grant = DistributedLockGrant {
                key,
                holder,
                expires_at,
                deadline,
            };
            return Ok(document
                .is_some_and(|document| is_of(&grant, &document))
                .then_some(grant));
        }
        Err(Error::Contention { key })
    }
}

/// Whether an increment inserted this document, and so took the lock. A value of 1 alone does not tell: the document may
/// have had the value 0, and then the expiry and the holder of somebody else.
fn is_of(grant: &DistributedLockGrant, document: &Document) -> bool {
    let number = |field| document.get(field).and_then(integer);
    number("value") == Some(1)
        && number("expire") == Some(grant.expires_at.timestamp_millis())
        && document.get_str("holder").ok() == Some(&*grant.holder.to_string())
}

/// Why the unique index cannot be created, by the value of `key` that several documents have.
fn in_the_way(value: &str) -> &'static str {
    if value == "null" {
        "several documents have no field key, as those of MongoStore and of other programs: give these locks a \
         collection of their own"
    } else {
        "several documents have the same key: stop the services that use the collection, remove the documents, and \
         prepare again"
    }
}

impl fmt::Debug for MongoDistributedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoDistributedLock")
            .field("collection", &self.locks.reads().namespace().to_string())
            .finish_non_exhaustive()
    }
}

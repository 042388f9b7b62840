//! The operations on many keys: lists, purges, and looks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{Bson, Document, RawDocument, doc};

use super::{
    Classic, ReadLevel,
    form::{CLASSIC_SCHEMA, ClassicForm as _, has_places},
    read_at,
};
use crate::{
    messages::{ListRequest, LookAnswer, LookRequest, Page},
    model::{Error, Key, LimiterRecord, LockRecord},
    rules::{self, Decision, Write},
    store::mongodb::{
        decode,
        error::classify,
        read::{by_key, page},
        statements,
    },
};

impl Classic<'_> {
    /// A page of locks. They are judged by the clock of the server that keeps the first of them.
    pub(crate) async fn list(self, request: &ListRequest) -> Result<Page, Error> {
        let mut wanted = statements::keys_of_page(request);
        wanted.insert("schema", CLASSIC_SCHEMA);
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        // The time is read first: a lease that is renewed after that is still live at that time.
        let now = self.time_of(wanted.clone(), limit).await?;
        let locks = self.0.locks.reads();
        let found = locks.find(wanted).sort(doc! { "_id": 1 }).limit(limit);
        let read = |document: &RawDocument, key: &Key| {
            // A new document is not a lock yet.
            let lock = LockRecord::read(document, key, now)?;
            Ok(lock.map(|lock| (lock, now)))
        };
        page(found.await.map_err(classify)?, request, read).await
    }

    /// The time of the server that keeps the first lock of a page. The earliest possible time if the page has no lock.
    async fn time_of(self, wanted: Document, limit: i64) -> Result<DateTime<Utc>, Error> {
        let locks = self.0.locks.reads();
        let ids = locks.find(wanted).projection(doc! { "_id": 1 });
        let ids = ids.sort(doc! { "_id": 1 }).limit(limit).await;
        let mut ids = ids.map_err(classify)?;
        while ids.advance().await.map_err(classify)? {
            let Ok(Ok(key)) = ids.current().get_str("_id").map(Key::new) else {
                continue;
            };
            if let Some(now) = self.time_at(&key).await? {
                return Ok(now);
            }
        }
        Ok(DateTime::<Utc>::MIN_UTC)
    }

    /// The time of the server that keeps the lock of this key. `None` if the document was removed meanwhile, or is not
    /// a lock.
    async fn time_at(self, key: &Key) -> Result<Option<DateTime<Utc>>, Error> {
        match read_at(self.0.locks.reads(), &key.as_str().into(), key, false).await {
            Ok(seen) => Ok(seen.map(|seen| seen.now)),
            Err(Error::NotALock { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a look at these leases tells. Only a document with places needs the time, which costs a write, so the
    /// documents are read first. Those with places are judged by the clock of the server that keeps the first of them,
    /// and of the others a lease that has expired counts as a holder.
    pub(crate) async fn look(self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let locks = self.0.locks.reads();
        let keys = leases.iter().map(|it| it.key.as_str()).collect();
        let mut wanted = statements::of_keys(keys);
        wanted.insert("schema", CLASSIC_SCHEMA);
        let found = locks.find(wanted).await.map_err(classify)?;
        let documents = by_key(found).await?;
        let (mut now, mut answers) = (None, Vec::new());
        for LookRequest { key, lease } in leases {
            let document = documents.get(key.as_str());
            let is_awaited = document.is_some_and(|document| has_places(document));
            if is_awaited && now.is_none() {
                now = self.time_at(key).await?;
            }
            let at = if is_awaited {
                now
            } else {
                Some(DateTime::<Utc>::MIN_UTC)
            };
            let mut answer = LookAnswer::default();
            // There is no time if the document was removed meanwhile.
            if let (Some(document), Some(at)) = (document, at)
                && let Some(lock) = rules::found(LockRecord::read(document, key, at))?
            {
                answer = rules::look(&rules::inspect(&lock, at), *lease);
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Removes what has been dead for `retention`. Each document is judged by the clock of the server that keeps it.
    pub(crate) async fn purge(self, retention: Duration) -> Result<u64, Error> {
        let locks = self.0.locks.reads();
        let all = locks.find(doc! { "schema": CLASSIC_SCHEMA });
        let mut all = all.await.map_err(classify)?;
        let mut removed = 0;
        while all.advance().await.map_err(classify)? {
            let id = decode::get(all.current(), "_id").and_then(|id| Bson::try_from(id).ok());
            match self.remove_document(id, retention).await {
                Ok(is_removed) => removed += u64::from(is_removed),
                // A document that is invalid, or of a later version, stays, and does not stop the removal of others.
                Err(
                    Error::NotALock { .. }
                    | Error::NotALimiter { .. }
                    | Error::UnsupportedSchema { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Removes the document with this id, if it is one of ours and has been dead for `retention`.
    async fn remove_document(self, id: Option<Bson>, retention: Duration) -> Result<bool, Error> {
        match id {
            Some(Bson::String(key)) => match Key::new(key) {
                Ok(key) => self.remove(&key, retention).await,
                Err(_) => Ok(false),
            },
            Some(Bson::Document(limiter)) => match limiter.get_str("limiter").map(Key::new) {
                Ok(Ok(key)) => self.remove_limiter(limiter.into(), &key, retention).await,
                _ => Ok(false),
            },
            _ => Ok(false),
        }
    }

    async fn remove_limiter(self, id: Bson, key: &Key, retention: Duration) -> Result<bool, Error> {
        let rule = |record: Option<&LimiterRecord>, now: DateTime<Utc>| {
            let is_over = record.is_some_and(|record| rules::is_over(record, retention, now));
            let is_new = record.is_none();
            let write = if is_over || is_new {
                Write::Remove
            } else {
                Write::Keep
            };
            Decision {
                write,
                answer: is_over,
            }
        };
        self.decide(ReadLevel::Majority, id, key, false, rule).await
    }
}

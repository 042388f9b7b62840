//! The operations on many keys: lists, purges, and looks.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use mongodb::bson::{Bson, Document, doc};

use super::{
    Classic,
    form::{CLASSIC_SCHEMA, ClassicForm as _, has_places},
    read_at,
};
use crate::{
    messages::{ListRequest, LookAnswer, LookRequest, Page},
    model::{Error, Key, LimiterRecord, LockRecord},
    rules::{self, Decision, Write},
    store::{
        listing,
        mongodb::{error::classify, statements},
    },
};

impl Classic<'_> {
    /// A page of locks. They are judged by the clock of the server that keeps the first of them.
    pub(in super::super) async fn list(self, request: &ListRequest) -> Result<Page, Error> {
        let mut wanted = statements::keys_of_page(request);
        wanted.insert("schema", CLASSIC_SCHEMA);
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        // The time is read first: a lease that is renewed after that is still live at that time.
        let now = self.time_of(wanted.clone(), limit).await?;
        let locks = self.0.locks.reads();
        let found = locks.find(wanted).sort(doc! { "_id": 1 }).limit(limit);
        let mut found = found.await.map_err(classify)?;
        let (mut page, mut looked_at) = (Page::default(), 0);
        while found.advance().await.map_err(classify)? {
            looked_at += 1;
            let document = found.current();
            let Ok(id) = document.get_str("_id") else {
                continue;
            };
            if !id.starts_with(request.filter.wanted_prefix()) {
                // After the first key without the prefix no key has it, so this page is the last.
                looked_at = 0;
                break;
            }
            let Ok(key) = Key::new(id) else { continue };
            // A new document is not a lock yet.
            match LockRecord::read(document, &key, now).transpose() {
                Some(lock) => {
                    let lock = lock.map(|lock| (lock, now));
                    listing::add(&mut page, key, lock, &request.filter);
                }
                None => page.next = Some(key),
            }
        }
        if looked_at < request.limit {
            page.next = None;
        }
        Ok(page)
    }

    /// The time of the server that keeps the first lock of a page. The earliest possible time if the page has no lock.
    async fn time_of(self, wanted: Document, limit: i64) -> Result<DateTime<Utc>, Error> {
        let locks = self.0.locks.reads();
        let ids = locks.find(wanted).projection(doc! { "_id": 1 });
        let ids = ids.sort(doc! { "_id": 1 }).limit(limit).await;
        let mut ids = ids.map_err(classify)?;
        while ids.advance().await.map_err(classify)? {
            let Some(key) = ids.current().get_str("_id").ok().map(Key::new) else {
                continue;
            };
            let Ok(key) = key else { continue };
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
    pub(in super::super) async fn look(
        self,
        leases: &[LookRequest],
    ) -> Result<Vec<LookAnswer>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let locks = self.0.locks.reads();
        let keys = leases.iter().map(|it| it.key.as_str()).collect();
        let mut wanted = statements::of_keys(keys);
        wanted.insert("schema", CLASSIC_SCHEMA);
        let mut found = locks.find(wanted).await.map_err(classify)?;
        let mut documents = HashMap::new();
        while found.advance().await.map_err(classify)? {
            let document = found.current();
            if let Ok(id) = document.get_str("_id") {
                documents.insert(id.to_owned(), document.to_owned());
            }
        }
        let (mut now, mut answers) = (None, Vec::new());
        for LookRequest { key, lease } in leases {
            let Some(document) = documents.get(key.as_str()) else {
                answers.push(LookAnswer::default());
                continue;
            };
            let at = if has_places(document) {
                if now.is_none() {
                    now = self.time_at(key).await?;
                }
                now
            } else {
                Some(DateTime::<Utc>::MIN_UTC)
            };
            // `None` if the document was removed meanwhile.
            let Some(at) = at else {
                answers.push(LookAnswer::default());
                continue;
            };
            let lock = rules::found(LockRecord::read(document, key, at))?;
            let look = lock.map(|lock| rules::look(&rules::inspect(&lock, at), *lease));
            answers.push(look.unwrap_or_default());
        }
        Ok(answers)
    }

    /// Removes what has been dead for `retention`. Each document is judged by the clock of the server that keeps it.
    pub(in super::super) async fn purge(self, retention: Duration) -> Result<u64, Error> {
        let locks = self.0.locks.reads();
        let all = locks.find(doc! { "schema": CLASSIC_SCHEMA });
        let mut all = all.await.map_err(classify)?;
        let mut removed = 0;
        while all.advance().await.map_err(classify)? {
            let document = all.current();
            let Ok(Some(id)) = document.get("_id") else {
                continue;
            };
            let Ok(id) = Bson::try_from(id) else {
                continue;
            };
            let is_removed = match &id {
                Bson::String(key) => match Key::new(key.as_str()) {
                    Ok(key) => self.remove(id.clone(), &key, retention).await,
                    Err(_) => continue,
                },
                Bson::Document(limiter) => match limiter.get_str("limiter").map(Key::new) {
                    Ok(Ok(key)) => self.remove_limiter(id.clone(), &key, retention).await,
                    _ => continue,
                },
                _ => continue,
            };
            match is_removed {
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

    async fn remove_limiter(self, id: Bson, key: &Key, retention: Duration) -> Result<bool, Error> {
        let rule = |record: Option<&LimiterRecord>, now: DateTime<Utc>| {
            let is_over = record.is_some_and(|record| rules::is_over(record, retention, now));
            let is_new = record.is_none();
            Decision {
                write: if is_over || is_new {
                    Write::Remove
                } else {
                    Write::Keep
                },
                answer: is_over,
            }
        };
        self.decide(id, key, false, rule).await
    }
}

//! Reads: one document, those of several keys, or a page of them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use mongodb::{
    Cursor,
    bson::{Document, RawDocument, RawDocumentBuf, doc},
};

use super::{
    decode::{self, timed},
    error::classify,
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{ListRequest, LookAnswer, LookRequest, Page},
    model::{Error, Key, LockRecord, LockState, PermitsLeft, Quota},
    rules,
    store::listing,
};

impl Pipelines<'_> {
    /// The document of a key, with the server's time.
    pub(super) async fn read(self, key: &Key) -> Result<Option<RawDocumentBuf>, Error> {
        self.find(statements::filter(key)).await
    }

    /// The document that a filter finds, with the server's time.
    async fn find(self, filter: Document) -> Result<Option<RawDocumentBuf>, Error> {
        let clock = self.statement_clock;
        let read = self.store.locks.reads().find_one(filter);
        read.projection(clock.projection()).await.map_err(classify)
    }

    /// The documents of these keys, each with the server's time.
    pub(super) async fn documents(
        self,
        keys: Vec<&str>,
    ) -> Result<HashMap<String, RawDocumentBuf>, Error> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        // The batch has room for one more than there can be. So the server sees with the first answer that it is at the
        // end, and the driver does not ask for a second one.
        let all = u32::try_from(keys.len() + 1).unwrap_or(u32::MAX);
        let locks = self.store.locks.reads();
        let found = locks
            .find(statements::of_keys(keys))
            .projection(self.statement_clock.projection())
            .batch_size(all)
            .await;
        by_key(found.map_err(classify)?).await
    }

    /// The state of a key.
    pub(super) async fn inspect(self, key: &Key) -> Result<Option<LockState>, Error> {
        let Some(document) = self.read(key).await? else {
            return Ok(None);
        };
        let (record, now) = timed(decode::lock(&document, key)?)?;
        Ok(Some(rules::inspect(&record, now)))
    }

    /// What a limiter has left.
    pub(super) async fn peek(self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        let found = self.find(statements::limiter_filter(key, quota)).await?;
        let Some(document) = found else {
            // Without a grant nothing depends on the time.
            return Ok(rules::peek(None, quota, DateTime::UNIX_EPOCH));
        };
        let (record, now) = timed(decode::limiter(&document, key)?)?;
        Ok(rules::peek(Some(&record), quota, now))
    }

    /// What a look at these leases tells, by one read. Whether a document is a lock is decided by its other fields too, so
    /// the whole document is read.
    pub(super) async fn look(self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let keys = leases.iter().map(|it| it.key.as_str()).collect();
        let documents = self.documents(keys).await?;
        let answer = |LookRequest { key, lease }: &LookRequest| {
            let document = documents.get(key.as_str());
            let lock = document.map(|document| decode::lock(document, key));
            let Some(lock) = rules::found(lock.transpose())? else {
                return Ok(LookAnswer::default());
            };
            let (record, now) = timed(lock)?;
            Ok(rules::look(&rules::inspect(&record, now), *lease))
        };
        leases.iter().map(answer).collect()
    }

    /// A page of locks, in the order of their keys.
    pub(super) async fn list(self, request: &ListRequest) -> Result<Page, Error> {
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        let clock = self.statement_clock;
        let locks = self.store.locks.reads();
        let found = locks
            .find(clock.filter(statements::page(request)))
            .projection(clock.projection())
            .sort(doc! { "_id": 1 })
            .limit(limit)
            .await;
        let read = |document: &RawDocument, key: &Key| {
            let lock = decode::lock(document, key).and_then(timed);
            lock.map(Some)
        };
        page(found.map_err(classify)?, request, read).await
    }
}

/// The documents that a cursor finds, by their keys.
pub(super) async fn by_key(
    mut found: Cursor<RawDocumentBuf>,
) -> Result<HashMap<String, RawDocumentBuf>, Error> {
    let mut documents = HashMap::new();
    while found.advance().await.map_err(classify)? {
        let document = found.current();
        if let Some(key) = decode::id(document) {
            documents.insert(key.to_owned(), document.to_owned());
        }
    }
    Ok(documents)
}

/// A page of the locks that a cursor finds in the order of their keys. A document in which `read` finds no lock is left
/// out.
pub(super) async fn page(
    mut found: Cursor<RawDocumentBuf>,
    request: &ListRequest,
    read: impl Fn(&RawDocument, &Key) -> Result<Option<(LockRecord, DateTime<Utc>)>, Error>,
) -> Result<Page, Error> {
    let (mut page, mut looked_at) = (Page::default(), 0);
    while found.advance().await.map_err(classify)? {
        looked_at += 1;
        let document = found.current();
        let Some(id) = decode::id(document) else {
            continue;
        };
        if !id.starts_with(request.filter.wanted_prefix()) {
            // The keys are in order: after the first key without the prefix no key has it, so this page is the last.
            looked_at = 0;
            break;
        }
        // A document whose id is not a key is not a lock.
        let Ok(key) = Key::new(id) else { continue };
        match read(document, &key).transpose() {
            Some(lock) => listing::add(&mut page, key, lock, &request.filter),
            None => page.next = Some(key),
        }
    }
    if looked_at < request.limit {
        page.next = None;
    }
    Ok(page)
}

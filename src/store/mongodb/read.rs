//! Reads: one document, or a page of them.

use mongodb::bson::{RawDocumentBuf, doc};

use super::{
    decode::{self, timed},
    error::classify,
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{ListRequest, Page},
    model::{Error, Key, LockState},
    rules,
    store::listing,
};

impl Pipelines<'_> {
    /// The document of a key, with the server's time.
    pub(super) async fn read(self, key: &Key) -> Result<Option<RawDocumentBuf>, Error> {
        let clock = self.statement_clock;
        self.store
            .locks
            .reads()
            .find_one(statements::filter(key))
            .projection(clock.projection())
            .await
            .map_err(classify)
    }

    /// The state of a key.
    pub(super) async fn inspect(self, key: &Key) -> Result<Option<LockState>, Error> {
        let Some(document) = self.read(key).await? else {
            return Ok(None);
        };
        let (record, now) = timed(decode::lock(&document, key)?)?;
        Ok(Some(rules::inspect(&record, now)))
    }

    /// Those of these keys for which a process waits, by one read. The server skips the documents without places. A
    /// document that is not a lock is left out, which its other fields decide too, so the whole document is read.
    pub(super) async fn waited_for(self, keys: &[Key]) -> Result<Vec<Key>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = statements::with_waiters(keys);
        let documents = self.documents_that(wanted, keys.len()).await?;
        let mut waited_for = Vec::new();
        for key in keys {
            let Some(document) = documents.get(key.as_str()) else {
                continue;
            };
            let (record, now) = match decode::lock(document, key) {
                Ok(lock) => timed(lock)?,
                Err(Error::NotALock { .. } | Error::UnsupportedSchema { .. }) => continue,
                Err(error) => return Err(error),
            };
            if !rules::inspect(&record, now).waiters.is_empty() {
                waited_for.push(key.clone());
            }
        }
        Ok(waited_for)
    }

    /// A page of locks, in the order of their keys.
    pub(super) async fn list(self, request: &ListRequest) -> Result<Page, Error> {
        let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
        let clock = self.statement_clock;
        let mut found = self
            .store
            .locks
            .reads()
            .find(clock.filter(statements::page(request)))
            .projection(clock.projection())
            .sort(doc! { "_id": 1 })
            .limit(limit)
            .await
            .map_err(classify)?;
        let mut page = Page::default();
        let mut looked_at = 0;
        while found.advance().await.map_err(classify)? {
            looked_at += 1;
            let document = found.current();
            let Some(id) = decode::id(document) else {
                continue;
            };
            if !id.starts_with(request.filter.wanted_prefix()) {
                // The keys are in order: after the first key without the prefix no key has it, so this page is the
                // last.
                looked_at = 0;
                break;
            }
            // A document whose id is not a key is not a lock.
            let Ok(key) = Key::new(id) else { continue };
            let lock = decode::lock(document, &key).and_then(timed);
            listing::add(&mut page, key, lock, &request.filter);
        }
        if looked_at < request.limit {
            page.next = None;
        }
        Ok(page)
    }
}

//! Reads: one document, or a page of them.

use mongodb::bson::{RawDocumentBuf, doc};

use super::{
    decode::{self, timed},
    error::classify,
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{ListRequest, LookAnswer, LookRequest, Page},
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

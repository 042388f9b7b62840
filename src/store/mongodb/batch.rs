//! Acquires and releases of several keys, by two commands for all of them.

use futures::future::join_all;
use mongodb::bson::Document;

use super::{
    acquire::answered,
    bulk::{BulkResult, statement},
    concern::Deployment,
    decode::{self, timed},
    error::{is_statement_race, statement_code, statement_failed},
    pipelines::Pipelines,
    statements::{self, Form},
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
        ReleaseRequest,
    },
    model::{Error, Key},
};

impl Pipelines<'_> {
    /// Carries out acquires and releases together. The answers are in the order of the requests.
    pub(super) async fn batch(self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        // On a sharded cluster a statement for many documents goes to several shards, and may be applied to a document
        // twice or not at all, and the number of changed documents proves nothing.
        let is_sharded = self.store.locks.ask_deployment().await? == Deployment::Sharded;
        // A command has one write concern. So releases go by one statement if a failover may undo each of them, and the
        // batch has nothing else.
        let plain = requests.iter().map(|request| match request {
            BatchRequest::Release(request) if self.is_plain(request) => Some(request),
            BatchRequest::Release(_) | BatchRequest::Acquire(_) => None,
        });
        if let Some(releases) = plain.collect::<Option<Vec<_>>>()
            && !is_sharded
        {
            let answers = self.release_together(&releases).await?.into_iter();
            let answers = answers.map(|answer| answer.map(BatchAnswer::Release));
            return Ok(answers.collect());
        }
        let (statements, mut own) = self.statements(requests, is_sharded);
        let sent = statements.len();
        let keys = requests.iter().filter_map(|request| match request {
            BatchRequest::Acquire(request) => Some(&request.key),
            BatchRequest::Release(_) => None,
        });
        let shown = keys.clone().map(Key::as_str).collect();
        let mut result = self.change_many(statements, shown).await?;
        self.insert_missing(requests, (&mut own, sent), &mut result)
            .await;
        keys.for_each(|key| self.store.known_keys.lock().insert(key));
        // Some requests have to be sent once more. Those run concurrently.
        let answers = requests.iter().zip(own).map(async |(request, own)| {
            Ok(match request {
                BatchRequest::Acquire(request) => {
                    BatchAnswer::Acquire(self.acquired(&result, own, request).await?)
                }
                BatchRequest::Release(request) => {
                    let failure = own.and_then(|index| result.failed.get(&index));
                    BatchAnswer::Release(self.released(failure, request).await?)
                }
            })
        });
        Ok(join_all(answers).await)
    }

    /// Sends the acquires once more whose keys were likely to have a document, and have none, because it was removed: each
    /// now has a statement of its own, after those that were `sent`. One is sent by itself later, and so are all if this
    /// fails, because the other requests have been carried out.
    async fn insert_missing(
        self,
        requests: &[BatchRequest],
        (own, sent): (&mut [Option<usize>], usize),
        result: &mut BulkResult,
    ) {
        let is_missing = |key: &Key| !result.documents.contains_key(key.as_str());
        let asked = requests.iter().zip(own);
        let missing = asked.filter_map(|(request, own)| match request {
            BatchRequest::Acquire(it) if own.is_none() && is_missing(&it.key) => Some((it, own)),
            BatchRequest::Acquire(_) | BatchRequest::Release(_) => None,
        });
        let missing: Vec<_> = missing.collect();
        if missing.len() < 2 {
            return;
        }
        let keys = missing.iter().map(|(it, _)| it.key.as_str()).collect();
        let statements = missing.iter().map(|(it, _)| self.acquire_one(it)).collect();
        let Ok(inserted) = self.change_many(statements, keys).await else {
            return;
        };
        for (at, (_, own)) in missing.into_iter().enumerate() {
            *own = Some(sent + at);
        }
        let failed = inserted.failed.into_iter();
        result
            .failed
            .extend(failed.map(|(at, error)| (sent + at, error)));
        result.documents.extend(inserted.documents);
    }

    /// The statement of an acquire that has one of its own.
    fn acquire_one(self, request: &AcquireRequest) -> Document {
        let update = statements::acquire(request, Form::Short, self.store.retention);
        statement(&request.key, update, true)
    }

    /// The statements for these requests, and for each request the index of its own statement. Acquires of keys that are
    /// likely to have a document have none: they go together. If a key has no document after all, or its statement is
    /// refused because of another document, the acquire is sent again.
    fn statements(
        self,
        requests: &[BatchRequest],
        is_sharded: bool,
    ) -> (Vec<Document>, Vec<Option<usize>>) {
        let retention = self.store.retention;
        let known = self.store.known_keys.lock();
        let may_share = |request: &AcquireRequest| {
            !is_sharded && statements::is_plain(request) && known.contains(&request.key)
        };
        // The terms of each group, and its requests.
        let mut groups: Vec<(&AcquireRequest, Vec<&AcquireRequest>)> = Vec::new();
        let plain = requests.iter().filter_map(|request| match request {
            BatchRequest::Acquire(request) if may_share(request) => Some(&**request),
            BatchRequest::Acquire(_) | BatchRequest::Release(_) => None,
        });
        for request in plain {
            let mut all = groups.iter_mut();
            match all.find(|(terms, _)| statements::are_alike(terms, request)) {
                Some((_, group)) => group.push(request),
                None => groups.push((request, vec![request])),
            }
        }
        groups.retain(|(_, group)| group.len() > 1);
        let shares = |request: &AcquireRequest| {
            let mut shared = groups.iter().flat_map(|(_, group)| group);
            shared.any(|it| std::ptr::eq(*it, request))
        };
        let (mut statements, mut own) = (Vec::new(), Vec::new());
        for request in requests {
            let statement = match request {
                BatchRequest::Acquire(request) if shares(request) => {
                    own.push(None);
                    continue;
                }
                BatchRequest::Acquire(request) => self.acquire_one(request),
                BatchRequest::Release(request) => {
                    let update = statements::release_or_fail(request, retention);
                    // With an upsert it also fails if there is no document.
                    statement(&request.key, update, true)
                }
            };
            own.push(Some(statements.len()));
            statements.push(statement);
        }
        for (terms, group) in &groups {
            statements.push(statements::acquire_together(terms, group, retention));
        }
        (statements, own)
    }

    /// The answer to an acquire of the batch. The lease is granted if it is in its document.
    ///
    /// A majority has the changes of the batch, and what was there before. If the batch took so long that its client has
    /// sent the request again by itself, the document may also show the grant of that one, which no majority may have yet.
    async fn acquired(
        self,
        result: &BulkResult,
        own: Option<usize>,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        if let Some(error) = own.and_then(|index| result.failed.get(&index)) {
            // Another request inserted the key at the same moment.
            if is_statement_race(error) {
                return self.acquire_again(request).await;
            }
            let error = statement_failed(error);
            return Err(self.explain_failure(&request.key, error).await);
        }
        if let Some(document) = result.documents.get(request.key.as_str()) {
            let lock = decode::lock(document, &request.key);
            // An upsert may have left an empty document, which only a statement of the key's own grants.
            if own.is_none() && lock.is_err() {
                return self.acquire_again(request).await;
            }
            let (record, now) = timed(lock?)?;
            match answered(&record, request, now)? {
                // The document that was read may show a done tick that no majority has yet. Or the holder has left
                // between the two commands. It may have been this lease itself.
                Some(AcquireAnswer::Done(_)) | None => {}
                Some(answer) => return Ok(answer),
            }
        }
        self.acquire_again(request).await
    }

    /// The answer to a release of the batch. The lease was released if its statement did not fail.
    async fn released(
        self,
        failure: Option<&Document>,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        let Some(error) = failure else {
            return Ok(ReleaseAnswer::Released);
        };
        if statement_code(error) == Some(statements::NOT_HELD.into()) {
            // The statement may have looked for a sole holder only. The lease may still be there, beside others.
            return self.release_beside(request).await;
        }
        let error = statement_failed(error);
        Err(self.explain_failure(&request.key, error).await)
    }
}

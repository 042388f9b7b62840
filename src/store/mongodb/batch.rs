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
        let (statements, own) = self.statements(requests, is_sharded);
        let keys = requests.iter().filter_map(|request| match request {
            BatchRequest::Acquire(request) => Some(&request.key),
            BatchRequest::Release(_) => None,
        });
        let shown = keys.clone().map(Key::as_str).collect();
        let result = self.change_many(statements, shown).await?;
        self.store.known_keys.lock().extend(keys);
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

    /// The statements for these requests, and for each request the index of its own statement. Acquires of keys that are
    /// likely to have a document have none: they go together. If a key has no document after all, or its statement is
    /// refused because of another document, the acquire is sent again, by itself.
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
            let (key, update) = match request {
                BatchRequest::Acquire(request) if shares(request) => {
                    own.push(None);
                    continue;
                }
                BatchRequest::Acquire(request) => (
                    &request.key,
                    statements::acquire(request, Form::Short, retention),
                ),
                BatchRequest::Release(request) => (
                    &request.key,
                    statements::release_or_fail(request, retention),
                ),
            };
            own.push(Some(statements.len()));
            // With an upsert the statement of a release also fails if there is no document.
            statements.push(statement(key, update, true));
        }
        for (terms, group) in &groups {
            statements.push(statements::acquire_together(terms, group, retention));
        }
        (statements, own)
    }

    /// The answer to an acquire of the batch. The lease is granted if it is in its document.
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

//! Acquires and releases of several keys, by two commands for all of them.

use futures::future::join_all;

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
    model::Error,
};

impl Pipelines<'_> {
    /// Carries out acquires and releases together. The answers are in the order of the requests.
    pub(super) async fn batch(self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        // A command has one write concern. So releases go by one statement if a failover may undo each of them, and the
        // batch has nothing else. On a sharded cluster the number of changed documents proves nothing.
        let plain = requests.iter().map(|request| match request {
            BatchRequest::Release(request) if self.is_plain(request) => Some(request),
            BatchRequest::Release(_) | BatchRequest::Acquire(_) => None,
        });
        if let Some(releases) = plain.collect::<Option<Vec<_>>>()
            && self.store.locks.ask_deployment().await? != Deployment::Sharded
        {
            let answers = self.release_together(&releases).await?.into_iter();
            let answers = answers.map(|answer| answer.map(BatchAnswer::Release));
            return Ok(answers.collect());
        }
        let retention = self.store.retention;
        let statements = requests.iter().map(|request| {
            let (key, update) = match request {
                BatchRequest::Acquire(request) => (
                    &request.key,
                    statements::acquire(request, Form::Short, retention),
                ),
                BatchRequest::Release(request) => (
                    &request.key,
                    statements::release_or_fail(request, retention),
                ),
            };
            // With an upsert the statement of a release also fails if there is no document.
            statement(key, update, true)
        });
        let shown = requests.iter().filter_map(|request| match request {
            BatchRequest::Acquire(request) => Some(request.key.as_str()),
            BatchRequest::Release(_) => None,
        });
        let result = self
            .change_many(statements.collect(), shown.collect())
            .await?;
        // Some requests have to be sent once more. Those run concurrently.
        let answers = requests.iter().enumerate().map(async |(index, request)| {
            Ok(match request {
                BatchRequest::Acquire(request) => {
                    BatchAnswer::Acquire(self.acquired(&result, index, request).await?)
                }
                BatchRequest::Release(request) => {
                    BatchAnswer::Release(self.released(&result, index, request).await?)
                }
            })
        });
        Ok(join_all(answers).await)
    }

    /// The answer to an acquire of the batch. The lease is granted if it is in its document.
    async fn acquired(
        self,
        result: &BulkResult,
        index: usize,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        if let Some(error) = result.failed.get(&index) {
            // Another request inserted the key at the same moment.
            if is_statement_race(error) {
                return self.acquire_again(request).await;
            }
            let error = statement_failed(error);
            return Err(self.explain_failure(&request.key, error).await);
        }
        if let Some(document) = result.documents.get(request.key.as_str()) {
            let (record, now) = timed(decode::lock(document, &request.key)?)?;
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
        result: &BulkResult,
        index: usize,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        let Some(error) = result.failed.get(&index) else {
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

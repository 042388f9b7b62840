//! Acquires and releases of several keys, by two commands for all of them.

use futures::future::join_all;

use super::{
    MongoStore, decode, dialect,
    error::{DUPLICATE_KEY, statement_failed},
    many::{Left, statement},
    timed,
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
        ReleaseRequest,
    },
    model::{Error, Held},
    rules,
};

impl MongoStore {
    pub(super) async fn many(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let statements = requests.iter().map(|request| match request {
            BatchRequest::Acquire(request) => {
                let upsert = request.in_place_of.is_none();
                statement(
                    &request.key,
                    dialect::acquire(request, self.retention),
                    upsert,
                )
            }
            // The upsert has it fail where there is no document either.
            BatchRequest::Release(request) => statement(
                &request.key,
                dialect::release_or_fail(request, self.retention),
                true,
            ),
        });
        let shown = requests.iter().filter_map(|request| match request {
            BatchRequest::Acquire(request) => Some(request.key.as_str()),
            BatchRequest::Release(_) => None,
        });
        let left = self
            .change_many(statements.collect(), shown.collect())
            .await?;
        // The acquires that have to be sent once more do not wait for each other.
        let answers = requests.iter().enumerate().map(async |(index, request)| {
            Ok(match request {
                BatchRequest::Acquire(request) => {
                    BatchAnswer::Acquire(self.acquired(&left, index, request).await?)
                }
                BatchRequest::Release(request) => {
                    BatchAnswer::Release(self.released(&left, index, request).await?)
                }
            })
        });
        Ok(join_all(answers).await)
    }

    /// The lease is granted if it is in its document.
    async fn acquired(
        &self,
        left: &Left,
        index: usize,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        if let Some(error) = left.failed.get(&index) {
            return match code(error) {
                // Somebody else inserted the key at the same moment.
                Some(DUPLICATE_KEY) => self.acquire_again(request).await,
                _ => Err(statement_failed(error)),
            };
        }
        let answer = match left.documents.get(request.key.as_str()) {
            Some(document) => {
                let (record, now) = timed(decode::told(document, &request.key)?)?;
                rules::answer_acquire(&record, request.lease, now)
            }
            None => AcquireAnswer::Held(Held::by_nobody(request.key.clone())),
        };
        match answer {
            // The holder has gone between the two commands, so ask again. It may have been this lease
            // itself, which is then not fresh any more.
            AcquireAnswer::Held(held) if held.holders().is_empty() => {
                self.acquire_again(request).await
            }
            answer => Ok(answer),
        }
    }

    /// The lease was released if its statement did not fail.
    async fn released(
        &self,
        left: &Left,
        index: usize,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        let Some(error) = left.failed.get(&index) else {
            return Ok(ReleaseAnswer::Released);
        };
        match code(error) {
            // Beside others it may be there all the same.
            Some(dialect::NOT_HELD) => self.release_beside(request).await,
            _ => Err(statement_failed(error)),
        }
    }
}

fn code(error: &mongodb::bson::Document) -> Option<i32> {
    let code = error.get("code").and_then(dialect::integer)?;
    i32::try_from(code).ok()
}

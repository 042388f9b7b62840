//! Sends requests to the cluster, and reads what their answers say about the index.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{
    aliased_index::LOOKUP_TIMEOUT,
    answer::{self, Answer, ChangeOutcome, ItemAnswer},
    error::ErrorResponse,
    found,
    index_store::IndexStore,
    server::Server,
    statements::{Asked, HttpRequest, ScriptedUpdate, probe_of},
    transport::{REQUEST_TIMEOUT, SealedRequest, Transport},
};
use crate::{
    model::{Cause, Error, Key},
    store::Store as _,
};

/// What is wrong with an answer to a change that inserts a missing document.
pub(super) const UPSERT_FOUND_NONE: &str = "an upsert found no document";

/// What a node says about an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knows {
    /// The index exists.
    Index,
    /// There is no such index.
    Nothing,
    /// The node has just started, and does not know the indices yet.
    NotYet,
}

impl<C: Transport> IndexStore<C> {
    /// The name of the index with the locks. Without it nothing else is sent, so no error of this is ambiguous.
    pub(super) async fn located(&self) -> Result<Arc<str>, Error> {
        let index = self
            .aliased_index
            .get_or_request(|| self.name(), self.locate(LOOKUP_TIMEOUT))
            .await;
        index.map_err(unsent::<C>)
    }

    /// Checks the index, at most every ten seconds, if one of these changes met contention, or nothing follows from its
    /// answer. An ingest pipeline that lets no document pass causes that too, for example. The index that is known counts
    /// until the cluster says that it is not fit for locks, or not behind an alias any more.
    pub(super) async fn check_index_after(
        &self,
        index: &str,
        outcomes: &[Result<Option<ChangeOutcome>, Error>],
    ) {
        let is_suspect = |outcome: &_| {
            matches!(
                outcome,
                Err(Error::Contention { .. } | Error::Interrupted { .. })
            )
        };
        if !outcomes.iter().any(is_suspect) || !self.aliased_index.begin_check(Instant::now()) {
            return;
        }
        let request = self.statements.get_index();
        let asked = timeout(LOOKUP_TIMEOUT, self.send(&request)).await;
        if let Ok(Ok(Ok(answer))) = asked
            && let Ok(answer) = answer.describes_indices()
            && !self.statements.is_fit_for_locks(index, &answer.json)
        {
            self.aliased_index.forget(index);
        }
    }

    /// Asks for the index behind the aliases, and requires that it is fit for locks. The answer may take this long.
    pub(super) async fn locate(&self, limit: Duration) -> Result<String, Error> {
        let request = self.statements.get_index();
        match self.send_within(limit, &request).await? {
            Ok(answer) => {
                let answer = answer.describes_indices()?;
                let index = self.statements.located(&answer.json);
                index.map_err(|problem| answer.server.not_prepared(problem))
            }
            Err(refusal) => {
                let probe = probe_of(&self.statements.both());
                // A retry can succeed if the index exists by now, or the node will soon know it.
                let recovers =
                    refusal.is_missing_index() && self.knows(&probe).await? != Knows::Nothing;
                Err(self.classify(refusal, recovers, None))
            }
        }
    }

    /// Sends a request and reads its answer as JSON.
    pub(super) async fn send(
        &self,
        request: &HttpRequest,
    ) -> Result<Result<Answer, ErrorResponse>, Error> {
        self.send_within(REQUEST_TIMEOUT, request).await
    }

    /// As [`send`](Self::send), with a time limit of its own. After it the error names the host that gave no answer.
    async fn send_within(
        &self,
        limit: Duration,
        request: &HttpRequest,
    ) -> Result<Result<Answer, ErrorResponse>, Error> {
        let named = self.statements.has_name();
        named.map_err(|problem| Error::NotPrepared {
            store: C::NAME,
            problem,
        })?;
        let (host, status, body) = self
            .nodes
            .send(&self.client, SealedRequest(request, limit))
            .await?;
        *self.last_host.lock() = Some(host.clone());
        let store = C::NAME;
        let server = Server { store, host };
        match (status, serde_json::from_slice::<Value>(&body)) {
            (200..=299, Ok(json)) => Ok(Ok(Answer { json, server })),
            (200..=299, Err(error)) => {
                Err(server.interrupted(format_args!("the answer is not JSON: {error}")))
            }
            (_, Ok(answer)) => Ok(Err(ErrorResponse::of_answer(status, &answer, server))),
            (_, Err(_)) => Ok(Err(ErrorResponse::foreign(status, server))),
        }
    }

    /// The server that gave the last answer.
    pub(super) fn last_server(&self) -> Server {
        let last = self.last_host.lock().clone();
        let (store, host) = (C::NAME, last.unwrap_or_else(|| "the cluster".into()));
        Server { store, host }
    }

    /// Sends a request. A refusal is an error.
    pub(super) async fn ask(&self, request: &HttpRequest) -> Result<Answer, Error> {
        let answer = self.send(request).await?;
        answer.map_err(|refusal| refusal.classify(None))
    }

    /// Sends one change. `None` if the document does not exist.
    pub(super) async fn change(
        &self,
        key: &Key,
        change: ScriptedUpdate,
    ) -> Result<Option<ChangeOutcome>, Error> {
        let index = self.located().await?;
        let asked = change.asked();
        let request = self.statements.update(change);
        let mut answer = self.change_once(&request).await?;
        let mut recovers = false;
        if is_missing_index(&answer) {
            match self.knows(&self.statements.probe()).await? {
                // The index was created meanwhile. If the node refuses the change again, the name is not an alias.
                Knows::Index => answer = self.change_once(&request).await?,
                Knows::Nothing => self.aliased_index.forget(&index),
                Knows::NotYet => recovers = true,
            }
        }
        let outcome = self.known(answer, &index, &asked, key, recovers);
        self.check_index_after(&index, std::slice::from_ref(&outcome))
            .await;
        outcome
    }

    /// The outcome of a change of this document. `None` if the document does not exist. With `recovers`, a missing
    /// index is an error that can be retried.
    pub(super) fn known(
        &self,
        answer: ItemAnswer,
        index: &str,
        asked: &Asked,
        key: &Key,
        recovers: bool,
    ) -> Result<Option<ChangeOutcome>, Error> {
        let outcome = answer.of(&asked.id, index);
        let outcome = outcome.inspect_err(|_| self.aliased_index.forget(index))?;
        existing(outcome, asked, |refusal| {
            self.classify(refusal, recovers, Some(key))
        })
    }

    /// The error for an answer about another document or index. The next operation looks up the index again, because
    /// the aliases may lead to another one by now.
    pub(super) fn other_index(&self, index: &str, server: &Server, problem: String) -> Error {
        self.aliased_index.forget(index);
        server.interrupted(format_args!(
            "the answer is not to what was asked: {problem}"
        ))
    }

    pub(super) async fn change_once(&self, request: &HttpRequest) -> Result<ItemAnswer, Error> {
        match self.send(request).await? {
            Ok(answer) => {
                let item = answer::read_bulk(answer, 1)?.pop();
                item.ok_or_else(|| self.malformed("it has not one item"))
            }
            Err(refusal) => Ok(ItemAnswer::refused(refusal)),
        }
    }

    /// Asks a node, by this search, about an index that the node called missing. A node that has just started does not
    /// know the indices yet, and calls each of them missing in the answer to an update. Only the answer to a search
    /// tells the difference.
    pub(super) async fn knows(&self, probe: &HttpRequest) -> Result<Knows, Error> {
        Ok(match self.send(probe).await? {
            Ok(answer) if found::is_of_search(&answer) => Knows::Index,
            Err(refusal) if refusal.is_missing_index() => Knows::Nothing,
            Ok(_) | Err(_) => Knows::NotYet,
        })
    }

    pub(super) fn classify(
        &self,
        refusal: ErrorResponse,
        recovers: bool,
        key: Option<&Key>,
    ) -> Error {
        if recovers && refusal.is_missing_index() {
            Error::Interrupted {
                store: C::NAME,
                source: refusal.into(),
            }
        } else {
            refusal.classify(key)
        }
    }

    /// The error for an answer that does not fit the request.
    pub(super) fn malformed(&self, problem: &'static str) -> Error {
        self.last_server().malformed(problem)
    }
}

/// The error of a lookup, after which nothing else was sent: it leaves no doubt about a change.
pub(super) fn unsent<C: Transport>(error: Error) -> Error {
    if !error.is_ambiguous() {
        return error;
    }
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    let cause = cause.unwrap_or_else(|| error.to_string());
    Error::Unreachable {
        store: C::NAME,
        source: Cause::worded(cause, error),
    }
}

/// The outcome of a change. `None` if the document does not exist, which cannot be after a change that inserts it.
pub(super) fn existing(
    outcome: Result<ChangeOutcome, ErrorResponse>,
    asked: &Asked,
    classify: impl FnOnce(ErrorResponse) -> Error,
) -> Result<Option<ChangeOutcome>, Error> {
    match outcome {
        Ok(outcome) => Ok(Some(outcome)),
        Err(refusal) if !refusal.is_missing_document() => Err(classify(refusal)),
        Err(refusal) if asked.inserts => Err(refusal.server.malformed(UPSERT_FOUND_NONE)),
        Err(_) => Ok(None),
    }
}

pub(super) fn is_missing_index(answer: &ItemAnswer) -> bool {
    let refusal = answer.outcome.as_ref().err();
    refusal.is_some_and(ErrorResponse::is_missing_index)
}

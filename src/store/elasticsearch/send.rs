//! Requests to the cluster, and what their answers say of the index.

use serde_json::Value;

use super::{
    IndexStore, Transport,
    answer::{Outcome, outcome, outcomes},
    dialect::{Body, Change, Request},
    error::{Refusal, unanswered},
    transport::{SealedRequest, SealedResponse},
};
use crate::{Cause, Error, Key};

/// What a node knows of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knows {
    /// It is there.
    Index,
    /// There is none.
    Nothing,
    /// Whether there is one is not known yet.
    NotYet,
}

impl<C: Transport> IndexStore<C> {
    /// Sends a request and reads its answer as JSON.
    pub(super) async fn send(&self, request: &Request) -> Result<Result<Value, Refusal>, Error> {
        let SealedResponse { status, body } = self
            .client
            .send(SealedRequest(request))
            .await
            .map_err(|error| unanswered(C::NAME, error))?;
        match (status, serde_json::from_slice::<Value>(&body)) {
            (200..=299, Ok(answer)) => Ok(Ok(answer)),
            (200..=299, Err(error)) => Err(Error::Interrupted {
                store: C::NAME,
                source: Cause::text(format!("the answer is not JSON: {error}")),
            }),
            (_, Ok(answer)) => Ok(Err(Refusal::read(status, &answer))),
            (_, Err(_)) => Ok(Err(Refusal::foreign(status))),
        }
    }

    /// Sends a request that must succeed.
    pub(super) async fn ask(&self, request: &Request) -> Result<Value, Error> {
        let answer = self.send(request).await?;
        answer.map_err(|refusal| refusal.sorted(C::NAME, None))
    }

    /// Sends one change. `None` if the document is not there.
    pub(super) async fn change(&self, key: &Key, change: Change) -> Result<Option<Outcome>, Error> {
        let request = self.dialect.update(change);
        let mut outcome = self.change_once(&request).await?;
        let mut knows = Knows::Nothing;
        if is_missing_index(&outcome) {
            knows = self.knows().await?;
            if knows == Knows::Index {
                // By now. What it does not take then is no alias.
                outcome = self.change_once(&request).await?;
            }
        }
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(refusal) if refusal.is_missing_document() => Ok(None),
            Err(refusal) => Err(self.sorted(refusal, knows == Knows::NotYet, key)),
        }
    }

    pub(super) async fn change_once(
        &self,
        request: &Request,
    ) -> Result<Result<Outcome, Refusal>, Error> {
        let answer = match self.send(request).await? {
            Ok(answer) => answer,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Body::Json(_) = request.body {
            return Ok(outcome(200, answer));
        }
        match <[_; 1]>::try_from(outcomes(answer)) {
            Ok([outcome]) => Ok(outcome),
            Err(_) => Err(self.senseless("it has not one item for the change")),
        }
    }

    /// What a node knows that takes an index for missing. While it starts it knows of none, and says so to
    /// an update of any, instead of that it does not know yet, as it says to a search.
    pub(super) async fn knows(&self) -> Result<Knows, Error> {
        Ok(match self.send(&self.dialect.look()).await? {
            Ok(_) => Knows::Index,
            Err(refusal) if refusal.is_missing_index() => Knows::Nothing,
            Err(_) => Knows::NotYet,
        })
    }

    pub(super) fn sorted(&self, refusal: Refusal, recovers: bool, key: &Key) -> Error {
        match recovers && refusal.is_missing_index() {
            true => Error::Interrupted {
                store: C::NAME,
                source: refusal.into(),
            },
            false => refusal.sorted(C::NAME, Some(key)),
        }
    }

    /// An answer that cannot be one to what was asked.
    pub(super) fn senseless(&self, problem: &'static str) -> Error {
        Error::Interrupted {
            store: C::NAME,
            source: Cause::text(format!("the answer makes no sense: {problem}")),
        }
    }

    /// Sends several changes in one request. The outcomes stand in their order.
    pub(super) async fn change_many(
        &self,
        changes: Vec<(&Key, Change)>,
    ) -> Result<Vec<Result<Option<Outcome>, Error>>, Error> {
        let (keys, changes): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let answer = self.ask(&self.dialect.bulk(changes)).await?;
        let outcomes = outcomes(answer);
        if outcomes.len() != keys.len() {
            return Err(self.senseless("it has not as many items as there were changes"));
        }
        // What the index is by now, the next request finds.
        let recovers =
            outcomes.iter().any(is_missing_index) && self.knows().await? != Knows::Nothing;
        let known = |(key, outcome): (&Key, Result<Outcome, Refusal>)| match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(refusal) if refusal.is_missing_document() => Ok(None),
            Err(refusal) => Err(self.sorted(refusal, recovers, key)),
        };
        Ok(keys.into_iter().zip(outcomes).map(known).collect())
    }
}

pub(super) fn is_missing_index(outcome: &Result<Outcome, Refusal>) -> bool {
    let refusal = outcome.as_ref().err();
    refusal.is_some_and(Refusal::is_missing_index)
}

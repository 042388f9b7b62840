//! Several changes in one request: a `_bulk`. Something between here and the cluster, such as a proxy, may take no
//! request that is as large. Then they go in several.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    answer::{self, Answer, ChangeOutcome},
    error::ErrorResponse,
    index_store::IndexStore,
    send::{Knows, is_missing_index},
    statements::{Asked, Body, HttpRequest, ScriptedUpdate},
    transport::Transport,
};
use crate::model::{Error, Key};

/// A request, and the key and the document of each of its changes.
struct Part<'a> {
    keys: Vec<(&'a Key, Asked)>,
    request: HttpRequest,
}

impl<'a> Part<'a> {
    /// The same changes in two requests.
    fn halves(mut self) -> [Self; 2] {
        let half = self.keys.len().div_ceil(2);
        let keys = self.keys.split_off(half);
        let mut request = self.request.clone();
        if let (Body::Lines(first), Body::Lines(second)) =
            (&mut self.request.body, &mut request.body)
        {
            // Each change has two lines.
            first.truncate(2 * half);
            second.drain(..2 * half);
        }
        [self, Self { keys, request }]
    }
}

type Outcomes = Vec<Result<Option<ChangeOutcome>, Error>>;

impl<C: Transport> IndexStore<C> {
    /// Sends several changes. The outcomes come in the order of the changes.
    pub(super) async fn change_many(
        &self,
        mut changes: Vec<(&Key, ScriptedUpdate)>,
    ) -> Result<Outcomes, Error> {
        let index = self.located().await?;
        let limit = self.bulk_limit.load(Relaxed);
        let mut waiting = Vec::new();
        while !changes.is_empty() {
            let later = changes.split_off(limit.min(changes.len()));
            let asked = changes.into_iter();
            let (keys, changed) = asked
                .map(|(key, change)| ((key, change.asked()), change))
                .unzip();
            let request = self.statements.bulk(changed);
            waiting.push(Part { keys, request });
            changes = later;
        }
        waiting.reverse();
        let mut outcomes = Vec::new();
        while let Some(part) = waiting.pop() {
            let number = part.keys.len();
            let answer = self.send(&part.request).await;
            // This says that nothing was carried out.
            if number > 1 && matches!(&answer, Ok(Err(refusal)) if refusal.is_too_large()) {
                let [first, second] = part.halves();
                self.bulk_limit.fetch_min(first.keys.len(), Relaxed);
                waiting.extend([second, first]);
                continue;
            }
            match self.outcomes(&index, part.keys, answer).await {
                Ok(more) => outcomes.extend(more),
                Err(error) if outcomes.is_empty() => return Err(error),
                // Earlier changes were answered, so this error is only that of these.
                Err(error) => outcomes.extend((0..number).map(|_| Err(error.clone()))),
            }
        }
        Ok(outcomes)
    }

    /// The outcomes of the changes of one request.
    async fn outcomes(
        &self,
        index: &str,
        keys: Vec<(&Key, Asked)>,
        answer: Result<Result<Answer, ErrorResponse>, Error>,
    ) -> Result<Outcomes, Error> {
        let answer = answer?.map_err(|refusal| refusal.classify(None))?;
        let answers = answer::read_bulk(answer, keys.len())?;
        let mut recovers = false;
        if answers.iter().any(is_missing_index) {
            // If the index exists again, or the node will soon know it, a retry can succeed.
            recovers = self.knows(&self.statements.probe()).await? != Knows::Nothing;
            if !recovers {
                self.aliased_index.forget(index);
            }
        }
        let answers = keys.iter().zip(answers);
        let outcomes: Outcomes = answers
            .map(|((key, asked), answer)| self.known(answer, index, asked, key, recovers))
            .collect();
        self.check_index_after(index, &outcomes).await;
        Ok(outcomes)
    }
}

//! Renewals: a single one by a command that answers with the document, many by one command for all.
//!
//! If the holder knows that its grant is exclusive (`request.known`), its lease is renewed by one statement for all
//! leases with the same ttl. The filter names the keys and the leases. The statement matches only documents
//! whose sole holder is one of the leases, each document at most once. So if the statements changed as many documents
//! as there are leases, each lease was renewed, and no document has to be read. Otherwise the documents are read, and
//! each lease that is live and was not renewed is sent again, in a statement of its own.
//!
//! While a chunk moves, a router of a sharded cluster may carry out such a statement more than once on one document,
//! and not at all on another. There the number proves nothing, and the documents are always read.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use chrono::{DateTime, Utc};
use mongodb::bson::{Document, RawDocumentBuf};
use tokio::time::Instant;

use super::{
    bulk::{BulkResult, statement, unread},
    concern::Deployment,
    decode::{self, timed},
    error::{interrupted, statement_failed},
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{Grant, RenewAnswer, RenewAnswers, RenewRequest},
    model::{Error, after},
    rules,
};

/// How much the server's clock and ours may differ when the code decides whether a ttl was renewed just now.
const CLOCK_SLACK: Duration = Duration::from_millis(10);

impl Pipelines<'_> {
    /// Renews leases. The answers are in the order of the requests.
    pub(super) async fn renew(self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        match requests {
            [] => Ok(Vec::new()),
            [request] => Ok(vec![self.renew_one(request).await]),
            many => self.renew_batch(many).await,
        }
    }

    /// Renews one lease. The answer is the document, so no second command is needed.
    async fn renew_one(self, request: &RenewRequest) -> Result<RenewAnswer, Error> {
        let update = statements::renew(request, self.store.retention);
        Ok(match self.change(&request.key, update, false).await? {
            Some((record, now)) => rules::answer_renew(Some(&record), request.lease, now),
            None => RenewAnswer::Expired,
        })
    }

    /// Renews many leases.
    async fn renew_batch(self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let unanswered = |request| Renewal {
            request,
            answer: None,
        };
        let mut renewals: Vec<_> = requests.iter().map(unanswered).collect();
        self.renew_together(&mut renewals).await?;
        // If the second command fails, the answers of the first one still count.
        let failed = self.renew_singly(&mut renewals).await.err();
        let lost = || {
            Err(failed
                .clone()
                .unwrap_or_else(|| interrupted("a renewal has no answer")))
        };
        let answers = renewals.into_iter().map(|renewal| renewal.answer);
        Ok(answers.map(|it| it.unwrap_or_else(lost)).collect())
    }

    /// Renews the leases whose grants are known, by one statement for each ttl. Leases that must be sent
    /// singly get no answer here.
    async fn renew_together(self, renewals: &mut [Renewal<'_>]) -> Result<(), Error> {
        let is_known = |renewal: &&mut Renewal<'_>| renewal.request.known.is_some();
        let together: Vec<_> = renewals.iter_mut().filter(is_known).collect();
        if together.len() < 2 {
            return Ok(());
        }
        let requests = together.iter().map(|renewal| renewal.request);
        let statements = statements_for(requests, self.store.retention);
        let proves = self.store.locks.ask_deployment().await? != Deployment::Sharded;
        let sent = Instant::now();
        let concern = self.store.locks.write_concern().await?;
        let changed = self.send_changes(statements, concern).await?;
        if proves
            && changed == Some(together.len())
            && let Some(now) = self.store.clock.about(sent)
        {
            for renewal in together {
                renewal.answer = counted(renewal.request, now).map(Ok);
            }
            return Ok(());
        }
        let keys = together.iter().map(|renewal| renewal.request.key.as_str());
        let documents = self.documents(keys.collect()).await.map_err(unread)?;
        for Renewal { request, answer } in together {
            *answer = match looked_at(&documents, request) {
                Ok((RenewAnswer::Renewed(grant), _)) if !is_renewed(&grant, request, sent) => None,
                Ok((answer, now)) => {
                    if let Some(now) = now {
                        self.store.record_time(now);
                    }
                    Some(Ok(confirmed(answer, request)))
                }
                Err(error) => Some(Err(error)),
            };
        }
        Ok(())
    }

    /// Renews the leases without an answer, by one statement each. The documents tell the result, see
    /// [`rules::answer_renew`].
    async fn renew_singly(self, renewals: &mut [Renewal<'_>]) -> Result<(), Error> {
        let is_open = |renewal: &&mut Renewal<'_>| renewal.answer.is_none();
        let singly: Vec<_> = renewals.iter_mut().filter(is_open).collect();
        if singly.is_empty() {
            return Ok(());
        }
        let sent = |renewal: &&mut Renewal<'_>| {
            let update = statements::renew(renewal.request, self.store.retention);
            statement(&renewal.request.key, update, false)
        };
        let statements = singly.iter().map(sent).collect();
        let keys = singly.iter().map(|renewal| renewal.request.key.as_str());
        let BulkResult { failed, documents } = self.change_many(statements, keys.collect()).await?;
        for (number, Renewal { request, answer }) in singly.into_iter().enumerate() {
            *answer = Some(match failed.get(&number) {
                // After a failed statement, the document may show the lease as it was before: live, and not renewed.
                Some(error) => {
                    let error = statement_failed(error);
                    Err(self.explain_failure(&request.key, error).await)
                }
                None => looked_at(&documents, request).map(|(answer, _)| answer),
            });
        }
        Ok(())
    }
}

/// One statement for each ttl.
fn statements_for<'a>(
    requests: impl Iterator<Item = &'a RenewRequest>,
    retention: Duration,
) -> Vec<Document> {
    let mut groups: BTreeMap<Duration, Vec<&RenewRequest>> = BTreeMap::new();
    for request in requests {
        groups.entry(request.ttl).or_default().push(request);
    }
    let groups = groups.iter();
    groups
        .map(|(ttl, requests)| statements::renew_together(requests, *ttl, retention))
        .collect()
}

/// A renewal among many, and its answer when there is one.
struct Renewal<'a> {
    request: &'a RenewRequest,
    answer: Option<Result<RenewAnswer, Error>>,
}

/// The answer to a renewal if the number of changed documents proves that it was carried out: the lease lives for its
/// ttl from `now` on. `None` if the holder does not know its grant.
fn counted(request: &RenewRequest, now: DateTime<Utc>) -> Option<RenewAnswer> {
    let known = request.known?;
    Some(RenewAnswer::Renewed(Grant {
        is_awaited: false,
        fence: known.fence,
        acquired_at: known.acquired_at,
        expires_at: after(now, request.ttl),
        now,
    }))
}

/// The answer, without an expiry that a majority may not have confirmed: the document may show a later renewal of the
/// same lease that is still under way.
fn confirmed(answer: RenewAnswer, request: &RenewRequest) -> RenewAnswer {
    match answer {
        RenewAnswer::Renewed(grant) => RenewAnswer::Renewed(Grant {
            expires_at: grant.expires_at.min(after(grant.now, request.ttl)),
            ..grant
        }),
        answer => answer,
    }
}

/// Whether a live lease was renewed by the statement that was sent at this instant, or by another one since.
fn is_renewed(grant: &Grant, request: &RenewRequest, sent: Instant) -> bool {
    grant.expires_in() + sent.elapsed() + CLOCK_SLACK >= request.ttl
}

/// What the document that was found tells of a renewal, and the server's time, if there is a document.
fn looked_at(
    documents: &HashMap<String, RawDocumentBuf>,
    request: &RenewRequest,
) -> Result<(RenewAnswer, Option<DateTime<Utc>>), Error> {
    let Some(document) = documents.get(request.key.as_str()) else {
        return Ok((RenewAnswer::Expired, None));
    };
    let (record, now) = timed(decode::lock(document, &request.key)?)?;
    let answer = rules::answer_renew(Some(&record), request.lease, now);
    Ok((answer, Some(now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Key, LeaseId};

    #[test]
    fn the_renewals_of_a_ttl_have_one_statement() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        let request = |(key, ttl)| {
            let key = Key::new(key).unwrap();
            RenewRequest::new(key, LeaseId::random(), ttl)
        };
        let requests = [("a", long), ("b", short), ("c", short)].map(request);
        let keys = |statement: &Document| {
            let filter = statement.get_document("q").unwrap();
            filter.get_document("_id").unwrap().to_string()
        };
        let sent: Vec<_> = statements_for(requests.iter(), long)
            .iter()
            .map(keys)
            .collect();
        let expected = [&["b", "c"][..], &["a"]];
        let expected = expected.map(|keys| mongodb::bson::doc! { "$in": keys }.to_string());
        assert_eq!(sent, expected);
    }
}

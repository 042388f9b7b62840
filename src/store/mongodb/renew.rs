//! Renewals: one by a command that answers with the document, many by one command for all.
//!
//! Leases that are likely to be the only one of their key are renewed by one statement for all of a ttl, whose
//! filter names the keys and the leases. It finds no document but those of the leases that it is for, and
//! each of them at most once: so if it changed as many documents as it was sent leases, each was renewed, and
//! no document has to be looked at. Otherwise a look tells which; and what it shows as live and not as
//! renewed is sent again, each in a statement of its own.
//!
//! A router of a sharded cluster may carry out such a statement more than once on one document, and not at
//! all on another, while a chunk moves: there the number proves nothing, and a look always follows.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use mongodb::bson::RawDocument;
use tokio::time::Instant;

use super::{
    MongoStore,
    concern::Deployment,
    decode, dialect,
    error::{STORE, statement_failed},
    many::{Changed, Left, statement},
    timed,
};
use crate::{Cause, Error, Grant, RenewAnswer, RenewAnswers, RenewRequest, record::after, rules};

/// What two dates of the server, in whole milliseconds, and the time between them here may differ by.
const GRAIN: Duration = Duration::from_millis(10);

impl MongoStore {
    pub(super) async fn renew_one(&self, request: &RenewRequest) -> Result<RenewAnswer, Error> {
        let found = self
            .change(&request.key, dialect::renew(request, self.retention), false)
            .await?;
        Ok(match found {
            Some((record, now)) => rules::answer_renew(Some(&record), request.lease, now),
            None => RenewAnswer::Expired,
        })
    }

    /// Renews many leases.
    pub(super) async fn renew_batch(
        &self,
        requests: &[RenewRequest],
    ) -> Result<RenewAnswers, Error> {
        let (together, singly): (Vec<_>, Vec<_>) =
            (0..requests.len()).partition(|index| requests[*index].known.is_some());
        let mut answers = vec![None; requests.len()];
        let mut again = self
            .renew_together(requests, together, &mut answers)
            .await?;
        again.extend(singly);
        // Its failure takes nothing away from those that are answered.
        let failed = self.renew_singly(requests, again, &mut answers).await;
        let unanswered = || {
            Err(failed.clone().err().unwrap_or(Error::Interrupted {
                store: STORE,
                source: Cause::text("a renewal has no answer"),
            }))
        };
        let answers = answers.into_iter();
        Ok(answers
            .map(|answer| answer.unwrap_or_else(unanswered))
            .collect())
    }

    /// Renews these by one statement for each ttl, and gives those that have to be sent singly.
    async fn renew_together(
        &self,
        requests: &[RenewRequest],
        together: Vec<usize>,
        answers: &mut [Option<Result<RenewAnswer, Error>>],
    ) -> Result<Vec<usize>, Error> {
        if together.len() < 2 {
            return Ok(together);
        }
        let mut by_ttl: BTreeMap<Duration, Vec<&RenewRequest>> = BTreeMap::new();
        for index in &together {
            let request = &requests[*index];
            by_ttl.entry(request.ttl).or_default().push(request);
        }
        let statements = by_ttl
            .iter()
            .map(|(ttl, requests)| dialect::renew_together(requests, *ttl, self.retention));
        let proves = self.locks.deployment().await? != Deployment::Sharded;
        let sent = Instant::now();
        let changed = self.send_changes(statements.collect()).await?;
        if proves
            && changed == Changed::all(together.len())
            && let Some(now) = self.clock.about(sent)
        {
            let unknown = together.into_iter().filter(|index| {
                answers[*index] = counted(&requests[*index], now).map(Ok);
                answers[*index].is_none()
            });
            return Ok(unknown.collect());
        }
        let keys = together.iter().map(|index| requests[*index].key.as_str());
        let documents = self.documents(keys.collect()).await?;
        let mut again = Vec::new();
        for index in together {
            let request = &requests[index];
            let document = documents.get(request.key.as_str());
            let answer = renewal(document.map(|found| &**found), request);
            match answer {
                Ok((RenewAnswer::Renewed(grant), _)) if !is_renewed(&grant, request, sent) => {
                    again.push(index);
                }
                Ok((answer, now)) => {
                    if let Some(now) = now {
                        self.clock.told(now, Instant::now());
                    }
                    answers[index] = Some(Ok(confirmed(answer, request)));
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        Ok(again)
    }

    /// Renews these by one statement each. The documents tell the outcome, see [`rules::answer_renew`].
    async fn renew_singly(
        &self,
        requests: &[RenewRequest],
        singly: Vec<usize>,
        answers: &mut [Option<Result<RenewAnswer, Error>>],
    ) -> Result<(), Error> {
        if singly.is_empty() {
            return Ok(());
        }
        let requests: Vec<_> = singly.iter().map(|index| &requests[*index]).collect();
        let statements = requests
            .iter()
            .map(|request| statement(&request.key, dialect::renew(request, self.retention), false))
            .collect();
        let keys = requests.iter().map(|request| request.key.as_str());
        let Left { failed, documents } = self.change_many(statements, keys.collect()).await?;
        for (number, index) in singly.into_iter().enumerate() {
            let request = requests[number];
            answers[index] = Some(match failed.get(&number) {
                // What the look shows after it may be the live lease as it was before.
                Some(error) => Err(statement_failed(error)),
                None => {
                    let document = documents.get(request.key.as_str());
                    renewal(document.map(|found| &**found), request).map(|(answer, _)| answer)
                }
            });
        }
        Ok(())
    }
}

/// What is known of a lease that was renewed, from the number of those that were: it lives for its ttl from
/// when the statement was carried out.
fn counted(request: &RenewRequest, now: DateTime<Utc>) -> Option<RenewAnswer> {
    let known = request.known?;
    Some(RenewAnswer::Renewed(Grant {
        fence: known.fence,
        acquired_at: known.acquired_at,
        expires_at: after(now, request.ttl),
        now,
    }))
}

/// The answer with no more than what a majority has confirmed: the document may show a later renewal, of the
/// same lease, which is still under way.
fn confirmed(answer: RenewAnswer, request: &RenewRequest) -> RenewAnswer {
    match answer {
        RenewAnswer::Renewed(grant) => RenewAnswer::Renewed(Grant {
            expires_at: grant.expires_at.min(after(grant.now, request.ttl)),
            ..grant
        }),
        answer => answer,
    }
}

/// Whether a lease that is live was renewed by the statement that was sent at this instant, or by another one
/// since.
fn is_renewed(grant: &Grant, request: &RenewRequest, sent: Instant) -> bool {
    grant.expires_in() + sent.elapsed() + GRAIN >= request.ttl
}

/// The answer to a renewal, from the document as a find shows it, and the server's time.
fn renewal(
    document: Option<&RawDocument>,
    request: &RenewRequest,
) -> Result<(RenewAnswer, Option<DateTime<Utc>>), Error> {
    let Some(document) = document else {
        return Ok((RenewAnswer::Expired, None));
    };
    let (record, now) = timed(decode::told(document, &request.key)?)?;
    let answer = rules::answer_renew(Some(&record), request.lease, now);
    Ok((answer, Some(now)))
}

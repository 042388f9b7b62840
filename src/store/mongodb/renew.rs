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
use crate::{
    messages::{Grant, RenewAnswer, RenewAnswers, RenewRequest},
    model::{Cause, Error, after},
    rules,
};

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
        let mut renewals: Vec<_> = requests.iter().map(Renewal::of).collect();
        self.renew_together(&mut renewals).await?;
        // A failure of the second command takes nothing away from what the first has answered.
        let failed = self.renew_singly(&mut renewals).await.err();
        let unanswered = || {
            Err(failed.clone().unwrap_or(Error::Interrupted {
                store: STORE,
                source: Cause::text("a renewal has no answer"),
            }))
        };
        let answers = renewals.into_iter().map(|renewal| renewal.answer);
        Ok(answers.map(|it| it.unwrap_or_else(unanswered)).collect())
    }

    /// Renews those whose grants are known by one statement for each ttl. It leaves without an answer what has
    /// to be sent singly.
    async fn renew_together(&self, renewals: &mut [Renewal<'_>]) -> Result<(), Error> {
        let is_known = |renewal: &&mut Renewal<'_>| renewal.request.known.is_some();
        let together: Vec<_> = renewals.iter_mut().filter(is_known).collect();
        if together.len() < 2 {
            return Ok(());
        }
        let mut by_ttl: BTreeMap<Duration, Vec<&RenewRequest>> = BTreeMap::new();
        for Renewal { request, .. } in &together {
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
            for renewal in together {
                renewal.answer = counted(renewal.request, now).map(Ok);
            }
            return Ok(());
        }
        let keys = together.iter().map(|renewal| renewal.request.key.as_str());
        let documents = self.documents(keys.collect()).await?;
        for Renewal { request, answer } in together {
            let document = documents.get(request.key.as_str());
            *answer = match looked_at(document.map(|found| &**found), request) {
                Ok((RenewAnswer::Renewed(grant), _)) if !is_renewed(&grant, request, sent) => None,
                Ok((answer, now)) => {
                    if let Some(now) = now {
                        self.clock.told(now, Instant::now());
                    }
                    Some(Ok(confirmed(answer, request)))
                }
                Err(error) => Some(Err(error)),
            };
        }
        Ok(())
    }

    /// Renews what has no answer by one statement each. The documents tell the outcome, see
    /// [`rules::answer_renew`].
    async fn renew_singly(&self, renewals: &mut [Renewal<'_>]) -> Result<(), Error> {
        let is_open = |renewal: &&mut Renewal<'_>| renewal.answer.is_none();
        let singly: Vec<_> = renewals.iter_mut().filter(is_open).collect();
        if singly.is_empty() {
            return Ok(());
        }
        let sent = |renewal: &&mut Renewal<'_>| {
            let update = dialect::renew(renewal.request, self.retention);
            statement(&renewal.request.key, update, false)
        };
        let statements = singly.iter().map(sent).collect();
        let keys = singly.iter().map(|renewal| renewal.request.key.as_str());
        let Left { failed, documents } = self.change_many(statements, keys.collect()).await?;
        for (number, Renewal { request, answer }) in singly.into_iter().enumerate() {
            *answer = Some(match failed.get(&number) {
                // After a failed statement the document may show the lease as it was before, live and not renewed.
                Some(error) => Err(statement_failed(error)),
                None => {
                    let document = documents.get(request.key.as_str());
                    looked_at(document.map(|found| &**found), request).map(|(answer, _)| answer)
                }
            });
        }
        Ok(())
    }
}

/// A renewal among many, and its answer when there is one.
struct Renewal<'a> {
    request: &'a RenewRequest,
    answer: Option<Result<RenewAnswer, Error>>,
}

impl<'a> Renewal<'a> {
    fn of(request: &'a RenewRequest) -> Self {
        Self {
            request,
            answer: None,
        }
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
fn looked_at(
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

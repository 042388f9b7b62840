//! Acquires and releases, each by one command.

use mongodb::{bson::Document, options::ReturnDocument};
use tokio::time::Instant;

use super::{
    MongoStore, decode, dialect,
    error::{DUPLICATE_KEY, code, sorted},
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest},
    model::{Cause, Error, Held},
    rules,
    store::explained,
};

impl MongoStore {
    /// Asks for a lease whose id nobody knows yet, without the server's time in the answer: a projection is
    /// one more stage for the server, some 5 to 10% of a cycle (`forms` in `docs/performance.md`). If the
    /// lease is in the document it was granted now, so that it tells the time.
    ///
    /// `None` if the key is held and it is not known what the time is there: ask again, with the time.
    pub(super) async fn acquire_fresh(
        &self,
        request: &AcquireRequest,
    ) -> Result<Option<AcquireAnswer>, Error> {
        let locks = self.locks.writes().await?;
        let sent = Instant::now();
        let alone = dialect::take_over_alone(request, self.retention);
        let hasty = alone.is_some();
        let update = alone.unwrap_or_else(|| dialect::acquire(request, self.retention));
        let outcome = locks
            .find_one_and_update(dialect::filter(&request.key), update)
            .upsert(request.in_place_of.is_none())
            .return_document(ReturnDocument::After)
            .await;
        let document = match outcome {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(None),
            Err(race) if code(&race) == Some(DUPLICATE_KEY) => return Ok(None),
            Err(error) => return Err(sorted(error)),
        };
        let record = decode::told(&document, &request.key)?.record;
        let mine = record
            .holders
            .iter()
            .find(|holder| holder.lease == request.lease);
        let now = match mine {
            Some(mine) => {
                self.clock.told(mine.acquired_at, Instant::now());
                Some(mine.acquired_at)
            }
            // The holders of the document may be expired, which needs a time that is certain.
            None if hasty => None,
            None => self.clock.at(sent),
        };
        let answer = now.map(|now| rules::answer_acquire(&record, request.lease, now));
        // A refusal without a live holder: the last of them has expired since the server refused. The request is
        // sent again.
        Ok(answer.filter(|answer| match answer {
            AcquireAnswer::Granted(_) => true,
            AcquireAnswer::Held(held) => !held.holders().is_empty(),
        }))
    }

    /// Asks for a lease that may have been granted before.
    pub(super) async fn acquire_again(
        &self,
        request: &AcquireRequest,
    ) -> Result<AcquireAnswer, Error> {
        let upsert = request.in_place_of.is_none();
        let found = self
            .change(
                &request.key,
                dialect::acquire(request, self.retention),
                upsert,
            )
            .await?;
        match found {
            Some((record, now)) => {
                self.clock.told(now, Instant::now());
                Ok(rules::answer_acquire(&record, request.lease, now))
            }
            None if !upsert => Ok(AcquireAnswer::Held(Held::by_nobody(request.key.clone()))),
            None => Err(Error::Interrupted {
                store: "MongoDB",
                source: Cause::text("an upsert gave back no document"),
            }),
        }
    }

    /// Releases a lease that is the only one of its key; says whether it was.
    pub(super) async fn release_alone(&self, request: &ReleaseRequest) -> Result<bool, Error> {
        self.update(request, dialect::release_alone(request)).await
    }

    /// Releases a lease beside others, if it is there.
    pub(super) async fn release_beside(
        &self,
        request: &ReleaseRequest,
    ) -> Result<ReleaseAnswer, Error> {
        if self
            .update(request, dialect::release(request, self.retention))
            .await?
        {
            return Ok(ReleaseAnswer::Released);
        }
        explained(self.explain_refusal(&request.key).await)?;
        Ok(ReleaseAnswer::NotHeld)
    }

    /// A release that finds its lease always changes the document, so the count is reliable.
    async fn update(&self, request: &ReleaseRequest, update: Vec<Document>) -> Result<bool, Error> {
        let changed = self
            .locks
            .writes()
            .await?
            .update_one(dialect::filter(&request.key), update)
            .await
            .map_err(sorted)?;
        Ok(changed.modified_count > 0)
    }
}

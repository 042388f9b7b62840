//! Locks and limiters in Elasticsearch and OpenSearch.

// The index of a JSON value that is not there gives null, and those that are set are our own.
#![allow(clippy::indexing_slicing)]

mod answer;
mod dialect;
mod error;
mod guarded;
mod permit;
mod prepare;
mod scripts;
mod setup;
mod transport;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::Value;

use self::{
    answer::{Effect, Outcome, outcome, outcomes},
    dialect::{Change, Dialect, Request},
    error::{Refusal, unanswered},
    transport::{SealedRequest, SealedResponse},
};
pub use self::{guarded::GuardedIndex, transport::Transport};
use crate::{
    AcquireAnswer, AcquireRequest, Cause, ConvertAnswer, ConvertRequest, Error, Eviction, Key,
    ListRequest, LockRecord, LockState, Page, PermitAnswer, PermitRequest, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewAnswers, RenewRequest, Store, rules,
};

/// How far the clocks of two nodes are taken to differ.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);

/// Keeps locks in an Elasticsearch index. See [`IndexStore`].
#[cfg(feature = "elasticsearch")]
pub type ElasticsearchStore = IndexStore<elasticsearch::Elasticsearch>;

/// Keeps locks in an OpenSearch index. See [`IndexStore`].
#[cfg(feature = "opensearch")]
pub type OpenSearchStore = IndexStore<opensearch::OpenSearch>;

/// Keeps locks in an index of Elasticsearch or OpenSearch, one document a key.
///
/// It takes the application's own client, so that authentication, TLS and cloud ids are the
/// application's. The locks have an index of their own, behind an alias:
/// [`prepare`](IndexStore::prepare) creates both, and nothing works without it.
///
/// # What it guarantees
///
/// - Every operation is one scripted `_update` of one document. The primary shard runs it on the
///   document as it is at that moment, and on the real clock of its node
///   (`new Date().getTime()`; the cached clock, `ctx._now`, was seen up to 194 ms late). A change
///   that was overtaken is run again by the shard.
/// - A refused attempt writes nothing. Nothing is refreshed on the way: reads by key are real-time.
/// - An acknowledged grant, renewal or release is on the disk of the primary
///   (`index.translog.durability` is `request` in the index that [`prepare`](IndexStore::prepare)
///   creates) and of every replica in sync, because a primary acknowledges a write only when they
///   have it, or the cluster has struck them off. A primary that is cut off can do neither. A grant
///   or a conversion that is asked for again is written again for this reason.
/// - What changes nothing is answered by the primary alone: that a key is held, that a lease is not,
///   and what [`inspect`](crate::Leases::inspect) shows may come from a primary that was cut off a
///   moment ago. Lists come from any copy.
/// - `wait_for_active_shards` is a look before the write and no promise about it. With no replica in
///   sync, which [`replicas`](IndexStore::replicas) of 0 makes the rule, a grant is on one disk only.
///   If that is lost, or an operator brings back an old copy (`allocate_stale_primary`, a snapshot),
///   the key can be granted again before the lease is over.
/// - When the primary shard moves, the clock of another node decides. A difference of up to the
///   clock margin of 100 ms is covered;
///   [`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin) covers a greater one.
/// - A purge judges by the clock of any node that has a copy, the margin included, in whole seconds.
///
/// Looking at a key is an update that changes nothing, because a get does not tell the time: it
/// needs the right to write, as everything else here. Tried on Elasticsearch 8.12 and OpenSearch 2.5.
///
/// MongoDB with a majority write concern is the stronger store. Use this one where the search
/// cluster is what you have, and let the resource check the [`Fence`](crate::Fence) where two
/// holders would be a disaster: [`GuardedIndex`] does it for documents here.
///
/// # Example
///
#[cfg_attr(feature = "elasticsearch", doc = "```no_run")]
#[cfg_attr(not(feature = "elasticsearch"), doc = "```ignore")]
/// use std::time::Duration;
/// use elasticsearch::{Elasticsearch, http::transport::Transport};
/// use leasehold::{ElasticsearchStore, Leases};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Elasticsearch::new(Transport::single_node("http://localhost:9200")?);
/// let store = ElasticsearchStore::new(client, "app-locks");
/// store.prepare().await?;
/// let lease = Leases::new(store).acquire("report:42", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct IndexStore<C> {
    client: C,
    dialect: Dialect,
    replicas: Option<u32>,
}

impl<C: Transport> IndexStore<C> {
    /// A store behind this alias. Nothing is sent yet.
    ///
    /// The index itself has the name of the alias and `-v1` behind it.
    pub fn new(client: C, alias: impl Into<String>) -> Self {
        Self {
            client,
            dialect: Dialect::new(alias.into()),
            replicas: None,
        }
    }

    /// How many replicas the index has that [`prepare`](IndexStore::prepare) creates. By default
    /// one, as soon as the cluster has a second node for it.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Has [`prepare`](IndexStore::prepare) store the scripts in the cluster, and requests name them
    /// instead of bringing them along: for clusters that forbid inline scripts
    /// (`script.allowed_types: stored`). It needs the right to store scripts, once.
    pub fn stored_scripts(mut self) -> Self {
        self.dialect.use_stored_scripts();
        self
    }

    /// Sends a request and reads its answer as JSON.
    async fn send(&self, request: Request) -> Result<Result<Value, Refusal>, Error> {
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
    async fn ask(&self, request: Request) -> Result<Value, Error> {
        let answer = self.send(request).await?;
        answer.map_err(|refusal| refusal.sorted(C::NAME, None))
    }

    /// Sends one change. `None` if the document is not there.
    async fn change(&self, key: &Key, change: Change) -> Result<Option<Outcome>, Error> {
        let request = self.dialect.update(change);
        let mut outcome = self.change_once(request.clone()).await?;
        let mut knows = Knows::Nothing;
        if is_missing_index(&outcome) {
            knows = self.knows().await?;
            if knows == Knows::Index {
                // By now. What it does not take then is no alias.
                outcome = self.change_once(request).await?;
            }
        }
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(refusal) if refusal.is_missing_document() => Ok(None),
            Err(refusal) => Err(self.sorted(refusal, knows == Knows::NotYet, key)),
        }
    }

    async fn change_once(&self, request: Request) -> Result<Result<Outcome, Refusal>, Error> {
        let answer = self.send(request).await?;
        let outcome = match answer {
            // The two keys that go in the body get the answer of a bulk.
            Ok(answer) if answer.get("items").is_some() => outcomes(&answer).pop(),
            Ok(answer) => Some(outcome(200, &answer)),
            Err(refusal) => Some(Err(refusal)),
        };
        outcome.ok_or_else(|| self.senseless("it has no item for the change"))
    }

    /// What a node knows that takes an index for missing. While it starts it knows of none, and says so to
    /// an update of any, instead of that it does not know yet, as it says to a search.
    async fn knows(&self) -> Result<Knows, Error> {
        Ok(match self.send(self.dialect.look()).await? {
            Ok(_) => Knows::Index,
            Err(refusal) if refusal.is_missing_index() => Knows::Nothing,
            Err(_) => Knows::NotYet,
        })
    }

    fn sorted(&self, refusal: Refusal, recovers: bool, key: &Key) -> Error {
        match recovers && refusal.is_missing_index() {
            true => Error::Interrupted {
                store: C::NAME,
                source: refusal.into(),
            },
            false => refusal.sorted(C::NAME, Some(key)),
        }
    }

    /// An answer that cannot be one to what was asked.
    fn senseless(&self, problem: &'static str) -> Error {
        Error::Interrupted {
            store: C::NAME,
            source: Cause::text(format!("the answer makes no sense: {problem}")),
        }
    }

    fn renewed(
        &self,
        request: &RenewRequest,
        outcome: Option<&Outcome>,
    ) -> Result<RenewAnswer, Error> {
        let Some(outcome) = outcome else {
            return Ok(RenewAnswer::Expired);
        };
        let (record, now) = self.timed(outcome, &request.key)?;
        Ok(rules::answer_renew(Some(&record), request.lease, now))
    }

    fn timed(&self, outcome: &Outcome, key: &Key) -> Result<(LockRecord, DateTime<Utc>), Error> {
        let (record, now) = outcome.record(key)?;
        match now {
            Some(now) => Ok((record, now)),
            None => Err(self.senseless("it tells no time")),
        }
    }
}

/// What a node knows of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    /// It is there.
    Index,
    /// There is none.
    Nothing,
    /// Whether there is one is not known yet.
    NotYet,
}

fn is_missing_index(outcome: &Result<Outcome, Refusal>) -> bool {
    let refusal = outcome.as_ref().err();
    refusal.is_some_and(Refusal::is_missing_index)
}

impl<C> fmt::Debug for IndexStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: it holds the credentials, and shows them.
        f.debug_struct("IndexStore")
            .field("alias", &self.dialect.alias())
            .field("replicas", &self.replicas)
            .field("stored_scripts", &self.dialect.uses_stored_scripts())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: Transport> Store for IndexStore<C> {
    fn clock_margin(&self) -> Duration {
        CLOCK_MARGIN
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let change = self.dialect.acquire(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Err(self.senseless("an upsert found no document"));
        };
        let (record, now) = self.timed(&outcome, &request.key)?;
        Ok(rules::answer_acquire(&record, request.lease, now))
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        match requests {
            [] => return Ok(Vec::new()),
            [request] => {
                let change = self.dialect.renew(request);
                let outcome = self.change(&request.key, change).await?;
                return Ok(vec![self.renewed(request, outcome.as_ref())]);
            }
            _ => {}
        }
        let changes = requests.iter().map(|request| self.dialect.renew(request));
        let answer = self.ask(self.dialect.bulk(changes.collect())).await?;
        let outcomes = outcomes(&answer);
        if outcomes.len() != requests.len() {
            return Err(self.senseless("it has not as many items as there were renewals"));
        }
        // What the index is by now, the next renewal finds.
        let recovers =
            outcomes.iter().any(is_missing_index) && self.knows().await? != Knows::Nothing;
        let renewed = |(request, outcome): (&RenewRequest, Result<Outcome, Refusal>)| match outcome
        {
            Ok(outcome) => self.renewed(request, Some(&outcome)),
            Err(refusal) if refusal.is_missing_document() => self.renewed(request, None),
            Err(refusal) => Err(self.sorted(refusal, recovers, &request.key)),
        };
        Ok(requests.iter().zip(outcomes).map(renewed).collect())
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let change = self.dialect.convert(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Ok(ConvertAnswer::Expired);
        };
        let (record, now) = self.timed(&outcome, &request.key)?;
        Ok(rules::answer_convert(Some(&record), request, now))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let change = self.dialect.release(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Ok(ReleaseAnswer::NotHeld);
        };
        outcome.record(&request.key)?;
        Ok(match outcome.effect {
            Effect::Written => ReleaseAnswer::Released,
            Effect::None | Effect::Deleted => ReleaseAnswer::NotHeld,
        })
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let change = self.dialect.inspect(key);
        let Some(outcome) = self.change(key, change).await? else {
            return Ok(None);
        };
        let (record, now) = self.timed(&outcome, key)?;
        Ok(Some(rules::inspect(&record, now)))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        if request.after.is_none() {
            // Searches see what was written up to a refresh.
            self.ask(self.dialect.refresh()).await?;
        }
        let answer = self.ask(self.dialect.search(request)).await?;
        let Some(hits) = answer["hits"]["hits"].as_array() else {
            return Err(self.senseless("it has no hits"));
        };
        let mut page = Page::default();
        let mut looked_at = hits.len();
        for hit in hits {
            // What the pages go by, whatever the id is.
            let key = Key::new(hit["sort"][0].as_str().unwrap_or_default())?;
            if !key.as_str().starts_with(request.filter.wanted_prefix()) {
                // Behind the last key with the prefix there is no other.
                looked_at = 0;
                break;
            }
            let lock = answer::hit(hit, &key);
            page.look_at(key, lock, &request.filter);
        }
        if looked_at < request.limit {
            page.next = None;
        }
        Ok(page)
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let change = self.dialect.evict(key);
        let Some(outcome) = self.change(key, change).await? else {
            return Ok(None);
        };
        let (record, _) = outcome.record(key)?;
        match outcome.effect {
            Effect::Written => Ok(Some(rules::answer_evict(&record))),
            Effect::None | Effect::Deleted => Err(self.senseless("a lock was not evicted")),
        }
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let change = self.dialect.remove_expired(key);
        let outcome = self.change(key, change).await?;
        Ok(outcome.is_some_and(|outcome| outcome.effect == Effect::Deleted))
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.take(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.ask(self.dialect.refresh()).await?;
        // The search inside may run on a replica, by the clock of its node.
        let retention = retention.saturating_add(CLOCK_MARGIN);
        let answer = self.ask(self.dialect.purge(retention)).await?;
        match answer["deleted"].as_u64() {
            Some(deleted) if answer["failures"].as_array().is_none_or(Vec::is_empty) => Ok(deleted),
            _ => Err(Error::Store {
                store: C::NAME,
                source: Cause::text(format!("a purge ended early: {}", answer["failures"])),
            }),
        }
    }
}

//! Locks and limiters in Elasticsearch and OpenSearch.
//!
//! What an application uses is the store on an index (`index_store.rs`) and documents under a fence (`guarded.rs`).
//!
//! - **What is sent:** `statements.rs` and its folder say what the rules say, as requests with the scripts of
//!   `scripts.rs`. They are pure.
//! - **The operations:** this file has them, except acquires (`acquire.rs`), purges (`purge.rs`)
//!   and the question for which keys other processes wait (`places.rs`).
//! - **The requests:** `send.rs` and `bulk.rs` send them, by either client (`transport.rs`).
//!   `nodes.rs` says to which node. `answer.rs` and `found.rs` read the answers, `error.rs` sorts errors, and `server.rs` words them.
//!   `about.rs` asks what the cluster is.
//! - **The index:** `prepare.rs` creates or checks it, by the statements of `setup.rs` and the conditions of
//!   `fitness.rs`, and tries it out (`trial.rs`). `aliased_index.rs` knows the index behind an alias.

// Reading a missing field of a `Value` gives null instead of a panic, and only values that are built here are
// written to.
#![allow(clippy::indexing_slicing)]

#[cfg(feature = "address")]
mod about;
mod acquire;
mod aliased_index;
mod answer;
mod bulk;
mod error;
mod fitness;
mod found;
#[cfg(feature = "fencing")]
mod guarded;
mod index_store;
mod nodes;
mod permit;
mod places;
mod prepare;
#[cfg(test)]
mod protocol_pages;
#[cfg(test)]
mod protocol_templates;
mod purge;
mod scripts;
mod send;
mod server;
mod setup;
mod statements;
mod transport;
mod trial;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use tokio::time::Instant;

#[cfg(feature = "fencing")]
pub use self::guarded::GuardedIndex;
#[cfg(feature = "address")]
pub(crate) use self::{about::about, nodes::Nodes};
use self::{
    answer::{ChangeOutcome, Effect},
    found::Hit,
    send::UPSERT_FOUND_NONE,
    server::Server,
    statements::HttpRequest,
};
pub use self::{index_store::IndexStore, transport::Transport};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Eviction, GiveBackRequest, ListRequest, LookAnswer, LookRequest, Page,
        PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewAnswers,
        RenewRequest,
    },
    model::{Error, Key, LeaseId, LockRecord, LockState, PermitsLeft, Quota},
    rules,
    store::{Store, explained, listing},
};

/// The largest difference that this store assumes between the clocks of two nodes.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// How many acquires and releases are sent at the same time. Further requests wait until one of those is answered, and
/// may then be sent together in a batch.
const MAX_CONCURRENT: usize = 8;

/// Keeps locks in an Elasticsearch index. [`IndexStore`] has the documentation of its methods, and what it guarantees.
///
/// ```no_run
/// use elasticsearch::{Elasticsearch, http::transport::Transport};
/// use leasehold::{ElasticsearchStore, Leases};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Elasticsearch::new(Transport::single_node("http://localhost:9200")?);
/// let store = ElasticsearchStore::new(client, "app-locks");
/// store.prepare().await?;
/// let leases = Leases::new(store);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "elasticsearch")]
pub type ElasticsearchStore = IndexStore<elasticsearch::Elasticsearch>;

/// Keeps locks in an OpenSearch index. [`IndexStore`] has the documentation of its methods, and what it guarantees.
///
/// ```no_run
/// use leasehold::{Leases, OpenSearchStore};
/// use opensearch::{OpenSearch, http::transport::Transport};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = OpenSearch::new(Transport::single_node("http://localhost:9200")?);
/// let store = OpenSearchStore::new(client, "app-locks");
/// store.prepare().await?;
/// let leases = Leases::new(store);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "opensearch")]
pub type OpenSearchStore = IndexStore<opensearch::OpenSearch>;

#[async_trait]
impl<C: Transport> Store for IndexStore<C> {
    fn clock_margin(&self) -> Duration {
        CLOCK_MARGIN
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        if request.likely_held
            && let Some(held) = self.read_refusal(request).await
        {
            return Ok(AcquireAnswer::Held(held));
        }
        let (change, at) = self.prepared_acquire(request);
        let outcome = self.change(&request.key, change).await?;
        self.acquired(request, at, outcome).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        let change = self.statements.leave(key, waiter);
        if let Some(outcome) = self.change(key, change).await? {
            self.timed(&outcome, key)?;
        }
        Ok(())
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let change = |request| self.statements.renew(request);
        let outcomes = match requests {
            [] => return Ok(Vec::new()),
            [request] => vec![Ok(self.change(&request.key, change(request)).await?)],
            _ => {
                let changes = requests.iter().map(|it| (&it.key, change(it)));
                self.change_many(changes.collect()).await?
            }
        };
        let answers = requests.iter().zip(outcomes).map(|(request, outcome)| {
            let Some(outcome) = outcome? else {
                return Ok(RenewAnswer::Expired);
            };
            let (record, now) = self.timed(&outcome, &request.key)?;
            Ok(rules::answer_renew(Some(&record), request.lease, now))
        });
        Ok(answers.collect())
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let change = self.statements.convert(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Ok(ConvertAnswer::Expired);
        };
        let (record, now) = self.timed(&outcome, &request.key)?;
        rules::answer_convert(Some(&record), request, now)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let change = self.statements.release(request);
        let outcome = self.change(&request.key, change).await?;
        self.released(&request.key, outcome).await
    }

    fn name(&self) -> String {
        let alias = server::name(&self.statements.alias);
        let store = C::NAME;
        match self.last_host.lock().as_deref().map(server::name) {
            Some(host) => format!("{store} ({alias}, last answer from {host})"),
            None => format!("{store} ({alias})"),
        }
    }

    fn max_concurrent(&self) -> usize {
        MAX_CONCURRENT
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let prepared = |request: &BatchRequest| match request {
            BatchRequest::Acquire(request) => self.prepared_acquire(request),
            BatchRequest::Release(request) => (self.statements.release(request), None),
        };
        let (changes, times): (Vec<_>, Vec<_>) = requests.iter().map(prepared).unzip();
        let keys = requests.iter().map(BatchRequest::key);
        let outcomes = self.change_many(keys.zip(changes).collect()).await?;
        // Some of the answers take a second request. Those requests run concurrently.
        let answers = requests.iter().zip(times).zip(outcomes);
        let answers = answers.map(async |((request, at), outcome)| {
            Ok(match request {
                BatchRequest::Acquire(request) => {
                    BatchAnswer::Acquire(self.acquired(request, at, outcome?).await?)
                }
                BatchRequest::Release(request) => {
                    BatchAnswer::Release(self.released(&request.key, outcome?).await?)
                }
            })
        });
        Ok(join_all(answers).await)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let change = self.statements.inspect(key);
        let Some(outcome) = self.change(key, change).await? else {
            return Ok(None);
        };
        let (record, now) = self.timed(&outcome, key)?;
        Ok(Some(rules::inspect(&record, now)))
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.looked_at(leases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let index = self.located().await?;
        let is_first = request.after.is_none();
        if is_first {
            // One refresh serves all pages of a list.
            self.refresh().await?;
        }
        let search = self.statements.search(request);
        let (hits, server) = self.search(&search, &index, is_first).await?;
        let mut page = Page::default();
        let mut is_last = hits.len() < request.limit;
        for hit in &hits {
            // The next page is requested by the sort value, so the key is read from there and not from the id.
            let Some(key) = hit.sorted_by() else {
                return Err(server.malformed("a hit has no key"));
            };
            let Ok(key) = Key::new(key) else {
                continue;
            };
            if !key.as_str().starts_with(request.filter.wanted_prefix()) {
                // The keys are in order: after the first key without the prefix no key has it, so this page is the
                // last.
                is_last = true;
                break;
            }
            let Some(lock) = hit.lock(&key) else {
                return Err(server.malformed("a hit lacks its document or the time"));
            };
            listing::add(&mut page, key, lock, &request.filter);
        }
        if is_last {
            page.next = None;
        }
        Ok(page)
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let change = self.statements.evict(key);
        let Some(outcome) = self.change(key, change).await? else {
            return Ok(None);
        };
        let (mut record, now) = outcome.record(key, None)?;
        if let Some(now) = now {
            self.clock.record_time(now, Instant::now());
        }
        match outcome.effect {
            Effect::Written => {
                record.evicted = outcome.evicted(key)?;
                Ok(Some(rules::answer_evict(&record)))
            }
            _ if now.is_some_and(|now| rules::next_fence(Some(record.fence), now).is_none()) => {
                Err(rules::no_next_fence(key))
            }
            Effect::None | Effect::Deleted | Effect::Absent => {
                Err(outcome.server.malformed("a lock was not evicted"))
            }
        }
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let change = self.statements.remove_expired(key);
        let outcome = self.change(key, change).await?;
        self.has_made(Effect::Deleted, key, outcome).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let change = self.statements.permit(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Err(self.malformed(UPSERT_FOUND_NONE));
        };
        let (record, now) = outcome.limiter(&request.key)?;
        Ok(rules::answer_permit(&record, request, now))
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        let change = self.statements.peek(key, quota);
        let Some(outcome) = self.change(key, change).await? else {
            // Without a grant nothing depends on the time.
            return Ok(rules::peek(None, quota, DateTime::UNIX_EPOCH));
        };
        let (record, now) = outcome.limiter(key)?;
        Ok(rules::peek(Some(&record), quota, now))
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        let change = self.statements.give_back(request);
        self.change(&request.key, change).await.map(drop)
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.purge_pages(retention).await
    }
}

impl<C: Transport> IndexStore<C> {
    /// Makes all earlier writes visible to searches.
    async fn refresh(&self) -> Result<(), Error> {
        found::is_refreshed(self.ask(&self.statements.refresh()).await?)
    }

    /// The hits of a search that has seen the whole index, and who has answered.
    async fn search(
        &self,
        request: &HttpRequest,
        index: &str,
        is_first: bool,
    ) -> Result<(Vec<Hit>, Server), Error> {
        let answer = self.ask(request).await?;
        let server = answer.server.clone();
        let hits = found::hits(answer, is_first)?;
        if let Some(hit) = hits.iter().find(|hit| hit.index != index) {
            let other = server::name(&hit.index);
            let problem = format!("a search of {index} found a document of {other}");
            return Err(self.other_index(index, &server, problem));
        }
        Ok((hits, server))
    }

    async fn released(
        &self,
        key: &Key,
        outcome: Option<ChangeOutcome>,
    ) -> Result<ReleaseAnswer, Error> {
        let is_released = self.has_made(Effect::Written, key, outcome).await?;
        Ok(match is_released {
            true => ReleaseAnswer::Released,
            false => ReleaseAnswer::NotHeld,
        })
    }

    /// Whether a change has had this effect. If the document is no lock, that is an error.
    async fn has_made(
        &self,
        effect: Effect,
        key: &Key,
        outcome: Option<ChangeOutcome>,
    ) -> Result<bool, Error> {
        let Some(outcome) = outcome else {
            return Ok(false);
        };
        if outcome.effect != effect {
            explained(self.inspect(key).await.map(drop))?;
        }
        Ok(outcome.effect == effect)
    }

    fn timed(
        &self,
        outcome: &ChangeOutcome,
        key: &Key,
    ) -> Result<(LockRecord, DateTime<Utc>), Error> {
        self.timed_at(outcome, key, None)
    }

    /// The document after a change, and the time at which it was answered: that of the answer, or else `at`.
    fn timed_at(
        &self,
        outcome: &ChangeOutcome,
        key: &Key,
        at: Option<DateTime<Utc>>,
    ) -> Result<(LockRecord, DateTime<Utc>), Error> {
        let (record, now) = outcome.record(key, at)?;
        if let Some(now) = now {
            self.clock.record_time(now, Instant::now());
        }
        let Some(now) = now.or(at) else {
            return Err(outcome.server.malformed("it tells no time"));
        };
        Ok((record, now))
    }
}

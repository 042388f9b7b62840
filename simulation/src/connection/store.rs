//! Each request of a client: what the server does for it.

use std::time::Duration;

use async_trait::async_trait;
use leasehold::{
    Error, Key, LockState, PermitsLeft, Store, rules,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction, GiveBackRequest,
        LeaseId, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer, PermitRequest, Quota,
        ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
};
use tokio::time::Instant;

use super::Connection;
use crate::{
    course::MARGIN,
    judge::Judge,
    server::{State, short_id},
};

#[async_trait]
impl Store for Connection {
    fn clock_margin(&self) -> Duration {
        MARGIN
    }

    fn max_concurrent(&self) -> usize {
        self.server.course.at_once
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let asked = request.clone();
        if let Some(waiter) = request.turn.waiter() {
            self.server.state().waiters.insert(waiter, self.client);
        }
        let text = || {
            let (key, access, lease) = (&request.key, request.access, short_id(&request.lease));
            let place = request.turn.waiter().map(|it| short_id(&it));
            format!("{key} {access:?} as {lease}, place {place:?}")
        };
        let work = move |state: &mut State, now| state.acquire(&asked, now);
        self.send("acquire", Some(&request.key), text, work).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        let of = key.clone();
        let work = move |state: &mut State, now| {
            state.decide(&of, Some(Judge::Place), |it| rules::leave(it, waiter, now));
            Ok(())
        };
        let text = || format!("{key} as {}", short_id(&waiter));
        self.send("leave", Some(key), text, work).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let asked = requests.to_vec();
        let work = move |state: &mut State, now| {
            let one = |request: &RenewRequest| {
                let rule = |it: Option<&_>| rules::renew(it, request, now);
                Ok(state.decide(&request.key, Some(Judge::InDocument), rule))
            };
            Ok(asked.iter().map(one).collect())
        };
        let first = requests.first().map(|it| &it.key);
        self.send("renew", first, || format!("{requests:?}"), work)
            .await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let asked = request.clone();
        let work = move |state: &mut State, now| {
            state.decide(&asked.key, None, |it| rules::convert(it, &asked, now))
        };
        let text = || format!("{request:?}");
        self.send("convert", Some(&request.key), text, work).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let asked = request.clone();
        let work = move |state: &mut State, now| {
            let rule = |it: Option<&_>| rules::release(it, &asked, now);
            Ok(state.decide(&asked.key, Some(Judge::Kept), rule))
        };
        let text = || format!("{} of {}", request.key, short_id(&request.lease));
        self.send("release", Some(&request.key), text, work).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let of = key.clone();
        let work = move |state: &mut State, now| {
            Ok(state.records.get(&of).map(|it| rules::inspect(it, now)))
        };
        self.send("inspect", Some(key), || key.to_string(), work)
            .await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let asked = leases.to_vec();
        let work = move |state: &mut State, now| {
            let one = |it: &LookRequest| {
                let found = state.records.get(&it.key).map(|it| rules::inspect(it, now));
                found.map_or_else(LookAnswer::default, |found| rules::look(&found, it.lease))
            };
            Ok(asked.iter().map(one).collect())
        };
        self.send("look", None, || format!("{leases:?}"), work)
            .await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let filter = request.filter.clone();
        let work = move |state: &mut State, now| {
            let all = state.records.values().map(|it| rules::inspect(it, now));
            let locks = all.filter(|it| rules::matches(it, &filter)).collect();
            Ok(Page { locks, next: None })
        };
        self.send("list", None, || format!("{request:?}"), work)
            .await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let of = key.clone();
        let work = move |state: &mut State, now| {
            state.evicted.insert(of.clone(), Instant::now());
            state.decide(&of, None, |it| rules::evict(it, now))
        };
        self.send("evict", Some(key), || key.to_string(), work)
            .await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let asked = request.clone();
        let work = move |state: &mut State, now| Ok(state.permit(&asked, now));
        self.send("permit", None, || format!("{request:?}"), work)
            .await
    }

    // No task asks for the other four.

    async fn peek(&self, _: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        Ok(rules::peek(None, quota, self.server.state().now()))
    }

    async fn give_back(&self, _: &GiveBackRequest) -> Result<(), Error> {
        Ok(())
    }

    async fn remove_expired(&self, _: &Key) -> Result<bool, Error> {
        Ok(false)
    }

    async fn purge(&self, _: Duration) -> Result<u64, Error> {
        Ok(0)
    }
}

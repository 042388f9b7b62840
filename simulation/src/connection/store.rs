//! Each request of a client: what the server does for it.

use std::time::Duration;

use async_trait::async_trait;
use leasehold::{
    Error, Key, LockState, Store, rules,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction, LeaseId,
        ListRequest, LookAnswer, LookRequest, Page, PermitAnswer, PermitRequest, ReleaseAnswer,
        ReleaseKind, ReleaseRequest, RenewAnswer, RenewAnswers, RenewRequest,
    },
};
use tokio::time::Instant;

use super::Connection;
use crate::{
    control::Control,
    course::MARGIN,
    server::{Server, State, short_id},
};

#[async_trait]
impl Store for Connection {
    fn clock_margin(&self) -> Duration {
        MARGIN
    }

    fn max_concurrent(&self) -> usize {
        self.course.at_once
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let asked = request.clone();
        if let Some(waiter) = request.turn.waiter() {
            self.server.state().waiters.insert(waiter, self.client);
        }
        let work =
            move |server: &Server, state: &mut State, now| state.acquire(server, &asked, now);
        let text = || {
            let (key, access, lease) = (&request.key, request.access, short_id(&request.lease));
            let place = request.turn.waiter().map(|it| short_id(&it));
            let turn = if place.is_some() { "in turn" } else { "now" };
            format!("{key} {access:?} as {lease}, {turn}, place {place:?}")
        };
        self.send("acquire", Some(&request.key), text, work).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        let asked = key.clone();
        let work = move |server: &Server, state: &mut State, now| {
            if server.control != Some(Control::KeepsPlaces) {
                state.decide(&asked, |it| rules::leave(it, waiter, now));
            }
            Ok(())
        };
        let text = || format!("{key} as {}", short_id(&waiter));
        self.send("leave", Some(key), text, work).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let asked = requests.to_vec();
        let work = move |server: &Server, state: &mut State, now| {
            let one = |request: &RenewRequest| {
                let before = state.records.get(&request.key).cloned();
                let rule = |it: Option<&_>| rules::renew(it, request, now);
                let answer = state.decide(&request.key, rule);
                if let (Some(Control::DoesNotRenew), Some(before)) = (server.control, before)
                    && matches!(answer, RenewAnswer::Renewed(_))
                {
                    state.records.insert(request.key.clone(), before);
                }
                Ok(answer)
            };
            Ok(asked.iter().map(one).collect())
        };
        let text = || {
            let leases = requests.iter().map(|it| (&it.key, it.lease));
            format!("{:?}", leases.collect::<Vec<_>>())
        };
        let first = requests.first().map(|it| &it.key);
        self.send("renew", first, text, work).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let asked = request.clone();
        let work = move |_: &Server, state: &mut State, now| {
            state.decide(&asked.key, |it| rules::convert(it, &asked, now))
        };
        let text = || format!("{request:?}");
        self.send("convert", Some(&request.key), text, work).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let asked = request.clone();
        let work = move |server: &Server, state: &mut State, now| {
            let is_plain = matches!(asked.kind, ReleaseKind::Plain { .. });
            if is_plain && server.control == Some(Control::DoesNotRelease) {
                return Ok(ReleaseAnswer::Released);
            }
            Ok(state.decide(&asked.key, |it| rules::release(it, &asked, now)))
        };
        let text = || format!("{} of {}", request.key, short_id(&request.lease));
        self.send("release", Some(&request.key), text, work).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let asked = key.clone();
        let work = move |_: &Server, state: &mut State, now| {
            Ok(state.records.get(&asked).map(|it| rules::inspect(it, now)))
        };
        self.send("inspect", Some(key), || key.to_string(), work)
            .await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let asked = leases.to_vec();
        let work = move |_: &Server, state: &mut State, now| {
            let one = |it: &LookRequest| {
                let found = state.records.get(&it.key).map(|it| rules::inspect(it, now));
                found.map_or_else(LookAnswer::default, |found| rules::look(&found, it.lease))
            };
            Ok(asked.iter().map(one).collect())
        };
        let text = || format!("{leases:?}");
        self.send("look", None, text, work).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let filter = request.filter.clone();
        let work = move |_: &Server, state: &mut State, now| {
            let all = state.records.values().map(|it| rules::inspect(it, now));
            let locks = all.filter(|it| rules::matches(it, &filter)).collect();
            Ok(Page { locks, next: None })
        };
        let text = || format!("{request:?}");
        self.send("list", None, text, work).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let asked = key.clone();
        let work = move |_: &Server, state: &mut State, now| {
            state.evicted.insert(asked.clone(), Instant::now());
            state.decide(&asked, |it| rules::evict(it, now))
        };
        self.send("evict", Some(key), || key.to_string(), work)
            .await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let asked = key.clone();
        let work = move |_: &Server, state: &mut State, now| {
            Ok(state.decide(&asked, |it| rules::remove_expired(it, Duration::ZERO, now)))
        };
        self.send("remove_expired", Some(key), || key.to_string(), work)
            .await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let asked = request.clone();
        let work = move |server: &Server, state: &mut State, now| state.permit(server, &asked, now);
        let text = || format!("{request:?}");
        self.send("permit", None, text, work).await
    }

    async fn purge(&self, _: Duration) -> Result<u64, Error> {
        let work = |_: &Server, _: &mut State, _| Ok(0);
        self.send("purge", None, String::new, work).await
    }
}

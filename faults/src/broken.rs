//! Stores and clients that do one thing wrong, on top of a correct store. The checkers must catch each of them.

use std::{collections::HashMap, num::NonZeroU16, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use clap::ValueEnum;
use leasehold::{
    Error, Fence, Key, LockState, Mode, PermitsLeft, Store,
    store::{
        Access, AcquireAnswer, AcquireRequest, AwaitedKeys, ConvertAnswer, ConvertRequest,
        Eviction, FreedKeys, GiveBackRequest, Grant, LeaseId, ListRequest, LookAnswer, LookRequest,
        Page, PermitAnswer, PermitRequest, Quota, ReleaseAnswer, ReleaseKind, ReleaseRequest,
        RenewAnswer, RenewAnswers, RenewRequest, Turn,
    },
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::check::{Kind, Violation, Violations};

/// The one thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Wrong {
    #[value(skip)]
    Nothing,
    /// A client takes over a key as soon as the lease is over by the client's own clock.
    ClientClock,
    /// A release frees the key, whoever holds it.
    ReleaseByKey,
    /// The fence counts the grants since the key was free.
    FenceRestarts,
    /// A key is taken over a second before the lease of its holder ends.
    TakesOverEarly,
    /// Each client counts the permits of a limiter by itself.
    CountsAlone,
    /// The ledger accepts every write, whatever its fence.
    LooksAtNoFence,
    /// The guard of a document compares no fences.
    GuardComparesNothing,
    /// Waiters are granted a key in no order.
    ForgetsOrder,
    /// Readers are granted a key before earlier waiters.
    ReadersOvertake,
    /// An acquire for a tick does not check which ticks are done.
    ForgetsDone,
    /// A release reports a tick as done without writing it.
    WritesNoDone,
    /// A renewal of a lease that stays with its process is answered, and not carried out. So the process grants the key
    /// from memory after it has lost it.
    RenewsNothing,
    /// A process does not hear that others wait for a key that stays with it.
    HearsNoRecall,
    /// A grant counts when one member of the set has acknowledged it.
    // This is not done in this file: the network changes what the clients send.
    OneMemberAcknowledges,
    /// A lease is over when it is over by the clock of a router.
    // This is not done in this file: the clients take the routers for primaries, and ask them for `$$NOW`.
    AsksRouters,
}

impl Wrong {
    pub const EACH: [Self; 15] = [
        Self::OneMemberAcknowledges,
        Self::AsksRouters,
        Self::ClientClock,
        Self::ReleaseByKey,
        Self::FenceRestarts,
        Self::TakesOverEarly,
        Self::CountsAlone,
        Self::LooksAtNoFence,
        Self::GuardComparesNothing,
        Self::ForgetsOrder,
        Self::ReadersOvertake,
        Self::ForgetsDone,
        Self::WritesNoDone,
        Self::RenewsNothing,
        Self::HearsNoRecall,
    ];

    /// Whether it can be tried without servers.
    pub fn is_in_a_process(self) -> bool {
        !matches!(self, Self::OneMemberAcknowledges | Self::AsksRouters)
    }

    /// The engine that it is tried on.
    pub fn tried_on(self) -> &'static str {
        match self {
            Self::OneMemberAcknowledges => "mongodb-three",
            Self::AsksRouters => "mongodb-sharded",
            _ => "mongodb",
        }
    }

    /// The kinds of violations that reveal it. A rollback may be seen in more than one way.
    pub fn shows_in(self) -> &'static [Kind] {
        match self {
            Self::Nothing => &[],
            Self::ClientClock | Self::ReleaseByKey => &[Kind::Exclusion],
            Self::TakesOverEarly | Self::AsksRouters => &[Kind::Exclusion],
            Self::RenewsNothing => &[Kind::Exclusion],
            Self::HearsNoRecall => &[Kind::Recall],
            Self::FenceRestarts => &[Kind::Fences],
            Self::CountsAlone => &[Kind::Permits],
            Self::LooksAtNoFence => &[Kind::LostWrite],
            Self::GuardComparesNothing => &[Kind::Guarded],
            Self::ForgetsOrder | Self::ReadersOvertake => &[Kind::Order],
            Self::ForgetsDone | Self::WritesNoDone => &[Kind::Ticks],
            Self::OneMemberAcknowledges => &[Kind::Exclusion, Kind::Fences, Kind::Refused],
        }
    }

    /// Whether one of these violations reveals it.
    pub fn is_in(self, violations: &Violations) -> bool {
        let shows = |it: &Violation| self.shows_in().contains(&it.kind);
        violations.iter().any(shows)
    }

    /// The description for the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::ClientClock => "takeovers use the clock of the client, which may be wrong",
            Self::ReleaseByKey => "a release frees the key, whoever holds it",
            Self::FenceRestarts => "the fence counts the grants since the key was free",
            Self::TakesOverEarly => {
                "a key is taken over a second before the lease of its holder ends"
            }
            Self::CountsAlone => "each client counts the permits of a limiter by itself",
            Self::LooksAtNoFence => "the protected resource checks no fence",
            Self::GuardComparesNothing => "the guard of a document compares no fences",
            Self::ForgetsOrder => "waiters are granted a key in no order",
            Self::ReadersOvertake => "readers are granted a key before earlier waiters",
            Self::ForgetsDone => "an acquire for a tick does not check which ticks are done",
            Self::WritesNoDone => "a release reports a tick as done without writing it",
            Self::RenewsNothing => {
                "a renewal of a lease that stays with its process is answered, and not carried out"
            }
            Self::HearsNoRecall => "a process does not hear that others wait for its idle keys",
            Self::OneMemberAcknowledges => "one member acknowledges a write (`w: 1`)",
            Self::AsksRouters => "takeovers use the clock of a router, one of which is 5 s ahead",
        }
    }
}

/// A client's view of a store.
#[derive(Debug)]
pub struct Broken {
    store: Arc<dyn Store>,
    wrong: Wrong,
    /// How far the clock of this client is ahead.
    ahead: TimeDelta,
    /// A number that no other client has.
    number: u64,
    fences: Mutex<HashMap<Key, i64>>,
    /// The leases that may stay with this client, and the time of the answer that granted them.
    stay: Mutex<HashMap<LeaseId, (Grant, Instant)>>,
}

impl Broken {
    pub fn new(store: Arc<dyn Store>, wrong: Wrong, ahead: TimeDelta) -> Self {
        Self {
            store,
            wrong,
            ahead,
            number: fastrand::u64(..),
            fences: Mutex::default(),
            stay: Mutex::default(),
        }
    }

    /// Whether this client takes a live lease for an expired one.
    fn takes(&self, expires_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        match self.wrong {
            Wrong::ClientClock => expires_at <= now + self.ahead,
            Wrong::TakesOverEarly => expires_at <= now + TimeDelta::seconds(1),
            _ => false,
        }
    }

    /// The request that this client sends instead of the given one.
    fn asks(&self, request: &AcquireRequest) -> AcquireRequest {
        let overtakes = match self.wrong {
            Wrong::ForgetsOrder => true,
            Wrong::ReadersOvertake => request.access == Access::Shared,
            _ => false,
        };
        let mut request = request.clone();
        if self.wrong == Wrong::ForgetsDone {
            request.tick = None;
        }
        if overtakes {
            request.turn(Turn::Barging)
        } else {
            request
        }
    }

    fn granted(&self, request: &AcquireRequest, mut grant: Grant) -> Grant {
        match self.wrong {
            Wrong::FenceRestarts => {
                let mut fences = self.fences.lock();
                let fence = fences.entry(request.key.clone()).or_default();
                *fence += i64::from(request.fences.get());
                grant.fence = Fence::new(*fence);
            }
            Wrong::RenewsNothing if request.fences > NonZeroU16::MIN => {
                let mut stay = self.stay.lock();
                stay.insert(request.lease, (grant, Instant::now()));
            }
            _ => {}
        }
        grant
    }

    /// The answer to a renewal that is not carried out. `None` if it is carried out.
    fn not_renewed(&self, request: &RenewRequest) -> Option<RenewAnswer> {
        let (mut grant, at) = self.stay.lock().get(&request.lease).copied()?;
        grant.now += TimeDelta::from_std(at.elapsed()).unwrap();
        grant.expires_at = grant.now + TimeDelta::from_std(request.ttl).unwrap();
        Some(RenewAnswer::Renewed(grant))
    }
}

#[async_trait]
impl Store for Broken {
    fn clock_margin(&self) -> Duration {
        self.store.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let request = &self.asks(request);
        let mut answer = self.store.acquire(request).await?;
        if let AcquireAnswer::Held(held) = &answer {
            let now = held
                .holders()
                .iter()
                .map(|holder| holder.expires_at)
                .min()
                .map(|expires_at| expires_at - TimeDelta::from_std(held.expires_in()).unwrap());
            let takes = |now| {
                held.holders()
                    .iter()
                    .all(|it| self.takes(it.expires_at, now))
            };
            if now.is_some_and(takes) {
                self.store.evict(&request.key).await?;
                answer = self.store.acquire(request).await?;
            }
        }
        Ok(match answer {
            AcquireAnswer::Granted(grant) => AcquireAnswer::Granted(self.granted(request, grant)),
            held => held,
        })
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.store.leave(key, waiter).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let answers = requests.iter().map(|it| self.not_renewed(it));
        let mut answers: Vec<_> = answers.collect();
        let left = requests.iter().zip(&answers);
        let left = left.filter(|(_, answer)| answer.is_none());
        let left: Vec<_> = left.map(|(request, _)| request.clone()).collect();
        let mut carried_out = match &left[..] {
            [] => Vec::new(),
            left => self.store.renew(left).await?,
        }
        .into_iter();
        let answers = answers.drain(..).map(|answer| match answer {
            Some(answer) => Some(Ok(answer)),
            None => carried_out.next(),
        });
        Ok(answers.flatten().collect())
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.store.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let mut request = request.clone();
        if self.wrong == Wrong::ReleaseByKey
            && let Some(state) = self.store.inspect(&request.key).await?
            && let Some(holder) = state.holders.first()
            && holder.mode == Mode::Exclusive
        {
            request.lease = holder.lease;
        }
        if self.wrong == Wrong::WritesNoDone && matches!(request.kind, ReleaseKind::Done(_)) {
            request.kind = ReleaseKind::Plain { undoable: false };
        }
        self.store.release(&request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.store.inspect(key).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        if self.wrong == Wrong::HearsNoRecall {
            let looked = self.store.look(leases).await?.into_iter();
            return Ok(looked
                .map(|it| LookAnswer::new(it.is_held, false))
                .collect());
        }
        self.store.look(leases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.store.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.store.evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.store.remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let mut request = request.clone();
        if self.wrong == Wrong::CountsAlone {
            request.key = Key::new(format!("{}-{}", request.key, self.number))?;
        }
        self.store.permit(&request).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.store.freed().await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        if self.wrong == Wrong::HearsNoRecall {
            return Ok(None);
        }
        self.store.awaited().await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.store.peek(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.store.give_back(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.store.purge(retention).await
    }
}

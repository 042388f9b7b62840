//! `FaultyStore`: a store around another one, which does what a test says.
//!
//! Unlike other stores it sleeps, because a delay is what a test may ask for.

use std::{any::Any, slice, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use tokio::{sync::Mutex, time::sleep};

use super::{faults::Faults, plan::Group, shared::SharedPlans};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Earlier, Eviction, GiveBackRequest, ListRequest, LookAnswer, LookRequest,
        Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswers,
        RenewRequest, only_renewal,
    },
    model::{
        Error, FENCES_PER_MILLI, Fence, Held, Holder, Key, LeaseId, LockState, PermitsLeft, Quota,
        after,
    },
    store::{AwaitedKeys, FreedKeys, Store},
};

/// A store around another store. It passes every call on, unless a test says otherwise by its [`Faults`].
///
/// A clone has the same faults. What goes to the inner store past this one meets none: a test can give a clone of the
/// inner store to another [`Leases`](crate::Leases), for a process whose network is whole.
///
/// A test that has said nothing sees the inner store: its answers, its clock margin, its stream of freed keys, and its
/// batches. While there are faults, the requests of a batch are passed on one by one. Operations that go to the
/// database past the store, such as `Lease::enforce` on MongoDB, meet no fault.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore, testing::{Failure, FaultyStore}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let memory = MemoryStore::new();
/// let store = FaultyStore::new(memory.clone());
/// let faults = store.faults();
/// let (cut_off, other) = (Leases::new(store), Leases::new(memory));
///
/// faults.calls().fail_all(Failure::Unreachable);
/// assert!(cut_off.inspect("report:42").await.is_err());
/// assert!(other.inspect("report:42").await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FaultyStore<S> {
    inner: S,
    plans: Arc<SharedPlans>,
    /// The lease of the other owner, who has the keys of refused acquires.
    other: LeaseId,
    /// Locked while lost leases are evicted, so that no call is carried out before that.
    evicting: Arc<Mutex<()>>,
}

impl<S> FaultyStore<S> {
    /// A store around this one, without faults.
    ///
    /// ```
    /// use leasehold::{Leases, MemoryStore, testing::FaultyStore};
    ///
    /// let leases = Leases::new(FaultyStore::new(MemoryStore::new()));
    /// ```
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            plans: Arc::default(),
            other: LeaseId::random(),
            evicting: Arc::default(),
        }
    }

    /// What a test tells this store, and its clones, to do. Take it before the store goes to its
    /// [`Leases`](crate::Leases).
    ///
    /// ```
    /// use leasehold::{Leases, MemoryStore, testing::FaultyStore};
    ///
    /// let store = FaultyStore::new(MemoryStore::new());
    /// let faults = store.faults();
    /// let leases = Leases::new(store);
    /// faults.refuse_all();
    /// ```
    pub fn faults(&self) -> Faults {
        Faults::new(self.plans.clone())
    }
}

impl<S: Store> FaultyStore<S> {
    /// Carries a call out, or not, as the faults say.
    async fn meet<T>(
        &self,
        group: Group,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let fault = self.plans.next(group).await;
        let answer = match fault.failure {
            None => self.carry_out(work).await,
            Some(failure) => {
                if failure.is_carried_out() {
                    self.carry_out(work).await?;
                }
                Err(failure.error())
            }
        };
        if !fault.delay.is_zero() {
            sleep(fault.delay).await;
        }
        answer
    }

    /// Carries a call out, after the evictions that a test has asked for.
    async fn carry_out<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.plans.next_lost().is_some() {
            let _evicting = self.evicting.lock().await;
            while let Some(key) = self.plans.next_lost() {
                self.inner.evict(&key).await?;
                self.plans.evicted();
            }
        }
        work.await
    }

    async fn acquire_or_refuse(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        // A lease that an earlier request was granted is not refused: no store says that it is held by another.
        let is_granted = !self.plans.is_normal() && self.is_granted(request).await?;
        let refused = (!is_granted).then(|| self.plans.take_refusal()).flatten();
        match refused {
            Some(since) => Ok(AcquireAnswer::Held(self.held_since(since, request))),
            None => self.inner.acquire(request).await,
        }
    }

    async fn is_granted(&self, request: &AcquireRequest) -> Result<bool, Error> {
        if request.earlier != Earlier::Unclear {
            return Ok(false);
        }
        let state = self.inner.inspect(&request.key).await?;
        let mut holders = state.iter().flat_map(|state| &state.holders);
        Ok(holders.any(|holder| holder.lease == request.lease))
    }

    /// The answer to a refused acquire: another owner has the key since then, and for another ttl.
    fn held_since(&self, since: DateTime<Utc>, request: &AcquireRequest) -> Held {
        let now = Utc::now().max(since);
        let holder = Holder::exclusive(
            self.other,
            Faults::OTHER_OWNER.into(),
            Fence::new(since.timestamp_millis().saturating_mul(FENCES_PER_MILLI)),
            since,
            after(now, request.ttl),
        );
        Held::new(
            request.key.clone(),
            vec![holder],
            after(now, Duration::ZERO),
        )
    }
}

#[async_trait]
impl<S: Store> Store for FaultyStore<S> {
    fn clock_margin(&self) -> Duration {
        self.inner.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.meet(Group::Acquires, self.acquire_or_refuse(request))
            .await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.meet(Group::Every, self.inner.leave(key, waiter)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        if self.plans.is_normal() {
            return self.meet(Group::Renewals, self.inner.renew(requests)).await;
        }
        let single = async |request| {
            let renewal = async { only_renewal(self.inner.renew(slice::from_ref(request)).await) };
            self.meet(Group::Renewals, renewal).await
        };
        Ok(join_all(requests.iter().map(single)).await)
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.meet(Group::Every, self.inner.convert(request)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.meet(Group::Releases, self.inner.release(request))
            .await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.meet(Group::Every, self.inner.inspect(key)).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.meet(Group::Every, self.inner.look(leases)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.meet(Group::Every, self.inner.list(request)).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.meet(Group::Every, self.inner.evict(key)).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.meet(Group::Every, self.inner.remove_expired(key))
            .await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.meet(Group::Every, self.inner.permit(request)).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.meet(Group::Every, self.inner.peek(key, quota)).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.meet(Group::Every, self.inner.give_back(request)).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.meet(Group::Every, self.inner.purge(retention)).await
    }

    fn max_concurrent(&self) -> usize {
        self.inner.max_concurrent()
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        self.inner.has_cheap_undoable_releases()
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        if self.plans.is_normal() {
            return self.meet(Group::Every, self.inner.batch(requests)).await;
        }
        let single = async |request: &BatchRequest| match request {
            BatchRequest::Acquire(request) => self.acquire(request).await.map(BatchAnswer::Acquire),
            BatchRequest::Release(request) => self.release(request).await.map(BatchAnswer::Release),
        };
        Ok(join_all(requests.iter().map(single)).await)
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.meet(Group::Every, self.inner.freed()).await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.meet(Group::Every, self.inner.awaited()).await
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.inner.as_any()
    }
}

//! A store with one chosen fault.

mod acquires;
mod permits;
mod renewals;
mod ticks;
mod turns;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold::{
    Error, Fence, Held, Key, LockState, PermitsLeft, Store,
    rules::{self, Write},
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, Conversion,
        ConvertAnswer, ConvertRequest, Eviction, GiveBackRequest, LastDone, LeaseId, LimiterRecord,
        ListRequest, LockRecord, LookAnswer, LookRequest, Page, PermitAnswer, PermitRequest, Quota,
        ReleaseAnswer, ReleaseKind, ReleaseRequest, RenewAnswers, RenewRequest, Turn,
    },
};
use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    ReleaseByKey,
    ClientClock,
    NoFence,
    FenceRestarts,
    EvictionKeepsFence,
    EvictionKeepsNames,
    NotAtomic,
    LosersExtend,
    LosersWrite,
    ForgetsLease,
    RenewsBlindly,
    RenewalIsForgotten,
    RenewalsShorten,
    TrustsWhatIsKnown,
    RemovesBlindly,
    PurgesBlindly,
    RemovesFencesAhead,
    TrimsKeys,
    NeverReleases,
    ReleaseDropsTheExpired,
    ForgetsSomeReleases,
    RefusesSomeRenewals,
    ExpiresEarly,
    ListsEverything,
    SkipsAtPageEnd,
    DeadReadersBlock,
    PermitsWithoutCount,
    HoldersWithoutBound,
    UpgradesBesideOthers,
    ForgetsMinHold,
    ConversionIsForgotten,
    ConversionsIgnoreFences,
    PermitsNotAtomic,
    PermitsWithoutWindow,
    RepeatedPermitsCount,
    LeftBeforeTheGrant,
    PeeksTake,
    PeeksSeeNothing,
    GivesNothingBack,
    TakeOversEnterAgain,
    TakeOversWait,
    TakeOversOfAnybody,
    GivesBackEarlierPermits,
    GivesBackForgottenPermits,
    PermitsInPart,
    SmoothIsFixed,
    SmallBurstsGiveBack,
    AnotherWindowBlocks,
    LimitersAreLocks,
    LimitersArePurged,
    BatchInDisorder,
    BatchEndsAtARefusal,
    ForgetsPlaces,
    PlacesWithoutOwner,
    PlaceStaysAfterItsGrant,
    PlacesEndWhateverIsAsked,
    WhoAsksAgainComesLast,
    DeadPlacesBlock,
    PlacesBindForEver,
    PlacesBindFromTheLastExpiry,
    PlacesAreShortened,
    PlacesWithoutBound,
    PlacesAreForAllKeys,
    NeverLeaves,
    ReadersPassWriters,
    SmallPermitsPass,
    OwnersQueueBehindThemselves,
    UpgradesQueue,
    NobodyBarges,
    WhoPassesEndsTheQueue,
    EvictionEndsTheQueue,
    ReleaseEndsTheQueue,
    ConversionsEndTheQueue,
    RenewalsEndTheQueue,
    LeavesEndTheQueue,
    PassedPlacesStay,
    PlacesCountForAnyTime,
    CountsOneMoreAhead,
    HidesForHowLongPlacesBind,
    TriesTakePlaces,
    BatchesPassTheQueue,
    GrantsForgetTicks,
    ReleasesForgetTicks,
    EvictionForgetsTicks,
    LostLeasesAreDone,
    NothingIsDone,
    GrantsAreDone,
    NobodyKnowsWhoDidIt,
    TickIsLookedAtFirst,
    OlderTicksPass,
    TicksOfOtherKindsPass,
    TicksAreNumbers,
    TicksAreWaitedFor,
    CleanUpForgetsTicks,
    TicksAreHidden,
    FencesOneByOne,
    NobodyIsWaitedFor,
    EverythingIsHeld,
    NothingIsHeld,
}

/// The limiters by their key, the length of their windows, and whether they are smooth.
type Limiters = HashMap<(Key, Duration, bool), LimiterRecord>;
type Records = Arc<Mutex<HashMap<Key, LockRecord>>>;

#[derive(Clone, Debug)]
pub struct BrokenStore {
    fault: Fault,
    records: Records,
    limiters: Arc<Mutex<Limiters>>,
    fences: Arc<Mutex<HashMap<LeaseId, Fence>>>,
    start: (Instant, DateTime<Utc>),
    ahead: Duration,
    calls: Arc<AtomicUsize>,
}

impl BrokenStore {
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            records: Records::default(),
            limiters: Arc::default(),
            fences: Arc::default(),
            start: (Instant::now(), "2026-01-01T00:00:00Z".parse().unwrap()),
            ahead: Duration::ZERO,
            calls: Arc::default(),
        }
    }

    /// Another client, on a machine with a wrong clock. That must make no difference.
    pub fn with_clock_ahead(self) -> Self {
        Self {
            ahead: Duration::from_secs(3600),
            ..self
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Whether the fault shows in this call. It shows in every twentieth.
    fn has_its_moment(&self, fault: Fault) -> bool {
        self.is(fault) && self.calls.fetch_add(1, Relaxed) % 20 == 19
    }

    fn now(&self) -> DateTime<Utc> {
        let elapsed = self.start.0.elapsed()
            + if self.is(Fault::ClientClock) {
                self.ahead
            } else {
                Duration::ZERO
            };
        DateTime::from_timestamp_millis((self.start.1 + elapsed).timestamp_millis()).unwrap()
    }

    fn key(&self, key: &Key) -> Key {
        match self.fault {
            Fault::TrimsKeys => Key::new(key.as_str().trim()).unwrap(),
            _ => key.clone(),
        }
    }

    fn record(&self, key: &Key) -> Option<LockRecord> {
        self.records.lock().get(&self.key(key)).cloned()
    }

    /// The lock as the clean-up sees it.
    fn as_it_is_cleaned_up(&self, mut record: LockRecord) -> LockRecord {
        if self.is(Fault::RemovesFencesAhead) {
            record.fence = Fence::new(0);
        }
        if self.is(Fault::CleanUpForgetsTicks) {
            record.done = LastDone::Nothing;
        }
        record
    }

    fn write(&self, key: &Key, write: Write) {
        let mut records = self.records.lock();
        match write {
            Write::Keep => {}
            Write::Put(record) => {
                records.insert(self.key(key), record);
            }
            Write::Remove => {
                records.remove(&self.key(key));
            }
        }
    }
}

/// Nothing awaits between the read and the write, and the tests have one thread. So every operation
/// is atomic, except with the fault that awaits.
#[async_trait]
impl Store for BrokenStore {
    fn clock_margin(&self) -> Duration {
        Duration::ZERO
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.acquire_wrongly(request).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        if self.is(Fault::NeverLeaves) {
            return Ok(());
        }
        let mut left = rules::leave(self.record(key).as_ref(), waiter, self.now());
        if let (Fault::LeavesEndTheQueue, Write::Put(record)) = (self.fault, &mut left.write) {
            record.waiters.clear();
        }
        self.write(key, left.write);
        Ok(())
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.renew_wrongly(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let mut record = self.record(&request.key);
        if let Some(record) = record
            .as_mut()
            .filter(|_| self.is(Fault::UpgradesBesideOthers))
        {
            record
                .holders
                .retain(|holder| holder.lease == request.lease);
        }
        let mut request = request.clone();
        if self.is(Fault::ConversionsIgnoreFences) {
            request.fence = None;
        }
        let mut decision = rules::convert(record.as_ref(), &request, self.now());
        let waits = record.is_some_and(|record| !record.waiters.is_empty());
        if self.is(Fault::UpgradesQueue) && waits && request.conversion == Conversion::Upgrade {
            let held = Held::new(request.key.clone(), Vec::new(), self.now());
            decision.answer = Ok(ConvertAnswer::Held(held));
            decision.write = Write::Keep;
        }
        if let (Fault::ConversionsEndTheQueue, Write::Put(record)) =
            (self.fault, &mut decision.write)
        {
            record.waiters.clear();
        }
        if !self.is(Fault::ConversionIsForgotten) {
            self.write(&request.key, decision.write);
        }
        decision.answer
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let mut request = request.clone();
        if self.is(Fault::ForgetsMinHold) && matches!(request.kind, ReleaseKind::MinHold(_)) {
            request.kind = ReleaseKind::Plain { undoable: false };
        }
        let request = &request;
        if self.is(Fault::NeverReleases) || self.has_its_moment(Fault::ForgetsSomeReleases) {
            return Ok(ReleaseAnswer::Released);
        }
        let record = self.record(&request.key);
        let mut request = request.clone();
        if self.is(Fault::ReleaseByKey)
            && let Some(holder) = record.as_ref().and_then(|record| record.holders.first())
        {
            request.lease = holder.lease;
        }
        let mut decision = rules::release(record.as_ref(), &request, self.now());
        if let Write::Put(record) = &mut decision.write
            && self.is(Fault::ReleaseDropsTheExpired)
        {
            let now = self.now();
            record.holders.retain(|holder| holder.is_live(now));
        }
        if let (Fault::ReleaseEndsTheQueue, Write::Put(record)) = (self.fault, &mut decision.write)
        {
            record.waiters.clear();
        }
        self.complete_wrongly(&request, record.as_ref(), self.now(), &mut decision);
        self.write(&request.key, decision.write);
        Ok(decision.answer)
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let mut answers = Vec::new();
        for request in requests {
            if self.is(Fault::NotAtomic) {
                tokio::task::yield_now().await;
            }
            let answer = match request {
                BatchRequest::Acquire(request) => {
                    let mut request = AcquireRequest::clone(request);
                    if self.is(Fault::BatchesPassTheQueue) {
                        request.turn = Turn::Barging;
                    }
                    self.acquire(&request).await.map(BatchAnswer::Acquire)
                }
                BatchRequest::Release(request) => {
                    self.release(request).await.map(BatchAnswer::Release)
                }
            };
            let refused = matches!(answer, Ok(BatchAnswer::Acquire(AcquireAnswer::Held(_))));
            answers.push(answer);
            if refused && self.is(Fault::BatchEndsAtARefusal) {
                break;
            }
        }
        if self.is(Fault::BatchInDisorder) {
            answers.reverse();
        }
        Ok(answers)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let record = self.record(key);
        let mut state = record.map(|record| rules::inspect(&record, self.now()));
        if let Some(state) = state.as_mut().filter(|_| self.is(Fault::TicksAreHidden)) {
            state.done = None;
        }
        Ok(state)
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let look = |it: &LookRequest| {
            let now = self.now();
            let state = self
                .record(&it.key)
                .map(|record| rules::inspect(&record, now));
            let mut look = state
                .map(|state| rules::look(&state, it.lease))
                .unwrap_or_default();
            match self.fault {
                Fault::NobodyIsWaitedFor => look.is_waited_for = false,
                Fault::EverythingIsHeld => look.is_held = true,
                Fault::NothingIsHeld => look.is_held = false,
                _ => {}
            }
            look
        };
        Ok(leases.iter().map(look).collect())
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let mut keys: Vec<_> = self.records.lock().keys().cloned().collect();
        keys.sort_unstable();
        let mut page = Page::default();
        for key in keys {
            if request.after.as_ref().is_some_and(|after| key <= *after) {
                continue;
            }
            if page.locks.len() == request.limit {
                page.next = page.locks.last().map(|last: &LockState| last.key.clone());
                if self.is(Fault::SkipsAtPageEnd) {
                    page.next = Some(key);
                }
                break;
            }
            let Some(state) = self.inspect(&key).await? else {
                continue;
            };
            if self.is(Fault::ListsEverything) || rules::matches(&state, &request.filter) {
                page.locks.push(state);
            }
        }
        Ok(page)
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        let before = self.record(key);
        let now = self.now();
        let mut decision = rules::evict(before.as_ref(), now);
        if let (Fault::EvictionKeepsNames, Write::Put(record)) = (self.fault, &mut decision.write) {
            record.holders = record.evicted.clone();
            for holder in &mut record.holders {
                holder.expires_at = now;
            }
        }
        if let (Fault::EvictionEndsTheQueue, Write::Put(record)) = (self.fault, &mut decision.write)
        {
            record.waiters.clear();
        }
        if let (Fault::EvictionForgetsTicks, Write::Put(record)) = (self.fault, &mut decision.write)
        {
            record.done = LastDone::Nothing;
        }
        if self.is(Fault::EvictionKeepsFence)
            && let (Write::Put(record), Ok(Some(eviction)), Some(before)) =
                (&mut decision.write, &mut decision.answer, before)
        {
            (record.fence, eviction.fence) = (before.fence, before.fence);
        }
        self.write(key, decision.write);
        decision.answer
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        let record = self.record(key);
        if self.is(Fault::RemovesBlindly) {
            self.write(key, Write::Remove);
            return Ok(record.is_some());
        }
        let record = record.map(|record| self.as_it_is_cleaned_up(record));
        let decision = rules::remove_expired(record.as_ref(), Duration::ZERO, self.now());
        self.write(key, decision.write);
        Ok(decision.answer)
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.permit_wrongly(request).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.peek_wrongly(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.give_back_wrongly(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let retention = match self.fault {
            Fault::PurgesBlindly => Duration::ZERO,
            _ => retention,
        };
        let now = self.now();
        let mut records = self.records.lock();
        let mut limiters = self.limiters.lock();
        let before = records.len() + limiters.len();
        records.retain(|_, record| {
            let record = self.as_it_is_cleaned_up(record.clone());
            !rules::remove_expired(Some(&record), retention, now).answer
        });
        let keeps = |record: &LimiterRecord| !rules::is_over(record, retention, now);
        limiters.retain(|_, record| !self.is(Fault::LimitersArePurged) && keeps(record));
        Ok((before - records.len() - limiters.len()) as u64)
    }
}

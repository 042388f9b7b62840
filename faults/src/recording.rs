//! A store that records a client's requests for keys and their answers. The order of the waiters is judged by this
//! record.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Error, Held, Key, LockState, PermitsLeft, Store,
    limits::MAX_PLACE_TIME,
    store::{
        Access, AcquireAnswer, AcquireRequest, AwaitedKeys, ConvertAnswer, ConvertRequest,
        Eviction, FreedKeys, GiveBackRequest, LeaseId, ListRequest, LookAnswer, LookRequest,
        OwnLeases, Page, PermitAnswer, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest, Turn,
    },
};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    history::{Answer, Claim, Event, Recorder, Time},
    work::READERS,
};

/// By how much the times of places may differ from those of this machine. They are in milliseconds, and come from
/// clocks that are slewed.
const UNSURE: Duration = Duration::from_millis(50);

/// What a client of the laboratory knows of the servers' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerClock {
    /// The servers have the clock of this machine. A store may estimate it, and be behind by the delay of the answers.
    OfThisMachine,
    /// The store reads the clock itself, so no answer shows an earlier time than that of its request.
    OfTheStore,
}

/// A client's view of a store. It offers no batches, so every acquire is recorded here.
pub struct Recording {
    store: Arc<dyn Store>,
    recorder: Recorder,
    clock: ServerClock,
}

impl Recording {
    pub fn new(store: Arc<dyn Store>, recorder: Recorder, clock: ServerClock) -> Self {
        Self {
            store,
            recorder,
            clock,
        }
    }

    /// The refusal of a request with this turn, which was sent at this time of the machine.
    fn refusal(&self, turn: Turn, held: &Held, (sent, by_day): (Time, DateTime<Utc>)) -> Answer {
        let judged = match self.clock {
            ServerClock::OfTheStore => Some(sent),
            ServerClock::OfThisMachine => judged_at(held).and_then(|now| {
                let after_sending = (now - by_day).num_microseconds()?;
                sent.checked_add_signed(after_sending)
            }),
        };
        // The place of a refused process has at least two thirds of its time left.
        let certain = match turn {
            Turn::InTurn(turn) => turn.counts_for.min(MAX_PLACE_TIME) * 2 / 3,
            Turn::Barging | Turn::Behind => Duration::ZERO,
        };
        let certain = certain.saturating_sub(UNSURE + self.clock_margin());
        let until = judged.map(|judged| judged + certain.as_micros() as Time);
        Answer::Refused {
            held: judged.filter(|_| !held.holders().is_empty()).unwrap_or(0),
            until: until.filter(|_| !certain.is_zero()).unwrap_or(0),
        }
    }
}

/// The server's time by which the store judged the holders and the places. Without a holder it is unknown.
fn judged_at(held: &Held) -> Option<DateTime<Utc>> {
    let first = held.holders().iter().map(|it| it.expires_at).min()?;
    first.checked_sub_signed(TimeDelta::from_std(held.expires_in()).ok()?)
}

/// The time of day of this machine, from the kernel and not from a library that fakes the clock of a process.
fn time_of_day() -> DateTime<Utc> {
    let now = clock_gettime(ClockId::Realtime);
    DateTime::from_timestamp(now.tv_sec, now.tv_nsec as u32).unwrap_or_default()
}

fn claim(access: Access) -> Claim {
    match access {
        Access::Exclusive => Claim::All,
        Access::Shared => Claim::OneOf(READERS),
        Access::Permits(permits) => Claim::OneOf(permits.of().try_into().unwrap_or(u32::MAX)),
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recording").field(&self.store).finish()
    }
}

#[async_trait]
impl Store for Recording {
    fn clock_margin(&self) -> Duration {
        self.store.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let number = fastrand::u64(..);
        // In this order, a pause between the two readings makes a place shorter.
        let sent = self.recorder.clock.now();
        let by_day = time_of_day();
        self.recorder.saw(Event::Asked {
            request: number,
            key: request.key.to_string(),
            lease: request.lease.to_string(),
            waiter: request.turn.waiter().map(|it| it.to_string()),
            claim: claim(request.access),
            overtakes: request.turn == Turn::Barging || request.own_leases != OwnLeases::Conflict,
            fences: request.fences.get(),
            sent,
        });
        let answer = self.store.acquire(request).await?;
        let got = self.recorder.clock.now();
        self.recorder.saw(Event::Answered {
            request: number,
            answer: match &answer {
                AcquireAnswer::Granted(grant) => Answer::Granted {
                    fence: grant.fence.get(),
                },
                AcquireAnswer::Held(held) => self.refusal(request.turn, held, (sent, by_day)),
                AcquireAnswer::Done(_) => Answer::Done,
            },
            got,
        });
        if let AcquireAnswer::Held(held) = &answer {
            self.recorder.saw(Event::Held {
                key: request.key.to_string(),
                fences: held.holders().iter().map(|it| it.fence.get()).collect(),
                sent,
                got,
            });
        }
        Ok(answer)
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.recorder.saw(Event::Leaves {
            waiter: waiter.to_string(),
            sent: self.recorder.clock.now(),
        });
        self.store.leave(key, waiter).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.store.renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.store.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.store.release(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.store.inspect(key).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let sent = self.recorder.clock.now();
        let told = self.store.look(leases).await?;
        let names = leases.iter().map(|it| it.key.to_string());
        let waited_for = names.clone().zip(&told).filter(|(_, it)| it.is_waited_for);
        self.recorder.saw(Event::Looked {
            asked: names.collect(),
            told: waited_for.map(|(key, _)| key).collect(),
            sent,
            got: self.recorder.clock.now(),
        });
        Ok(told)
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
        self.store.permit(request).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.store.freed().await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
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

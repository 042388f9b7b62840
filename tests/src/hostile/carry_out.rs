//! Carries the operations out, and says what they were answered.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Attempt, Error, Fence, Key, Leases, Store,
    jobs::Tick,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        KnownGrant, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Turn,
    },
};

use super::{
    KEY, LEASE, OTHER, OWNER, TTL, judged,
    operations::{Ask, OfFence, Operation, Release, Renew, Told},
    ticks::TICK,
};

impl Operation {
    pub(super) async fn carried_out(self, store: &Arc<dyn Store>) -> Told {
        let told = self.try_it(store).await;
        told.unwrap_or_else(|error| judged(&error))
    }

    async fn try_it(self, store: &Arc<dyn Store>) -> Result<Told, Error> {
        let leases = Leases::new(store.clone());
        let key = Key::new(KEY)?;
        let [lease, other] = [LEASE, OTHER].map(|text| LeaseId::parse(text).unwrap());
        let none = Key::new("none")?;
        match self {
            Self::Handle { waits: false } => Ok(match leases.try_acquire(&key, TTL).await? {
                Attempt::Acquired(lease) => {
                    drop(lease.detach());
                    Told::Granted
                }
                Attempt::Held(held) => Told::Held(held.holders().len()),
            }),
            Self::Handle { waits: true } => {
                match leases.acquire(&key, TTL).wait_for(Duration::ZERO).await {
                    Ok(lease) => {
                        drop(lease.detach());
                        Ok(Told::Granted)
                    }
                    Err(Error::WaitTimedOut { held, .. }) => Ok(Told::Held(held.holders().len())),
                    Err(error) => Err(error),
                }
            }
            Self::Ask {
                mode,
                reentrant,
                way,
            } => {
                let request = AcquireRequest::exclusive(key, LeaseId::random(), OWNER.into(), TTL);
                let mut request = match mode {
                    "shared" => request.shared(),
                    "permits" => request.permits(1, 4).unwrap(),
                    _ => request,
                };
                if reentrant {
                    request = request.reentrant();
                }
                asked(store, request, way).await
            }
            Self::AskForTick(way) => {
                let request = AcquireRequest::exclusive(key, LeaseId::random(), OWNER.into(), TTL);
                asked(store, request.tick(Tick::counter(TICK)), way).await
            }
            Self::Renew(way) => {
                let grant = KnownGrant {
                    fence: Fence::new(7),
                    acquired_at: "2026-01-01T12:00:00Z".parse().unwrap(),
                };
                let asked = [(key, lease), (none, other)]
                    .map(|(key, lease)| RenewRequest::new(key, lease, 2 * TTL));
                let mut answers = match way {
                    Renew::One => store.renew(&asked[..1]).await?,
                    Renew::Two => store.renew(&asked).await?,
                    Renew::Known => store.renew(&asked.map(|it| it.known(grant))).await?,
                };
                Ok(match answers.remove(0)? {
                    RenewAnswer::Renewed(_) => Told::Renewed,
                    RenewAnswer::Expired => Told::Expired,
                    RenewAnswer::TakenOver => Told::TakenOver,
                })
            }
            Self::Upgrade(of) => converted(store, ConvertRequest::upgrade(key, lease), of).await,
            Self::Downgrade(of) => {
                converted(store, ConvertRequest::downgrade(key, lease), of).await
            }
            Self::Release(way) => {
                let asked = [(key, lease), (none, other)]
                    .map(|(key, lease)| ReleaseRequest::new(key, lease));
                let release = asked[0].clone();
                let answer = match way {
                    Release::Plain => store.release(&release).await?,
                    Release::Alone => store.release(&release.likely_sole()).await?,
                    Release::Holding => {
                        let release = release.min_hold(2 * TTL, LeaseId::random());
                        store.release(&release).await?
                    }
                    Release::Done => {
                        let release = release.done(Tick::counter(TICK), TTL).likely_sole();
                        store.release(&release).await?
                    }
                    Release::Batch => {
                        released(store, asked.map(ReleaseRequest::likely_sole)).await?
                    }
                    Release::Together => {
                        let plain = |it: ReleaseRequest| it.likely_sole().undoable();
                        released(store, asked.map(plain)).await?
                    }
                };
                Ok(match answer {
                    ReleaseAnswer::Released => Told::Released,
                    ReleaseAnswer::NotHeld => Told::NotHeld,
                })
            }
            Self::Inspect => {
                let state = store.inspect(&key).await?.expect("a document");
                Ok(Told::Shown(state.holders.len(), state.fence.get()))
            }
            Self::Leave => {
                let left = store.leave(&key, LeaseId::random()).await;
                left.map(|()| Told::Left)
            }
            Self::Evict => {
                let eviction = store.evict(&key).await?.expect("a document");
                Ok(Told::Evicted(eviction.evicted.len()))
            }
            Self::RemoveExpired => store.remove_expired(&key).await.map(Told::Removed),
        }
    }
}

async fn converted(
    store: &Arc<dyn Store>,
    request: ConvertRequest,
    of: OfFence,
) -> Result<Told, Error> {
    let request = match of {
        OfFence::None => request,
        OfFence::Own => of_its_fence(store, request).await,
        OfFence::Other => request.of_fence(Fence::new(99)),
    };
    Ok(match store.convert(&request).await? {
        ConvertAnswer::Converted(_) => Told::Converted,
        ConvertAnswer::Held(held) => Told::Held(held.holders().len()),
        ConvertAnswer::OtherFence(_) => Told::OtherFence,
        ConvertAnswer::Expired => Told::Expired,
        ConvertAnswer::TakenOver => Told::TakenOver,
    })
}

/// The request for the lease with the fence that it has, if that can be read.
async fn of_its_fence(store: &Arc<dyn Store>, request: ConvertRequest) -> ConvertRequest {
    let Ok(Some(state)) = store.inspect(&request.key).await else {
        return request;
    };
    let lease = state.holders.iter().find(|it| it.lease == request.lease);
    match lease {
        Some(lease) => request.of_fence(lease.fence),
        None => request,
    }
}

/// The answer to this request.
async fn asked(store: &Arc<dyn Store>, request: AcquireRequest, way: Ask) -> Result<Told, Error> {
    let answer = match way {
        Ask::Again => store.acquire(&request).await?,
        Ask::Fresh => store.acquire(&request.fresh()).await?,
        Ask::InTurn => {
            let (waiter, counts_for) = (LeaseId::random(), Duration::from_secs(30));
            let turn = Turn::in_turn(waiter, counts_for);
            store.acquire(&request.turn(turn)).await?
        }
        Ask::Looks => store.acquire(&request.likely_held()).await?,
        Ask::Batch => {
            let none = Key::new("none")?;
            let (lease, owner) = (LeaseId::random(), "somebody".into());
            let companion = AcquireRequest::exclusive(none, lease, owner, TTL);
            let requests = [request, companion].map(Arc::new);
            match batch(store, requests.map(BatchRequest::Acquire)).await? {
                BatchAnswer::Acquire(answer) => answer,
                answer => panic!("{answer:?}"),
            }
        }
    };
    Ok(match answer {
        AcquireAnswer::Granted(_) => Told::Granted,
        AcquireAnswer::Held(held) => Told::Held(held.holders().len()),
        AcquireAnswer::Done(_) => Told::Done,
    })
}

async fn released(
    store: &Arc<dyn Store>,
    requests: [ReleaseRequest; 2],
) -> Result<ReleaseAnswer, Error> {
    match batch(store, requests.map(BatchRequest::Release)).await? {
        BatchAnswer::Release(answer) => Ok(answer),
        answer => panic!("{answer:?}"),
    }
}

/// The answer to the first of these requests.
async fn batch(store: &Arc<dyn Store>, requests: [BatchRequest; 2]) -> Result<BatchAnswer, Error> {
    store.batch(&requests).await?.remove(0)
}

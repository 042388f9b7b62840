//! The operations on one key, the answers that they give, and the answers that the rules ask for.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Attempt, Error, Fence, Key, Leases, Store,
    jobs::Tick,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        KnownGrant, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Turn, Usage,
        WaiterId,
    },
};

use super::{Has, KEY, LAST_FENCE, LEASE, Last, Mine, OTHER, OWNER, TTL, judged, ticks::TICK};

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// An acquire of a handle: `try_acquire`, or `acquire` that does not wait.
    Handle {
        waits: bool,
    },
    /// A request with this mode.
    Ask {
        mode: &'static str,
        reentrant: bool,
        instead: bool,
        way: Ask,
    },
    /// A request for a tick.
    AskForTick(Ask),
    Renew(Renew),
    Upgrade,
    Downgrade,
    Release(Release),
    Inspect,
    Leave,
    Evict,
    RemoveExpired,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Again,
    /// The process waits in turn, and takes a place.
    InTurn,
    Fresh,
    /// The document is read first.
    Looks,
    Batch,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Renew {
    One,
    Two,
    Known,
    /// The holder does not use the key.
    Idle,
    InUse,
    /// As `Idle`, with what the holder knows of its grant.
    IdleKnown,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Release {
    Plain,
    Alone,
    /// With a minimum hold.
    Holding,
    /// With a tick that was done.
    Done,
    Batch,
    /// Several releases that a failover may undo, in one statement.
    Together,
}

const fn ask(mode: &'static str, reentrant: bool, instead: bool, way: Ask) -> Operation {
    Operation::Ask {
        mode,
        reentrant,
        instead,
        way,
    }
}

pub(super) const OPERATIONS: [Operation; 39] = [
    Operation::Handle { waits: false },
    Operation::Handle { waits: true },
    ask("exclusive", false, false, Ask::Again),
    ask("exclusive", false, false, Ask::Fresh),
    ask("exclusive", false, false, Ask::InTurn),
    ask("exclusive", false, false, Ask::Looks),
    ask("exclusive", false, false, Ask::Batch),
    ask("shared", false, false, Ask::Again),
    ask("shared", false, false, Ask::Looks),
    ask("permits", false, false, Ask::Again),
    ask("exclusive", true, false, Ask::Again),
    ask("shared", true, false, Ask::Again),
    ask("permits", true, false, Ask::Again),
    ask("exclusive", false, true, Ask::Fresh),
    ask("exclusive", false, true, Ask::Batch),
    ask("shared", false, true, Ask::Again),
    Operation::AskForTick(Ask::Again),
    Operation::AskForTick(Ask::Fresh),
    Operation::AskForTick(Ask::InTurn),
    Operation::AskForTick(Ask::Looks),
    Operation::AskForTick(Ask::Batch),
    Operation::Renew(Renew::One),
    Operation::Renew(Renew::Two),
    Operation::Renew(Renew::Known),
    Operation::Renew(Renew::Idle),
    Operation::Renew(Renew::InUse),
    Operation::Renew(Renew::IdleKnown),
    Operation::Upgrade,
    Operation::Downgrade,
    Operation::Release(Release::Plain),
    Operation::Release(Release::Alone),
    Operation::Release(Release::Holding),
    Operation::Release(Release::Done),
    Operation::Release(Release::Batch),
    Operation::Release(Release::Together),
    Operation::Inspect,
    Operation::Leave,
    Operation::Evict,
    Operation::RemoveExpired,
];

/// The answer of an operation, without what differs from run to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    Granted,
    /// Held by this many.
    Held(usize),
    Renewed,
    Converted,
    Expired,
    TakenOver,
    Released,
    NotHeld,
    /// This many holders, and this fence.
    Shown(usize, i64),
    Evicted(usize),
    Removed(bool),
    /// The waiter is not in the queue.
    Left,
    Done,
    OtherTickKind,
    NoLock,
    OtherVersion,
    Failed(String),
}

/// How an operation changes the document.
pub(super) enum Changed {
    To {
        mine: bool,
        other: bool,
        /// How many holders there are beside these.
        more: usize,
        /// The fence before the operation.
        fence: i64,
        raised: bool,
    },
    Away,
}

impl Operation {
    /// The answer to an operation on a lock by the rules, and the change of the document if there
    /// is one.
    pub(super) fn expected(self, has: &Has) -> (Told, Option<Changed>) {
        let live = has.mine == Mine::Live;
        let lost = match has.mine {
            Mine::Absent => Told::TakenOver,
            Mine::Live | Mine::Over => Told::Expired,
        };
        let to = |mine, more, raised| {
            Some(Changed::To {
                mine,
                other: has.other,
                more,
                fence: has.fence,
                raised,
            })
        };
        let is_last = has.fence >= LAST_FENCE;
        match self {
            Self::Handle { .. } => ask("exclusive", false, false, Ask::Fresh).expected(has),
            Self::AskForTick(way) => match has.last {
                Last::Number(done) if done >= TICK => (Told::Done, None),
                Last::OtherKind => (Told::OtherTickKind, None),
                Last::Unreadable => (Told::NoLock, None),
                Last::Nothing | Last::Number(_) => {
                    ask("exclusive", false, false, way).expected(has)
                }
            },
            Self::Ask { .. } if is_last => (Told::NoLock, None),
            Self::Ask {
                mode,
                reentrant,
                instead,
                way,
            } => {
                let stays = live && !instead;
                // The document always names the owner of the other lease.
                let own = reentrant && (stays && has.owned || has.other);
                let mine_is_in_the_way = stays && !(reentrant && has.owned);
                let other_is_in_the_way = has.other && !reentrant;
                let taken = mine_is_in_the_way || other_is_in_the_way;
                let refused = taken && (mode == "exclusive" || mode != has.mode)
                    || instead && has.mine == Mine::Absent;
                if refused {
                    let place = matches!(way, Ask::InTurn).then(|| to(live, 0, false));
                    (Told::Held(has.live()), place.flatten())
                } else {
                    (Told::Granted, to(stays, 1, !own))
                }
            }
            Self::Renew(_) if live => (Told::Renewed, to(true, 0, false)),
            Self::Upgrade if live => match has.mode {
                "exclusive" => (Told::Converted, to(true, 0, false)),
                _ if is_last => (Told::NoLock, None),
                "shared" if !has.other => (Told::Converted, to(true, 0, true)),
                _ => (Told::Held(has.other.into()), None),
            },
            Self::Downgrade if live => match has.mode {
                "permits" => (Told::Held(has.other.into()), None),
                _ => (Told::Converted, to(true, 0, false)),
            },
            Self::Renew(_) | Self::Upgrade | Self::Downgrade => (lost, None),
            Self::Release(_) if has.mine == Mine::Absent => (Told::NotHeld, None),
            // No tick can be done under a lease that is over.
            Self::Release(Release::Done) if !live => (Told::NotHeld, None),
            // A later tick is done already.
            Self::Release(Release::Done) if matches!(has.last, Last::Number(done) if done > TICK) => {
                (Told::NotHeld, None)
            }
            Self::Release(way) => {
                let holds = matches!(way, Release::Holding) && live && has.timed;
                (Told::Released, to(false, holds.into(), false))
            }
            Self::Inspect => (Told::Shown(has.live(), has.fence), None),
            Self::Leave => (Told::Left, None),
            Self::Evict if is_last => (Told::NoLock, None),
            Self::Evict => {
                let ended = Changed::To {
                    mine: false,
                    other: false,
                    more: 0,
                    fence: has.fence,
                    raised: true,
                };
                (Told::Evicted(has.live()), Some(ended))
            }
            Self::RemoveExpired if has.live() == 0 && !has.kept => {
                (Told::Removed(true), Some(Changed::Away))
            }
            Self::RemoveExpired => (Told::Removed(false), None),
        }
    }

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
                    lease.detach();
                    Told::Granted
                }
                Attempt::Held(held) => Told::Held(held.holders().len()),
            }),
            Self::Handle { waits: true } => {
                match leases.acquire(&key, TTL).wait_for(Duration::ZERO).await {
                    Ok(lease) => {
                        lease.detach();
                        Ok(Told::Granted)
                    }
                    Err(Error::WaitTimedOut { held, .. }) => Ok(Told::Held(held.holders().len())),
                    Err(error) => Err(error),
                }
            }
            Self::Ask {
                mode,
                reentrant,
                instead,
                way,
            } => {
                let request = AcquireRequest::exclusive(key, LeaseId::random(), OWNER.into(), TTL);
                let mut request = match mode {
                    "shared" => request.shared(),
                    "permits" => request.permits(1, 4).unwrap(),
                    _ => request,
                };
                request.reentrant = reentrant;
                request.in_place_of = instead.then_some(lease);
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
                let usage = match way {
                    Renew::One | Renew::Two | Renew::Known => Usage::Unmarked,
                    Renew::Idle | Renew::IdleKnown => Usage::Idle,
                    Renew::InUse => Usage::InUse,
                };
                let asked = [(key.clone(), lease), (none, other)]
                    .map(|(key, lease)| RenewRequest::new(key, lease, 2 * TTL).usage(usage));
                let mut answers = match way {
                    Renew::One | Renew::Idle | Renew::InUse => store.renew(&asked[..1]).await?,
                    Renew::Two => store.renew(&asked).await?,
                    Renew::Known | Renew::IdleKnown => {
                        store.renew(&asked.map(|it| it.known(grant))).await?
                    }
                };
                Ok(match answers.remove(0)? {
                    RenewAnswer::Renewed(_) => has_usage(store, &key, lease, usage).await?,
                    RenewAnswer::Expired => Told::Expired,
                    RenewAnswer::TakenOver => Told::TakenOver,
                })
            }
            Self::Upgrade => converted(store, ConvertRequest::upgrade(key, lease)).await,
            Self::Downgrade => converted(store, ConvertRequest::downgrade(key, lease)).await,
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
                let left = store.leave(&key, WaiterId::random()).await;
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

/// The answer to a renewal that was carried out, if the document shows the usage that it told.
async fn has_usage(
    store: &Arc<dyn Store>,
    key: &Key,
    lease: LeaseId,
    usage: Usage,
) -> Result<Told, Error> {
    let state = store.inspect(key).await?.expect("a document");
    let mine = state.holders.iter().find(|holder| holder.lease == lease);
    let since = mine.and_then(|holder| holder.idle_since);
    Ok(match usage {
        Usage::Idle if since.is_none() => Told::Failed("it is not idle".into()),
        Usage::InUse if since.is_some() => Told::Failed("it is idle".into()),
        _ => Told::Renewed,
    })
}

async fn converted(store: &Arc<dyn Store>, request: ConvertRequest) -> Result<Told, Error> {
    Ok(match store.convert(&request).await? {
        ConvertAnswer::Converted(_) => Told::Converted,
        ConvertAnswer::Held(held) => Told::Held(held.holders().len()),
        ConvertAnswer::Expired => Told::Expired,
        ConvertAnswer::TakenOver => Told::TakenOver,
    })
}

/// The answer to this request.
async fn asked(store: &Arc<dyn Store>, request: AcquireRequest, way: Ask) -> Result<Told, Error> {
    let answer = match way {
        Ask::Again => store.acquire(&request).await?,
        Ask::Fresh => store.acquire(&request.fresh()).await?,
        Ask::InTurn => {
            let (waiter, stays) = (WaiterId::random(), Duration::from_secs(30));
            let turn = Turn::in_turn(waiter, stays);
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

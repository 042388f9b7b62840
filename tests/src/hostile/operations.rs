//! The operations on one key, and the answers that the rules ask for.

use super::{Has, LAST_FENCE, Last, Mine, ticks::TICK};

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
        way: Ask,
    },
    /// A request for a tick.
    AskForTick(Ask),
    Renew(Renew),
    Upgrade(OfFence),
    Downgrade(OfFence),
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
}

/// The fence that a conversion names.
#[derive(Clone, Copy, Debug)]
pub(super) enum OfFence {
    None,
    /// That of the lease, as an inspection shows it.
    Own,
    Other,
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

const fn ask(mode: &'static str, reentrant: bool, way: Ask) -> Operation {
    Operation::Ask {
        mode,
        reentrant,
        way,
    }
}

pub(super) const OPERATIONS: [Operation; 37] = [
    Operation::Handle { waits: false },
    Operation::Handle { waits: true },
    ask("exclusive", false, Ask::Again),
    ask("exclusive", false, Ask::Fresh),
    ask("exclusive", false, Ask::InTurn),
    ask("exclusive", false, Ask::Looks),
    ask("exclusive", false, Ask::Batch),
    ask("shared", false, Ask::Again),
    ask("shared", false, Ask::Looks),
    ask("permits", false, Ask::Again),
    ask("exclusive", true, Ask::Again),
    ask("shared", true, Ask::Again),
    ask("permits", true, Ask::Again),
    Operation::AskForTick(Ask::Again),
    Operation::AskForTick(Ask::Fresh),
    Operation::AskForTick(Ask::InTurn),
    Operation::AskForTick(Ask::Looks),
    Operation::AskForTick(Ask::Batch),
    Operation::Renew(Renew::One),
    Operation::Renew(Renew::Two),
    Operation::Renew(Renew::Known),
    Operation::Upgrade(OfFence::None),
    Operation::Upgrade(OfFence::Own),
    Operation::Upgrade(OfFence::Other),
    Operation::Downgrade(OfFence::None),
    Operation::Downgrade(OfFence::Own),
    Operation::Downgrade(OfFence::Other),
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
    OtherFence,
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
            // A handle asks for 1,024 fences at once.
            Self::Handle { .. } if has.fence > LAST_FENCE - 1_024 => (Told::NoLock, None),
            Self::Handle { .. } => ask("exclusive", false, Ask::Fresh).expected(has),
            Self::AskForTick(way) => match has.last {
                Last::Number(done) if done >= TICK => (Told::Done, None),
                Last::OtherKind => (Told::OtherTickKind, None),
                Last::Unreadable => (Told::NoLock, None),
                Last::Nothing | Last::Number(_) => ask("exclusive", false, way).expected(has),
            },
            Self::Ask { .. } if is_last => (Told::NoLock, None),
            Self::Ask {
                mode,
                reentrant,
                way,
            } => {
                // The document always names the owner of the other lease.
                let own = reentrant && (live && has.owned || has.other);
                let mine_is_in_the_way = live && !(reentrant && has.owned);
                let other_is_in_the_way = has.other && !reentrant;
                let taken = mine_is_in_the_way || other_is_in_the_way;
                let refused = taken && (mode == "exclusive" || mode != has.mode);
                if refused {
                    let place = matches!(way, Ask::InTurn).then(|| to(live, 0, false));
                    (Told::Held(has.live()), place.flatten())
                } else {
                    (Told::Granted, to(live, 1, !own))
                }
            }
            Self::Renew(_) if live => (Told::Renewed, to(true, 0, false)),
            Self::Upgrade(of) if live => match has.mode {
                "exclusive" => (Told::Converted, to(true, 0, false)),
                _ if matches!(of, OfFence::Other) => (Told::OtherFence, None),
                _ if is_last => (Told::NoLock, None),
                "shared" if !has.other => (Told::Converted, to(true, 0, true)),
                _ => (Told::Held(has.other.into()), None),
            },
            Self::Downgrade(of) if live => match has.mode {
                "shared" => (Told::Converted, to(true, 0, false)),
                _ if matches!(of, OfFence::Other) => (Told::OtherFence, None),
                "permits" => (Told::Held(has.other.into()), None),
                _ => (Told::Converted, to(true, 0, false)),
            },
            Self::Renew(_) | Self::Upgrade(_) | Self::Downgrade(_) => (lost, None),
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
}

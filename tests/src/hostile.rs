//! Documents that are damaged, of another version or of another application, and every operation on each of them.
//!
//! All operations have to judge a document alike: either it is a lock for all of them, or for none. No operation
//! changes a document that is no lock. Every operation treats a lock as the rules say, on every store.

mod carry_out;
pub mod limiters;
mod operations;
mod shapes;
mod ticks;
pub mod twin_places;

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::TryStreamExt;
use leasehold::{
    Error, Filter, Key, LockState, Store,
    limits::MAX_WINDOW,
    store::{LeaseId, PermitAnswer, PermitId, PermitRequest, Quota},
};

use self::operations::{Changed, OPERATIONS, Told};
pub use self::shapes::{
    at, flat, queue_shapes, several, shapes, sound_shapes, untyped_shapes, with_times,
};
pub use self::ticks::tick_shapes;
use super::patient;

/// The key of the document.
pub const KEY: &str = "key";
/// The lease of all operations. Many of the documents name it.
pub const LEASE: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";
/// The owner of both leases, and of the requests.
pub const OWNER: &str = "they";
const TTL: Duration = Duration::from_secs(600);
/// The greatest fence.
const LAST_FENCE: i64 = (1 << 53) - 1;

/// How a document has to be judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is a lock of this version.
    Lock(Has),
    /// It is a lock of another version.
    OtherVersion,
    /// It is no lock.
    NoLock,
}

/// Who holds the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Has {
    /// What the document says of [`LEASE`].
    pub mine: Mine,
    /// Whether another lease of the same owner holds it.
    pub other: bool,
    /// The mode of the holders: `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// Whether the owner of [`LEASE`] is valid.
    pub owned: bool,
    /// Whether the time of its grant is valid.
    pub timed: bool,
    /// The fence of the document, without its fraction.
    pub fence: i64,
    /// Whether the document has to stay even if nobody holds the key.
    pub kept: bool,
    /// The newest tick that is done.
    pub last: Last,
}

/// What the document says of the newest tick that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Nothing,
    /// The tick is a counter with this number.
    Number(i64),
    /// The tick is of another kind.
    OtherKind,
    /// The field is not valid.
    Unreadable,
}

/// What the document says of [`LEASE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mine {
    Live,
    /// The lease has expired.
    Over,
    /// The lease is not among the holders.
    Absent,
}

impl Has {
    /// [`LEASE`] is the only holder.
    pub const SOLE: Self = Self {
        mine: Mine::Live,
        other: false,
        mode: "exclusive",
        owned: true,
        timed: true,
        fence: 7,
        kept: false,
        last: Last::Nothing,
    };
    /// Both leases are holders, and shared.
    pub const BOTH: Self = Self {
        other: true,
        mode: "shared",
        ..Self::SOLE
    };
    pub const NOBODY: Self = Self {
        mine: Mine::Absent,
        ..Self::SOLE
    };
    /// [`LEASE`] has expired, and nobody holds the key.
    pub const OVER: Self = Self {
        mine: Mine::Over,
        ..Self::SOLE
    };

    fn live(&self) -> usize {
        usize::from(self.mine == Mine::Live) + usize::from(self.other)
    }

    /// How many of the live holders have [`OWNER`] as their owner.
    fn owned(&self) -> usize {
        usize::from(self.mine == Mine::Live && self.owned) + usize::from(self.other)
    }
}

/// Writes each document that the store takes, and checks how every operation judges it. Returns how many documents the
/// store takes.
///
/// `put` writes the document of [`KEY`], if the store takes it, and `get` reads it.
pub async fn are_judged_alike<D: Clone + Debug + PartialEq>(
    store: &Arc<dyn Store>,
    shapes: &[(Verdict, D)],
    put: impl AsyncFn(&D) -> bool,
    get: impl AsyncFn() -> Option<D>,
) -> usize {
    let mut taken = 0;
    let mut problems = Vec::new();
    for (verdict, document) in shapes {
        if !put(document).await {
            continue;
        }
        taken += 1;
        let mut found = get().await;
        // Most operations on most documents change nothing.
        let mut is_unchanged = true;
        for operation in OPERATIONS {
            if !is_unchanged {
                put(document).await;
                found = get().await;
            }
            let told = operation.carried_out(store).await;
            let (answer, changed) = match verdict {
                Verdict::Lock(has) => operation.expected(has),
                Verdict::OtherVersion => (Told::OtherVersion, None),
                Verdict::NoLock => (Told::NoLock, None),
            };
            let mut check = |is_right: bool, told: &dyn Debug| {
                if !is_right {
                    problems.push(format!("{operation:?} of {document:?}: {told:?}"));
                }
            };
            check(told == answer, &told);
            is_unchanged = changed.is_none() && get().await == found;
            match changed {
                None => check(is_unchanged, &"it has changed the document"),
                Some(changed) => {
                    let left = store.inspect(&Key::new(KEY).unwrap()).await;
                    check(
                        left.as_ref().is_ok_and(|left| changed.is(left.as_ref())),
                        &left,
                    );
                }
            }
        }
        put(document).await;
        found = get().await;
        has_no_part_in_limiters(store).await;
        assert_eq!(get().await, found, "{document:?}");
        let leases = patient(store.clone());
        let released = leases.release_owner(OWNER).await;
        let is_released = match verdict {
            Verdict::Lock(has) => {
                let left = store.inspect(&Key::new(KEY).unwrap()).await;
                let left = left.ok().flatten().map(|left| left.holders.len());
                left == Some(has.live() - has.owned())
                    && released
                        .as_ref()
                        .is_ok_and(|it| *it as usize == has.owned())
            }
            Verdict::OtherVersion | Verdict::NoLock => {
                let listed = leases.list(Filter::new().prefix(KEY)).try_collect();
                let listed: Vec<_> = listed.await.unwrap();
                if !listed.is_empty() {
                    problems.push(format!("list of {document:?}: {listed:?}"));
                }
                get().await == found && released.as_ref().is_ok_and(|it| *it == 0)
            }
        };
        if !is_released {
            problems.push(format!("release_owner of {document:?}: {released:?}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let operations = OPERATIONS.len();
    println!(
        "{taken} of {} documents, {operations} operations",
        shapes.len()
    );
    taken
}

/// A purge must not remove a document that is no lock, or one that has to stay.
pub async fn are_not_purged<D: Debug + PartialEq>(
    store: &Arc<dyn Store>,
    shapes: &[(Verdict, D)],
    put: impl AsyncFn(&D) -> bool,
    get: impl AsyncFn() -> Option<D>,
) {
    for (verdict, document) in shapes {
        let is_removable = matches!(verdict, Verdict::Lock(has) if !has.kept);
        if !is_removable && put(document).await {
            let found = get().await;
            let purged = patient(store.clone()).purge(Duration::ZERO).await;
            assert_eq!(purged.unwrap(), 0, "{document:?}");
            assert_eq!(get().await, found, "{document:?}");
        }
    }
}

impl Changed {
    /// Whether this is what was left of the lock.
    fn is(&self, left: Option<&LockState>) -> bool {
        let Self::To {
            mine,
            other,
            more,
            fence,
            raised,
        } = *self
        else {
            return left.is_none();
        };
        let Some(left) = left else {
            return false;
        };
        let [lease, theirs] = [LEASE, OTHER].map(|text| LeaseId::parse(text).unwrap());
        let has = |lease| left.holders.iter().any(|holder| holder.lease == lease);
        let named = usize::from(has(lease)) + usize::from(has(theirs));
        let holders = (has(lease), has(theirs), left.holders.len() - named);
        let found = left.fence.get();
        holders == (mine, other, more)
            && if raised {
                found > fence
            } else {
                found == fence
            }
    }
}

/// A limiter with the same key has a document of its own.
async fn has_no_part_in_limiters(store: &Arc<dyn Store>) {
    // A purge during the test must not find this window over, and windows end at multiples of their length.
    let quota = Quota::fixed(u32::MAX, MAX_WINDOW).unwrap();
    let request = PermitRequest::new(Key::new(KEY).unwrap(), PermitId::random(), quota, 1);
    let answer = store.permit(&request).await.unwrap();
    let granted = matches!(answer, PermitAnswer::Granted { permits: 1, .. });
    assert!(granted, "{answer:?}");
}

/// How the error of an operation judges the document.
fn judged(error: &Error) -> Told {
    match error {
        Error::NotALock { .. } => Told::NoLock,
        Error::UnsupportedSchema { .. } => Told::OtherVersion,
        Error::OtherTickKind { .. } => Told::OtherTickKind,
        error => Told::Failed(format!("{error:?}")),
    }
}

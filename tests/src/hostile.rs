//! Documents that are damaged, of another version or of somebody else, and every operation on each of them.
//!
//! All operations have to judge a document alike: it is a lock for all of them or for none. What is none is not changed
//! by any. What is a lock is granted, renewed, released and so on as the rules say, on every store.

pub mod limiters;
mod operations;
mod shapes;
mod ticks;

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::TryStreamExt;
use leasehold::{
    Error, Filter, Key, Leases, LockState, Store,
    store::{LeaseId, PermitAnswer, PermitId, PermitRequest, Quota},
};

use self::operations::{Changed, OPERATIONS, Told};
pub use self::shapes::{
    at, flat, queue_shapes, several, shapes, sound_shapes, untyped_shapes, with_times,
};
pub use self::ticks::tick_shapes;

/// The key of the document.
pub const KEY: &str = "key";
/// The lease that all operations are about, and that many of the documents name.
pub const LEASE: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";
/// The owner of both, and of whoever asks.
const OWNER: &str = "they";
const TTL: Duration = Duration::from_secs(600);
/// The last fence that there is.
const LAST_FENCE: i64 = (1 << 53) - 1;

/// How a document is to be judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It is a lock of this version.
    Lock(Has),
    /// It is a lock of another version.
    OtherVersion,
    /// It is none.
    NoLock,
}

/// Who has the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Has {
    /// Whether [`LEASE`] does.
    pub mine: Mine,
    /// Whether another lease of the same owner does.
    pub other: bool,
    /// How they have it: `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// Whether the owner of [`LEASE`] makes sense.
    pub owned: bool,
    /// Whether the time of its grant does.
    pub timed: bool,
    /// The fence of the document, without its fraction.
    pub fence: i64,
    /// Whether the document has to stay if nobody has the key.
    pub kept: bool,
    /// What is done.
    pub last: Last,
}

/// What the document says of the newest tick that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Nothing,
    /// The counter of this number.
    Number(i64),
    /// Of another kind.
    OtherKind,
    /// It makes no sense.
    Unreadable,
}

/// What the document says of [`LEASE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mine {
    Live,
    /// It has expired.
    Over,
    /// It is not among the holders.
    Absent,
}

impl Has {
    /// [`LEASE`] by itself.
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
    /// Both, shared.
    pub const BOTH: Self = Self {
        other: true,
        mode: "shared",
        ..Self::SOLE
    };
    pub const NOBODY: Self = Self {
        mine: Mine::Absent,
        ..Self::SOLE
    };
    /// Nobody any more.
    pub const OVER: Self = Self {
        mine: Mine::Over,
        ..Self::SOLE
    };

    fn live(&self) -> usize {
        usize::from(self.mine == Mine::Live) + usize::from(self.other)
    }

    /// How many of them name [`OWNER`].
    fn owned(&self) -> usize {
        usize::from(self.mine == Mine::Live && self.owned) + usize::from(self.other)
    }
}

/// Puts each of the documents that the store takes, and has every operation judge it. Returns how many it takes.
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
        for operation in OPERATIONS {
            put(document).await;
            let found = get().await;
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
            match changed {
                None => check(get().await == found, &"it has changed the document"),
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
        let found = get().await;
        has_no_part_in_limiters(store).await;
        assert_eq!(get().await, found, "{document:?}");
        let leases = Leases::new(store.clone());
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

/// Of these documents none goes with a purge that is no lock, or that has to stay.
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
            let purged = Leases::new(store.clone()).purge(Duration::ZERO).await;
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

/// A limiter of the same key is another document.
async fn has_no_part_in_limiters(store: &Arc<dyn Store>) {
    let quota = Quota::fixed(u32::MAX, TTL).unwrap();
    let request = PermitRequest::new(Key::new(KEY).unwrap(), PermitId::random(), quota, 1);
    let answer = store.permit(&request).await.unwrap();
    let granted = matches!(answer, PermitAnswer::Granted { permits: 1, .. });
    assert!(granted, "{answer:?}");
}

/// What the error of an operation tells of the document.
fn judged(error: &Error) -> Told {
    match error {
        Error::NotALock { .. } => Told::NoLock,
        Error::UnsupportedSchema { .. } => Told::OtherVersion,
        Error::OtherTickKind { .. } => Told::OtherTickKind,
        error => Told::Failed(format!("{error:?}")),
    }
}

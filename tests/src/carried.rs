//! Fields that other processes and jobs have written into the document of a lock survive every operation on the lock.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Key, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, ConvertAnswer, ConvertRequest,
        KnownGrant, LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest, Turn,
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{PATIENCE, hostile::at};

const TTL: Duration = Duration::from_secs(600);
/// A ttl that a test waits for.
const SHORT: Duration = Duration::from_secs(1);
/// For how many seconds the place of the other process counts.
const STAYS: i64 = 50;

/// The state of a key before an operation.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// The key was released.
    Released,
    /// One lease on it has expired a moment ago.
    Expired,
    /// Several leases on it have expired a moment ago.
    SharedExpired,
    /// One exclusive lease holds it.
    Sole,
    /// Two shared leases hold it.
    Both,
    /// One shared lease holds it.
    Alone,
}

/// What is done with the key, by its first lease or beside it.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire,
    Fresh,
    Shared,
    Permits,
    Reentrant,
    Repeat,
    Batch,
    Renew,
    RenewTogether,
    Upgrade,
    Downgrade,
    Release,
    ReleaseAlone,
    Hold,
    ReleaseBatch,
    ReleaseTogether,
    Evict,
}

fn operations() -> Vec<(Before, Operation)> {
    use Before::{Alone, Both, Expired, Released, SharedExpired, Sole};
    use Operation::*;
    let free = [Released, Expired, SharedExpired];
    let kinds = [Acquire, Fresh, Shared, Permits, Reentrant, Batch, Evict];
    let mut all: Vec<_> = free
        .into_iter()
        .flat_map(|before| kinds.map(|kind| (before, kind)))
        .collect();
    let of_holders = [
        (Sole, vec![Reentrant, Repeat, Downgrade, RenewTogether]),
        (Both, vec![Shared]),
        (Alone, vec![Upgrade]),
    ];
    for (before, kinds) in of_holders {
        let ends = [
            Renew,
            Release,
            ReleaseAlone,
            Hold,
            ReleaseBatch,
            ReleaseTogether,
            Evict,
        ];
        all.extend(kinds.into_iter().chain(ends).map(|kind| (before, kind)));
    }
    all
}

/// Sets the fields `done` and `waiters` before each operation, and compares them after it. The place of another process
/// counts meanwhile, but no operation waits for it.
///
/// `set` sets fields of the document of a key, [with their times](super::hostile::with_times), and `get` reads the
/// document.
pub async fn is_carried_along(
    store: &dyn Store,
    set: impl AsyncFn(&Key, &Value),
    get: impl AsyncFn(&Key) -> Value,
) {
    let operations: Vec<_> = others()
        .into_iter()
        .flat_map(|fields| operations().into_iter().map(move |it| (it, fields.clone())))
        .collect();
    let in_time = Duration::from_secs(STAYS.unsigned_abs() / 2);
    let mut keys = Vec::new();
    for (number, ((before, _), _)) in operations.iter().enumerate() {
        let key = Key::new(format!("key-{number}")).unwrap();
        let companion = Key::new(format!("companion-{number}")).unwrap();
        let first = is_so(store, &key, *before).await;
        let second = is_so(store, &companion, Before::Sole).await;
        keys.push([(key, first), (companion, second)]);
    }
    // By the store's clock every lease that has to expire has expired by now.
    for ([(key, _), _], ((before, _), _)) in keys.iter().zip(&operations) {
        let expires = matches!(before, Before::Expired | Before::SharedExpired);
        let start = Instant::now();
        while expires && !store.inspect(key).await.unwrap().unwrap().is_free() {
            assert!(start.elapsed() < PATIENCE, "{key} does not expire");
            sleep(Duration::from_millis(50)).await;
        }
    }
    for ([mine, companion], ((before, operation), fields)) in keys.iter().zip(&operations) {
        let (key, _) = mine;
        let start = Instant::now();
        set(key, fields).await;
        let was = get(key).await;
        let done = is_done(store, mine, companion, *operation).await;
        let is = get(key).await;
        let place = format!("{operation:?} of {before:?}: {done}");
        if !matches!(operation, Operation::Repeat) {
            assert_ne!(was, is, "nothing was changed by {place}");
        }
        assert_eq!(is["done"], was["done"], "{place}");
        assert!(!is["done"].is_null(), "{place}");
        // If the machine was slow, the place may not count any more.
        if start.elapsed() < in_time {
            assert_eq!(is["waiters"], was["waiters"], "{place}");
        }
    }
}

/// The two fields: a waiting process, and a tick that is done. The first time `done` makes sense, and the second time
/// it does not.
pub fn others() -> [Value; 2] {
    let done = json!({
        "kind": "counter", "tick": 7, "at": at(-5), "by": "me",
        "lease": "55555555-5555-4555-8555-555555555555", "until": at(600),
    });
    [done, json!({ "tick": 7, "by": "me" })].map(|done| {
        json!({
            "waiters": [{
                "waiter": "44444444-4444-4444-8444-444444444444", "owner": "they", "mode": "exclusive",
                "permits": 1, "since": at(0), "until": at(STAYS),
            }],
            "done": done,
        })
    })
}

fn ask(key: &Key, ttl: Duration) -> AcquireRequest {
    let ask = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), ttl);
    ask.turn(Turn::Barging)
}

async fn granted(store: &dyn Store, request: AcquireRequest) -> LeaseId {
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    request.lease
}

/// Brings a key into a state, and returns its first lease.
async fn is_so(store: &dyn Store, key: &Key, before: Before) -> LeaseId {
    match before {
        Before::Sole => granted(store, ask(key, TTL)).await,
        Before::Expired => granted(store, ask(key, SHORT)).await,
        Before::Released => {
            let lease = granted(store, ask(key, TTL)).await;
            store
                .release(&ReleaseRequest::new(key.clone(), lease))
                .await
                .unwrap();
            lease
        }
        Before::Alone => granted(store, ask(key, TTL).shared()).await,
        Before::Both => {
            let lease = granted(store, ask(key, TTL).shared()).await;
            granted(store, ask(key, TTL).shared()).await;
            lease
        }
        Before::SharedExpired => granted(store, ask(key, SHORT).shared()).await,
    }
}

/// Carries the operation out on the key by its first lease, together with the companion if it is a batch. Panics if it
/// is refused.
async fn is_done(
    store: &dyn Store,
    (key, lease): &(Key, LeaseId),
    companion: &(Key, LeaseId),
    operation: Operation,
) -> String {
    let ask = || ask(key, TTL);
    let both = [&(key.clone(), *lease), companion];
    let asked = match operation {
        Operation::Acquire => Some(ask()),
        Operation::Fresh => Some(ask().fresh()),
        Operation::Shared => Some(ask().shared()),
        Operation::Permits => Some(ask().permits(1, 4).unwrap()),
        Operation::Reentrant => Some(ask().reentrant()),
        Operation::Repeat => {
            let mut again = ask();
            again.lease = *lease;
            Some(again)
        }
        _ => None,
    };
    if let Some(request) = asked {
        return granted(store, request).await.to_string();
    }
    let release = |(key, lease): &(Key, LeaseId)| ReleaseRequest::new(key.clone(), *lease);
    let renew = |(key, lease): &(Key, LeaseId)| RenewRequest::new(key.clone(), *lease, 2 * TTL);
    match operation {
        Operation::Batch => {
            let other = self::ask(&companion.0, TTL);
            let asked = [ask(), other.reentrant()].map(Arc::new);
            let answers = store
                .batch(&asked.map(BatchRequest::Acquire))
                .await
                .unwrap();
            for answer in &answers {
                let granted = matches!(answer, Ok(BatchAnswer::Acquire(AcquireAnswer::Granted(_))));
                assert!(granted, "{answers:?}");
            }
            format!("{answers:?}")
        }
        Operation::Renew | Operation::RenewTogether => {
            let known = KnownGrant {
                fence: store.inspect(key).await.unwrap().unwrap().fence,
                acquired_at: "2026-01-01T12:00:00Z".parse().unwrap(),
            };
            let asked = match operation {
                Operation::Renew => vec![renew(both[0])],
                _ => both.map(|it| renew(it).known(known)).into(),
            };
            let answers = store.renew(&asked).await.unwrap();
            let renewed = |it: &Result<_, _>| matches!(it, Ok(RenewAnswer::Renewed(_)));
            assert!(answers.iter().all(renewed), "{answers:?}");
            format!("{answers:?}")
        }
        Operation::Upgrade | Operation::Downgrade => {
            let request = match operation {
                Operation::Upgrade => ConvertRequest::upgrade(key.clone(), *lease),
                _ => ConvertRequest::downgrade(key.clone(), *lease),
            };
            let answer = store.convert(&request).await.unwrap();
            assert!(matches!(answer, ConvertAnswer::Converted(_)), "{answer:?}");
            format!("{answer:?}")
        }
        Operation::Evict => format!("{:?}", store.evict(key).await.unwrap().unwrap()),
        Operation::ReleaseBatch | Operation::ReleaseTogether => {
            let asked = both.map(|it| match operation {
                Operation::ReleaseBatch => BatchRequest::Release(release(it)),
                _ => BatchRequest::Release(release(it).likely_sole().undoable()),
            });
            let answers = store.batch(&asked).await.unwrap();
            let released = BatchAnswer::Release(ReleaseAnswer::Released);
            let are_released = answers
                .iter()
                .all(|it| it.as_ref().is_ok_and(|it| *it == released));
            assert!(are_released, "{answers:?}");
            format!("{answers:?}")
        }
        _ => {
            let release = release(both[0]);
            let release = match operation {
                Operation::ReleaseAlone => release.likely_sole(),
                Operation::Hold => release.min_hold(TTL, LeaseId::random()),
                _ => release,
            };
            let answer = store.release(&release).await.unwrap();
            assert_eq!(answer, ReleaseAnswer::Released);
            format!("{answer:?}")
        }
    }
}

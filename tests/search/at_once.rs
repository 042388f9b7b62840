//! Many clients change one document at the same time, and all succeed.
//!
//! With an `_update` each client would be overtaken by the others again and again, until the cluster gives up on most
//! of the updates. Retries would make it worse, and it would not end when the clients are gone.

use std::{convert::Infallible, fmt::Debug};

use futures::future::{join_all, try_join_all};
use leasehold::{
    Error, Key,
    store::{
        AcquireAnswer, PermitAnswer, PermitId, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest,
        RenewAnswer, RenewRequest,
    },
};

use super::{BOTH, Fixture, LONG, ask, granted};

/// Several times as many as the retries that the cluster would make for one of them.
const CROWD: usize = 128;

/// Checks that all answers are as expected.
fn all<T: Debug>(what: &str, answers: Vec<Result<T, Error>>, expected: impl Fn(&T) -> bool) {
    let others = answers
        .iter()
        .filter(|answer| !answer.as_ref().is_ok_and(&expected));
    let others: Vec<_> = others.collect();
    let (number, first) = (others.len(), others.first());
    assert!(first.is_none(), "{what}: {number} of {CROWD}, as {first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_share_a_key_come_through_at_once() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let requests: Vec<_> = (0..CROWD).map(|_| ask().shared()).collect();

        let acquired = join_all(requests.iter().map(|it| store.acquire(it))).await;
        let granted = |it: &AcquireAnswer| matches!(it, AcquireAnswer::Granted(_));
        all("acquires", acquired, granted);

        let renewed = join_all(requests.iter().map(async |it| {
            let renewal = RenewRequest::new(it.key.clone(), it.lease, LONG);
            store.renew(&[renewal]).await?.remove(0)
        }));
        let kept = |it: &RenewAnswer| matches!(it, RenewAnswer::Renewed(_));
        all("renewals", renewed.await, kept);

        let released = join_all(requests.iter().map(async |it| {
            let release = ReleaseRequest::new(it.key.clone(), it.lease);
            store.release(&release).await
        }));
        let gone = |it: &ReleaseAnswer| *it == ReleaseAnswer::Released;
        all("releases", released.await, gone);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_whom_a_limiter_lets_through_come_through_at_once() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let quota = Quota::fixed(CROWD as u32, LONG).unwrap();
        let key = Key::new("key").unwrap();
        let permits = join_all((0..CROWD).map(async |_| {
            let request = PermitRequest::new(key.clone(), PermitId::random(), quota, 1);
            store.permit(&request).await
        }));
        let granted = |it: &PermitAnswer| matches!(it, PermitAnswer::Granted { .. });
        all("permits", permits.await, granted);
    }
}

/// An operator's eviction is not overtaken by the clients that come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_comes_through_a_crowd() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let first = ask().shared();
        granted(&store, &first).await;
        let crowd = try_join_all((0..CROWD).map(async |_| -> Result<Infallible, Error> {
            loop {
                let request = ask().shared();
                store.acquire(&request).await?;
                let release = ReleaseRequest::new(request.key, request.lease);
                store.release(&release).await?;
            }
        }));
        let evictions = join_all((0..8).map(async |_| store.evict(&first.key).await));
        let evictions = tokio::select! {
            evictions = evictions => evictions,
            ended = crowd => panic!("{engine:?}: {ended:?}"),
        };
        for evicted in evictions {
            assert!(matches!(evicted, Ok(Some(_))), "{engine:?}: {evicted:?}");
        }
    }
}

//! A purge beside clients that use the keys whose documents it deletes.

use std::time::Duration;

use leasehold::{
    Key, Store,
    store::{AcquireRequest, BatchRequest, LeaseId, ReleaseRequest},
};

use super::{BOTH, Fixture, LONG, leases};

/// More than a cluster looks at together.
const KEYS: usize = 3_000;

/// The keys are free while the purge searches, and held before it has come to their documents.
#[tokio::test]
async fn a_purge_deletes_no_lock_that_is_acquired_after_its_search() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let keys: Vec<_> = (0..KEYS)
            .map(|number| Key::new(format!("key {number:05}")).unwrap())
            .collect();
        for keys in keys.chunks(500) {
            let lease = LeaseId::random();
            let acquire = |key: &Key| {
                let request = AcquireRequest::exclusive(key.clone(), lease, "me".into(), LONG);
                BatchRequest::Acquire(request.into())
            };
            let release = |key: &Key| ReleaseRequest::new(key.clone(), lease);
            let acquires: Vec<_> = keys.iter().map(acquire).collect();
            let releases: Vec<_> = keys
                .iter()
                .map(release)
                .map(BatchRequest::Release)
                .collect();
            for requests in [acquires, releases] {
                let answers = store.batch(&requests).await.unwrap();
                assert!(answers.iter().all(Result::is_ok));
            }
        }
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let purge = tokio::spawn({
            let store = fixture.store();
            async move { store.purge(Duration::ZERO).await }
        });
        let handle = leases(fixture.store());
        let mut held = Vec::new();
        for key in keys.iter().rev() {
            if purge.is_finished() {
                break;
            }
            held.push(handle.acquire(key.clone(), LONG).await.unwrap());
        }
        let removed = purge.await.unwrap().unwrap();
        assert!(removed > 0, "the purge has removed nothing");
        for lease in held {
            lease.renew().await.unwrap();
            lease.release().await.unwrap();
        }
    }
}

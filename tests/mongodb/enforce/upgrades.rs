//! A lease id that was lost and granted anew is not enforced, although its lease was once to be upgraded.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use leasehold::{
    Error, Key, Lease, MongoStore, Store, Upgrade,
    store::{AcquireRequest, Cause, ConvertAnswer, ConvertRequest},
};
use leasehold_tests::layer::{Layer, Layered};

use super::{App, LONG, leases};

/// The lease is evicted. Then a request of its acquire, which comes late, is granted the same lease id anew.
async fn is_granted_anew(app: &App, lease: &Lease) {
    let key = Key::new("key").unwrap();
    app.store.evict(&key).await.unwrap();
    let late = AcquireRequest::exclusive(key, lease.id(), "a late request".into(), LONG).shared();
    app.store.acquire(&late).await.unwrap();
}

async fn is_not_enforced(app: &App, lease: &Lease) {
    let mut session = app.transaction().await;
    let enforced = lease.enforce(&mut session).await;
    assert!(matches!(enforced, Err(Error::Lost { .. })), "{enforced:?}");
}

#[tokio::test]
async fn after_a_refused_upgrade_a_lease_that_was_granted_anew_is_not_enforced() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).shared().await.unwrap();
    let beside = app.leases.acquire("key", LONG).shared().await.unwrap();
    let refused = lease.upgrade().await.unwrap();
    assert!(matches!(refused, Upgrade::Held(_)), "{refused:?}");
    is_granted_anew(&app, &lease).await;
    is_not_enforced(&app, &lease).await;
    drop(beside);
}

/// Loses the answer to the first conversion.
#[derive(Debug)]
struct LosesAnswer {
    store: MongoStore,
    conversions: Arc<AtomicUsize>,
}

#[async_trait]
impl Layer for LosesAnswer {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let answer = self.store.convert(request).await?;
        if self.conversions.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(Error::Interrupted {
                store: "MongoDB",
                source: Cause::text("the answer is lost"),
            });
        }
        Ok(answer)
    }
}

/// The answer to the second request says that the lease is exclusive, so the first one cannot change it any more.
#[tokio::test]
async fn after_a_repeated_upgrade_a_lease_that_was_granted_anew_is_not_enforced() {
    let app = App::new().await;
    let conversions = Arc::new(AtomicUsize::new(0));
    let client = leases(Layered(LosesAnswer {
        store: app.store.clone(),
        conversions: conversions.clone(),
    }));
    let lease = client.acquire("key", LONG).shared().await.unwrap();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert_eq!(conversions.load(Ordering::SeqCst), 2);
    // The upgraded lease itself is enforced, with its new fence.
    let mut session = app.transaction().await;
    lease.enforce(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    is_granted_anew(&app, &lease).await;
    is_not_enforced(&app, &lease).await;
}

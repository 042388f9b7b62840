//! A lease ends when the clock of its shard says so, whatever the clock of the router says.

use std::time::Duration;

use leasehold::{Attempt, Leases};
use mongodb::{
    Collection,
    bson::{Document, doc},
    options::ReturnDocument,
};

use super::{routers, stores};

/// Shorter than the lead of the second router's clock, and longer than a request to it takes.
const TTL: Duration = Duration::from_secs(50);

/// Takes a lock that has only an owner and an expiry, if the expiry is past by `$$NOW`.
async fn take(locks: &Collection<Document>, owner: &str) -> bool {
    let ttl = TTL.as_millis() as i64;
    let is_free = doc! { "$lte": ["$expires_at", "$$NOW"] };
    let taken = doc! { "_id": "$_id", "owner": owner, "expires_at": { "$add": ["$$NOW", ttl] } };
    let update = vec![doc! { "$replaceWith": { "$cond": [is_free, taken, "$$ROOT"] } }];
    let lock = locks
        .find_one_and_update(doc! { "_id": "lock" }, update)
        .upsert(true)
        .return_document(ReturnDocument::After)
        .await
        .unwrap()
        .unwrap();
    lock.get_str("owner") == Ok(owner)
}

/// The reason why the store does not use `$$NOW` here: a statement with it grants one lock to two
/// clients.
#[tokio::test]
async fn a_router_that_is_ahead_takes_a_live_lock_for_expired() {
    let (fixture, routers) = routers().await;
    let [first, second] = routers.map(|router| fixture.collection_with(router));
    assert!(take(&first, "first").await);
    assert!(take(&second, "second").await);
}

#[tokio::test]
async fn a_live_lease_is_left_alone_through_every_router() {
    let [first, second] = stores().await.map(Leases::new);
    for (holder, other) in [(&first, &second), (&second, &first)] {
        let lease = holder.acquire("key", TTL).await.unwrap();
        let attempt = other.try_acquire("key", TTL).await.unwrap();
        // On a machine that is too slow the lease may have expired.
        if matches!(attempt, Attempt::Acquired(_)) {
            assert!(lease.remaining().is_zero(), "it was granted twice");
        }
        lease.release().await.unwrap();
    }
}

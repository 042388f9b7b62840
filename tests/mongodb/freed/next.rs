//! The processes that the store names as the next ones for a freed key.

use leasehold::{
    Key, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchRequest, ConvertRequest, FreedKeys, LeaseId,
        ReleaseRequest, Turn,
    },
};
use mongodb::bson::doc;

use super::{Fixture, LONG, PATIENCE, told};

fn key() -> Key {
    Key::new("key").unwrap()
}

fn ask() -> AcquireRequest {
    AcquireRequest::exclusive(key(), LeaseId::random(), "me".into(), LONG)
}

fn wait(waiter: LeaseId) -> AcquireRequest {
    ask().turn(Turn::in_turn(waiter, LONG))
}

async fn granted(store: &MongoStore, request: AcquireRequest) -> AcquireRequest {
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    request
}

async fn refused(store: &MongoStore, request: AcquireRequest) {
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
}

async fn release(store: &MongoStore, held: &AcquireRequest) {
    let request = ReleaseRequest::new(key(), held.lease);
    store.release(&request).await.unwrap();
}

/// The processes of the next key of the stream.
async fn next(freed: &mut FreedKeys) -> Option<Vec<LeaseId>> {
    let told = async {
        loop {
            let mut keys = super::item(freed).await;
            if let Some(freed) = keys.pop() {
                assert_eq!((freed.key.as_str(), keys.len()), ("key", 0));
                return freed.next;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap()
}

async fn queue() -> (MongoStore, FreedKeys, Fixture) {
    let (_, freed, fixture) = told().await;
    (fixture.store().await, freed, fixture)
}

#[tokio::test]
async fn a_release_tells_who_comes_next() {
    let (store, mut freed, _fixture) = queue().await;
    let [writer, one, two, other, last] = [(); 5].map(|()| LeaseId::random());
    let first = granted(&store, ask()).await;
    refused(&store, wait(writer)).await;
    for reader in [one, two] {
        refused(&store, wait(reader).shared()).await;
    }
    refused(&store, wait(other)).await;
    refused(&store, wait(last).permits(1, 2).unwrap()).await;
    release(&store, &first).await;
    assert_eq!(next(&mut freed).await, Some(vec![writer]));
    let written = granted(&store, wait(writer)).await;
    release(&store, &written).await;
    assert_eq!(next(&mut freed).await, Some(vec![one, two]));

    let reads = granted(&store, wait(one).shared()).await;
    let reads_too = granted(&store, wait(two).shared()).await;
    release(&store, &reads).await;
    assert_eq!(next(&mut freed).await, Some(vec![other]));
    // The event of a change may have only the fields that have changed.
    release(&store, &reads_too).await;
    let told = next(&mut freed).await;
    assert!(told.is_none_or(|next| next == [other]));
    store.leave(&key(), other).await.unwrap();
    let alone = granted(&store, wait(last).permits(1, 2).unwrap()).await;
    release(&store, &alone).await;
    assert_eq!(next(&mut freed).await, None, "nobody waits");
}

#[tokio::test]
async fn an_eviction_a_downgrade_and_a_release_of_many_tell_who_comes_next() {
    let (store, mut freed, _fixture) = queue().await;
    let waiter = LeaseId::random();
    granted(&store, ask()).await;
    refused(&store, wait(waiter).shared()).await;
    store.evict(&key()).await.unwrap();
    assert_eq!(next(&mut freed).await, Some(vec![waiter]));

    let held = granted(&store, ask().turn(Turn::Barging)).await;
    let downgrade = ConvertRequest::downgrade(key(), held.lease);
    store.convert(&downgrade).await.unwrap();
    assert_eq!(next(&mut freed).await, Some(vec![waiter]));
    store.evict(&key()).await.unwrap();
    next(&mut freed).await;

    let held = granted(&store, ask().turn(Turn::Barging)).await;
    let release = ReleaseRequest::new(key(), held.lease)
        .likely_sole()
        .undoable();
    let others = (0..9).map(|number| {
        let other = Key::new(format!("other {number}")).unwrap();
        ReleaseRequest::new(other, LeaseId::random())
            .likely_sole()
            .undoable()
    });
    let all = [release].into_iter().chain(others);
    let batch: Vec<_> = all.map(BatchRequest::Release).collect();
    for answer in store.batch(&batch).await.unwrap() {
        answer.unwrap();
    }
    assert_eq!(next(&mut freed).await, Some(vec![waiter]));
}

/// A place that does not count any more belongs to no process that can ask, so the store does not
/// name it.
#[tokio::test]
async fn a_place_that_does_not_count_comes_not_next() {
    let (store, mut freed, fixture) = queue().await;
    let [gone, waiter] = [(); 2].map(|()| LeaseId::random());
    let held = granted(&store, ask()).await;
    for waits in [gone, waiter] {
        refused(&store, wait(waits)).await;
    }
    let over = doc! { "$set": { "waiters.0.until": mongodb::bson::DateTime::from_millis(0) } };
    let locks = fixture.collection().await;
    locks.update_one(doc! { "_id": "key" }, over).await.unwrap();
    release(&store, &held).await;
    assert_eq!(next(&mut freed).await, Some(vec![waiter]));
}

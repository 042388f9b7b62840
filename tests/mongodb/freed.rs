//! The stream of freed keys, on the complete server.

mod next;
mod several;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use leasehold::{
    Attempt, Error, Key, Leases, MemoryStore, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, FreedKey, FreedKeys, LeaseId, ReleaseRequest, RenewRequest,
    },
};
use leasehold_tests::proxy::Proxy;
use mongodb::{
    bson::{Bson, DateTime, Document, doc},
    change_stream::event::OperationType,
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Engine, Fixture, LONG, PATIENCE, SHORT,
    faults::{FAIL_POINT, failing},
    short_lived,
};

/// Leases on a fresh collection, and the stream of its freed keys.
async fn told() -> (Leases, FreedKeys, Fixture) {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    let freed = store.freed().await.unwrap().unwrap();
    (Leases::new(store), freed, fixture)
}

/// The next item of the stream.
async fn item(freed: &mut FreedKeys) -> Vec<FreedKey> {
    freed.next().await.unwrap().unwrap()
}

/// The next keys of the stream.
async fn next(freed: &mut FreedKeys) -> Vec<String> {
    let keys = async {
        loop {
            let keys = item(freed).await;
            if !keys.is_empty() {
                return keys.iter().map(|freed| freed.key.to_string()).collect();
            }
        }
    };
    timeout(PATIENCE, keys).await.unwrap()
}

async fn free(leases: &Leases, key: &str) {
    let lease = leases.acquire(key, LONG).await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_release_and_an_eviction_are_told() {
    let (leases, mut freed, _) = told().await;
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
    assert_eq!(next(&mut freed).await, ["key"]);

    let lease = leases.acquire("key", LONG).await.unwrap();
    leases.evict("key").await.unwrap();
    assert_eq!(next(&mut freed).await, ["key"]);
    // The lease is no holder any more, so its release changes nothing.
    let lost = lease.release().await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost:?}");

    for key in ["$weird.key", "a \u{0}\n/é", &"x".repeat(512)] {
        free(&leases, key).await;
        while next(&mut freed).await != [key] {}
    }
}

#[tokio::test]
async fn nothing_else_is_told() {
    let (leases, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    // This tries a lock of its own.
    store.prepare().await.unwrap();
    let tried = next(&mut freed).await;
    assert!(tried[0].starts_with("leasehold prepare"), "{tried:?}");

    let one = leases.acquire("one", LONG).await.unwrap();
    let two = leases.acquire("two", LONG).await.unwrap();
    one.renew().await.unwrap();
    let requests: Vec<_> = [&one, &two]
        .map(|lease| RenewRequest::new(Key::new(lease.key()).unwrap(), lease.id(), LONG))
        .into();
    store.renew(&requests).await.unwrap();
    let attempt = leases.try_acquire("one", LONG).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));

    for key in ["taken over", "removed"] {
        drop(short_lived(&leases, key).await.detach());
    }
    sleep(SHORT * 2).await;
    let next_holder = leases.acquire("taken over", LONG).await.unwrap();
    assert!(leases.remove_expired("removed").await.unwrap());

    // These are a note of somebody on a lock, and documents that are no locks.
    let collection = fixture.collection().await;
    let long_ago = DateTime::from_millis(0);
    for id in [Bson::from("none"), Bson::from(5)] {
        let document = doc! { "_id": id, "expires_at": long_ago };
        collection.insert_one(document).await.unwrap();
    }
    let noted = doc! { "remark": "nightly", "expires": long_ago };
    for (id, change) in [
        (Bson::from("one"), noted),
        (Bson::from("none"), doc! { "expires_at": 5 }),
        (Bson::from("none"), doc! { "expires_at": Bson::Null }),
        (Bson::from(5), doc! { "expires_at": DateTime::now() }),
    ] {
        let changed = collection
            .update_one(doc! { "_id": id }, doc! { "$set": change })
            .await
            .unwrap();
        assert_eq!(changed.modified_count, 1);
    }

    let odd = doc! { "holders": "none", "expires_at": "never" };
    let replaced = collection.replace_one(doc! { "_id": "none" }, odd).await;
    assert_eq!(replaced.unwrap().modified_count, 1);

    let elsewhere = Leases::new(Fixture::new(Engine::MongoDbReplicaSet).store().await);
    free(&elsewhere, "elsewhere").await;

    free(&leases, "sentinel").await;
    assert_eq!(next(&mut freed).await, ["sentinel"]);
    for held in [one, two, next_holder] {
        assert!(held.is_live(), "the control: nobody freed it");
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_freed_before_is_not_told() {
    let (leases, _, fixture) = told().await;
    free(&leases, "before").await;
    let mut freed = fixture.store().await.freed().await.unwrap().unwrap();
    free(&leases, "after").await;
    assert_eq!(next(&mut freed).await, ["after"]);
}

/// The key was free already, but a waiter may not have seen that.
#[tokio::test]
async fn a_release_past_the_expiry_is_told() {
    let (leases, mut freed, fixture) = told().await;
    let store = fixture.store().await;
    let (key, lease) = (Key::new("key").unwrap(), LeaseId::random());
    let request = AcquireRequest::exclusive(key.clone(), lease, "me".into(), SHORT);
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)));
    sleep(SHORT * 2).await;
    assert!(leases.inspect("key").await.unwrap().unwrap().is_free());
    let request = ReleaseRequest::new(key, lease);
    store.release(&request).await.unwrap();
    assert_eq!(next(&mut freed).await, ["key"]);
}

/// With a minimum hold the key stays taken, but for a shorter time than the waiters know.
#[tokio::test]
async fn the_early_end_of_a_lease_with_a_minimum_hold_is_told() {
    let (leases, mut freed, _fixture) = told().await;
    let lease = leases
        .acquire("key", LONG)
        .min_hold(LONG / 2)
        .await
        .unwrap();
    lease.release().await.unwrap();
    assert!(!leases.inspect("key").await.unwrap().unwrap().is_free());
    free(&leases, "sentinel").await;
    assert_eq!(next(&mut freed).await, ["key"]);
    assert_eq!(next(&mut freed).await, ["sentinel"]);
}

/// The server logs a change as a whole document if a list of the changes would be longer.
#[tokio::test]
async fn a_change_that_is_logged_as_a_whole_document_is_told() {
    let (leases, mut freed, fixture) = told().await;
    let collection = fixture.collection().await;
    let mut events = collection.watch().await.unwrap();
    for (key, replaced) in [("replaced", true), ("changed", false)] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
        // The eviction does not change this field. If it is long, the whole document is longer than
        // a list of the changes.
        let done = "long".repeat(if replaced { 1 } else { 200 });
        collection
            .update_one(doc! { "_id": key }, doc! { "$set": { "done": done } })
            .await
            .unwrap();
        leases.evict(key).await.unwrap();
        let mut last = None;
        for _ in 0..3 {
            last = Some(events.next().await.unwrap().unwrap().operation_type);
        }
        let expected = if replaced {
            OperationType::Replace
        } else {
            OperationType::Update
        };
        assert_eq!(last, Some(expected));
        assert_eq!(next(&mut freed).await, [key]);
    }
}

#[tokio::test]
async fn a_quiet_stream_answers_with_one_request_each() {
    let (collection, commands) = Fixture::new(Engine::MongoDbReplicaSet).watched().await;
    let store = MongoStore::new(&collection);
    let mut freed = store.freed().await.unwrap().unwrap();
    let sent = commands.take();
    assert_eq!(sent.len(), 1, "{sent:?}");
    let concern = sent[0].get_document("readConcern").unwrap();
    assert_eq!(concern.get_str("level"), Ok("majority"));
    // The first item is what came when the stream was opened: nothing.
    assert!(freed.next().await.unwrap().unwrap().is_empty());
    assert!(commands.names().is_empty());
    for _ in 0..3 {
        assert!(freed.next().await.unwrap().unwrap().is_empty());
        let sent = commands.take();
        assert_eq!(sent.len(), 1, "{sent:?}");
        // The command tells the server how long it may wait for an event.
        let waits = sent[0].get("maxTimeMS").and_then(Bson::as_i64);
        let waits = waits.or_else(|| sent[0].get_i32("maxTimeMS").ok().map(i64::from));
        assert_eq!(waits, Some(1_000), "{sent:?}");
        assert!(sent[0].contains_key("getMore"), "{sent:?}");
    }
    // Many events come by one request, once a majority has them.
    let leases = Leases::new(store.durable_releases(true));
    for number in 0..10 {
        free(&leases, &number.to_string()).await;
    }
    commands.take();
    for number in 0..10 {
        assert_eq!(next(&mut freed).await, [number.to_string()]);
    }
    assert_eq!(commands.names(), ["getMore"]);
    drop(freed);
    // The client closes the stream, so the server does not keep it until it times out.
    let start = Instant::now();
    while commands.names() != ["killCursors"] {
        assert!(start.elapsed() < PATIENCE, "the stream stays");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn where_it_cannot_be_told_there_is_no_stream() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    assert!(store.freed().await.unwrap().is_none(), "no collection yet");
    store.prepare().await.unwrap();
    assert!(store.freed().await.unwrap().is_none());
    assert!(MemoryStore::new().freed().await.unwrap().is_none());

    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let any: Arc<dyn Store> = Arc::new(fixture.store().await);
    assert!(Arc::new(any).freed().await.unwrap().is_some());
}

#[tokio::test]
async fn other_errors_are_sorted() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let denied = doc! { "failCommands": ["aggregate"], "errorCode": 13 };
    let (_client, store) = failing(&fixture, 1, denied).await;
    let error = store.freed().await.err().unwrap();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");

    // The part of the oplog from which the stream would go on is gone. The driver does not recover
    // from this error.
    let history_lost = doc! { "failCommands": ["getMore"], "errorCode": 286 };
    let (_client, store) = failing(&fixture, 1, history_lost).await;
    let mut freed = store.freed().await.unwrap().unwrap();
    assert!(freed.next().await.unwrap().unwrap().is_empty());
    let error = freed.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    assert!(freed.next().await.is_none());
}

#[tokio::test]
async fn a_new_primary_goes_on_where_the_old_one_stopped() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let stepped_down = doc! {
        "failCommands": ["getMore"],
        "errorCode": 91,
        "errorLabels": ["ResumableChangeStreamError"],
    };
    let (_client, store) = failing(&fixture, 1, stepped_down).await;
    let mut freed = store.freed().await.unwrap().unwrap();
    free(&Leases::new(fixture.store().await), "key").await;
    assert_eq!(next(&mut freed).await, ["key"]);
}

#[tokio::test]
async fn a_connection_that_breaks_loses_nothing() {
    for lose in [Proxy::lose_the_answer_to, Proxy::lose_the_request] {
        let fixture = Fixture::new(Engine::MongoDbReplicaSet);
        let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
        let options = fixture.options_at(proxy.address, "").await;
        let store = MongoStore::new::<Document>(&fixture.collection_with(options));
        let mut freed = store.freed().await.unwrap().unwrap();
        free(&Leases::new(fixture.store().await), "key").await;
        lose(&proxy, "getMore");
        assert_eq!(next(&mut freed).await, ["key"]);
        assert_eq!(proxy.cuts(), 1);
    }
}

#[tokio::test]
async fn the_stream_ends_with_the_collection() {
    let (leases, mut freed, fixture) = told().await;
    free(&leases, "key").await;
    fixture.collection().await.drop().await.unwrap();
    assert_eq!(next(&mut freed).await, ["key"]);
    let rest: Vec<_> = timeout(PATIENCE, freed.take(10).collect()).await.unwrap();
    let nothing = |keys: &Result<Vec<FreedKey>, _>| matches!(keys, Ok(keys) if keys.is_empty());
    assert!(rest.iter().all(nothing), "{rest:?}");
    assert!(rest.len() < 10, "it goes on without a pause");
}

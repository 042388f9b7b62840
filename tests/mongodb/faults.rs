//! Answers that are lost and servers that fail, on the complete server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold::{
    Error, Key, Lease, Leases, MongoStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, RenewRequest},
};
use leasehold_tests::{proxy::Proxy, sentence::sentence};
use mongodb::{
    Client,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use tokio::time::{Instant, sleep, timeout};

use super::{DATABASE, Engine, Fixture, LONG, PATIENCE, patiently};

/// Leases behind a proxy.
async fn proxied() -> (Proxy, Leases, Fixture) {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let options = fixture.options_at(proxy.address, "").await;
    let leases = Leases::new(MongoStore::new(&fixture.collection_with(options)));
    // This opens the connection before anything is cut.
    leases.inspect("key").await.unwrap();
    (proxy, leases, fixture)
}

/// The driver sends a write again when its answer was lost. The server then answers with the
/// document as it stored it, without the fields that the projection adds.
#[tokio::test]
async fn an_acquire_that_the_driver_sends_again_is_one_grant() {
    let (proxy, leases, fixture) = proxied().await;
    proxy.lose_the_answer_to("findAndModify");
    let lease = leases.acquire("key", LONG).await.unwrap();
    assert_eq!(proxy.cuts(), 1);
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].lease, lease.id());
    assert!(lease.is_live() && lease.remaining() < LONG);
    lease.release().await.unwrap();

    // The same with a refusal.
    let other = Leases::new(fixture.store().await);
    let holder = other.acquire("key", LONG).await.unwrap();
    proxy.lose_the_answer_to("findAndModify");
    let held = leases.acquire("key", LONG).wait_for(Duration::ZERO).await;
    assert!(matches!(held, Err(Error::WaitTimedOut { .. })), "{held:?}");
    assert_eq!(proxy.cuts(), 2);
    holder.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_the_driver_sends_again_is_a_renewal() {
    let (proxy, leases, _) = proxied().await;
    let lease = leases.acquire("key", LONG).await.unwrap();
    proxy.lose_the_answer_to("findAndModify");
    lease.renew().await.unwrap();
    assert_eq!(proxy.cuts(), 1);
    // The deadline counts from the renewal, by the server's time and not by a guess of it.
    assert!(lease.remaining() < LONG && lease.remaining() > LONG / 2);
    assert!(lease.is_live());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_the_driver_sends_again_is_a_release() {
    let (proxy, leases, _) = proxied().await;
    let lease = leases.acquire("key", LONG).await.unwrap();
    proxy.lose_the_answer_to("update");
    lease.release().await.unwrap();
    assert_eq!(proxy.cuts(), 1);
}

#[tokio::test]
async fn an_eviction_that_the_driver_sends_again_evicts_once() {
    let (proxy, leases, _) = proxied().await;
    let lease = leases.acquire("key", LONG).await.unwrap();
    proxy.lose_the_answer_to("findAndModify");
    let eviction = leases.evict("key").await.unwrap().unwrap();
    assert_eq!(proxy.cuts(), 1);
    assert_eq!(eviction.evicted.len(), 1);
    assert_eq!(eviction.evicted[0].lease, lease.id());
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.fence, eviction.fence);
}

/// The error of a call that got no answer names the server.
#[tokio::test]
async fn a_server_that_stops_answering_is_named() {
    let (proxy, _, fixture) = proxied().await;
    let options = fixture.options_at(proxy.address, "").await;
    let store = MongoStore::new(&fixture.collection_with(options));
    let leases = Leases::builder(store)
        .call_timeout(Duration::from_secs(1))
        .build();
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
    (0..4).for_each(|_| proxy.swallow_the_answer_to("findAndModify"));
    let error = leases.try_acquire("key", LONG).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    let server = format!("at {}", proxy.address);
    assert!(sentence(&error).contains(&server), "{error}");
}

/// When the driver does not send writes again, the client does, with the same lease id.
#[tokio::test]
async fn without_the_drivers_retries_the_lease_id_does_it() {
    for lost in [Proxy::lose_the_answer_to, Proxy::lose_the_request] {
        let (proxy, _, fixture) = proxied().await;
        let options = fixture.options_at(proxy.address, "&retryWrites=false");
        let options = options.await;
        let leases = Leases::new(MongoStore::new(&fixture.collection_with(options)));
        leases.inspect("key").await.unwrap();
        lost(&proxy, "findAndModify");
        let lease = leases.acquire("key", LONG).await.unwrap();
        assert_eq!(proxy.cuts(), 1);
        let state = leases.inspect("key").await.unwrap().unwrap();
        let holders: Vec<_> = state.holders.iter().map(|it| it.lease).collect();
        assert_eq!(holders, [lease.id()]);
        lost(&proxy, "findAndModify");
        lease.renew().await.unwrap();
        lost(&proxy, "update");
        lease.release().await.unwrap();
        assert_eq!(proxy.cuts(), 3);
    }
}

/// A client whose commands fail this many times, in this way, and its store.
pub(super) async fn failing(fixture: &Fixture, times: i32, how: Document) -> (Client, MongoStore) {
    let (options, name) = named(fixture).await;
    let collection = fixture.collection_with(options);
    fail_point(fixture, &name, times, how).await;
    (collection.client().clone(), MongoStore::new(&collection))
}

/// The options of a client with a name of its own, and the name.
async fn named(fixture: &Fixture) -> (ClientOptions, String) {
    let mut options = fixture.options().await;
    let name = format!("test {}", LeaseId::random());
    options.app_name = Some(name.clone());
    (options, name)
}

/// Makes commands of the client with this name fail this many times, in this way.
async fn fail_point(fixture: &Fixture, name: &str, times: i32, how: Document) {
    let mut data = doc! { "failCommands": ["findAndModify", "update"], "appName": name };
    data.extend(how);
    let fail =
        doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": data };
    let client = fixture.collection().await.client().clone();
    client.database("admin").run_command(fail).await.unwrap();
}

/// The server has only one fail point of this kind, so the tests that use it take turns.
pub(super) static FAIL_POINT: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn request() -> AcquireRequest {
    let key = Key::new("key").unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

#[tokio::test]
async fn a_duplicate_key_is_a_race_and_handled_inside() {
    let _turn = FAIL_POINT.lock().await;
    let duplicate = doc! {
        "errorCode": 11_000,
        "errorExtraInfo": { "keyPattern": { "_id": 1 }, "keyValue": { "_id": "key" } },
    };
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 1, duplicate.clone()).await;
    let answer = store.acquire(&request()).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)));

    // If the error never ends, it is one that a retry may mend.
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 3, duplicate).await;
    let error = store.acquire(&request()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_primary_that_steps_down_is_waited_for() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    // It fails more often than the driver itself tries.
    let (_client, store) = failing(&fixture, 3, doc! { "errorCode": 91 }).await;
    let error = store.acquire(&request()).await.unwrap_err();
    assert!(error.is_retryable() && error.is_ambiguous(), "{error:?}");
    let lease = Leases::new(store).acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
}

/// A server that limits the rate of requests refuses more of them than the driver repeats. A guard that is dropped then
/// is released all the same.
#[tokio::test]
async fn a_server_that_refuses_requests_because_of_its_load_is_waited_for() {
    let _turn = FAIL_POINT.lock().await;
    let refused = doc! {
        "errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"],
    };
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 9, refused.clone()).await;
    let error = store.acquire(&request()).await.unwrap_err();
    assert!(error.is_retryable() && error.is_ambiguous(), "{error:?}");

    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (options, name) = named(&fixture).await;
    let store = MongoStore::new(&fixture.collection_with(options));
    let leases = Leases::new(store);
    let lease = leases.acquire("key", LONG).await.unwrap();
    fail_point(&fixture, &name, 9, refused).await;
    drop(lease);
    let free = async {
        while !leases.inspect("key").await.unwrap().unwrap().is_free() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, free).await.unwrap();
}

/// `killOp` ends one operation, and the client goes on.
#[tokio::test]
async fn an_operation_that_an_operator_ends_is_tried_again() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 1, doc! { "errorCode": 11_601 }).await;
    let lease = Leases::new(store).acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_write_without_a_majority_is_ambiguous_and_leaves_no_lock() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let no_majority = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } };
    let (_client, store) = failing(&fixture, 1, no_majority.clone()).await;
    let error = store.acquire(&request()).await.unwrap_err();
    assert!(error.is_retryable() && error.is_ambiguous(), "{error:?}");
    let state = fixture
        .store()
        .await
        .inspect(&request().key)
        .await
        .unwrap()
        .unwrap();
    assert!(!state.is_free(), "the control: the primary has it");

    // The retry finds the grant of the first request.
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 1, no_majority.clone()).await;
    let lease = Leases::new(store).try_acquire("key", LONG).await.unwrap();
    drop(lease);

    // When the acquire gives up, its grant is released as soon as that is possible.
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (_client, store) = failing(&fixture, 5, no_majority).await;
    let leases = Leases::new(store);
    let error = leases.try_acquire("key", LONG).await.unwrap_err();
    assert!(error.is_ambiguous(), "{error:?}");
    until_free(&fixture).await;
}

/// A thousand tasks acquire a key each, and each command takes the server 700 ms.
#[tokio::test]
async fn a_slow_server_is_not_sent_all_at_once() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (mut options, name) = named(&fixture).await;
    // With so large a pool, the pool is not what limits the commands.
    options.max_pool_size = Some(2_000);
    let under_way = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let counted = under_way.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let (now, most) = &*counted;
        let _ = match event {
            CommandEvent::Started(_) => most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed),
            _ => now.fetch_sub(1, Relaxed),
        };
    }));
    let store = MongoStore::new(&fixture.collection_with(options));
    let slow = doc! { "blockConnection": true, "blockTimeMS": 700 };
    fail_point(&fixture, &name, i32::MAX, slow).await;
    let leases = Leases::builder(store).call_timeout(PATIENCE).build();
    let ask = |number| leases.acquire(format!("key {number}"), LONG).into_future();
    let held = join_all((0..1_000).map(ask)).await;
    let off = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    let admin = fixture.collection().await.client().database("admin");
    admin.run_command(off).await.unwrap();
    let refused: Vec<_> = held.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    // These are the requests with a place, and one more every 200 ms while no place is free.
    let most = under_way.1.load(Relaxed);
    println!("{most} commands at once");
    assert!(most < 100, "{most} commands at once");
    leases.close().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_what_it_does_later_is_released() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (mut options, name) = named(&fixture).await;
    // The number of requests that were sent and not answered yet.
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| match event {
        CommandEvent::Started(_) => drop(counted.fetch_add(1, Relaxed)),
        _ => drop(counted.fetch_sub(1, Relaxed)),
    }));
    let store = MongoStore::new(&fixture.collection_with(options));
    // This opens the connection before it hangs.
    store.inspect(&request().key).await.unwrap();
    let hang = doc! { "blockConnection": true, "blockTimeMS": 2_000 };
    fail_point(&fixture, &name, 1, hang).await;
    let leases = Leases::builder(store)
        .call_timeout(Duration::from_millis(500))
        .build();
    let lease = patiently(|| leases.acquire("key", LONG).into_future()).await;
    if let Err(error) = lease.release().await {
        // It goes on in the background.
        assert!(error.is_retryable(), "{error:?}");
    }
    // The first request is carried out after the release.
    let start = Instant::now();
    while open.load(Relaxed) > 0 {
        assert!(start.elapsed() < PATIENCE, "it hangs for ever");
        sleep(Duration::from_millis(10)).await;
    }
    until_free(&fixture).await;
}

async fn until_free(fixture: &Fixture) {
    let leases = Leases::new(fixture.store().await);
    let start = Instant::now();
    while !leases.inspect("key").await.unwrap().unwrap().is_free() {
        assert!(start.elapsed() < PATIENCE, "the lock stays");
        sleep(Duration::from_millis(50)).await;
    }
}

/// When the server refuses a statement, that is an error for its lease, even if the read that
/// follows shows the lease unchanged.
#[tokio::test]
async fn a_statement_that_fails_is_no_renewal() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let store = MongoStore::new(&collection);
    let leases = Leases::new(store.clone());
    let held = [
        leases.acquire("one", LONG).await.unwrap(),
        leases.acquire("two", LONG).await.unwrap(),
    ];
    let refuse_everything = doc! {
        "collMod": collection.name(),
        "validator": { "_id": "nobody" },
        "validationLevel": "strict",
    };
    let database = collection.client().database(DATABASE);
    database.run_command(refuse_everything).await.unwrap();
    // Within the millisecond of the grant a renewal would change nothing, and not be refused.
    sleep(Duration::from_millis(50)).await;
    let renewal = |lease: &Lease| RenewRequest::new(lease.key().clone(), lease.id(), LONG);
    let answers = store.renew(&held.each_ref().map(renewal)).await.unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(Error::NotPrepared { .. }))),
        "{answers:?}"
    );
}

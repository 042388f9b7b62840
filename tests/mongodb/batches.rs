//! The commands of a batch, and what happens when one of the two fails.

use std::sync::Arc;

use leasehold::{
    Attempt, Error, Key, Leases, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest,
    },
};
use leasehold_tests::engine::Engine;
use mongodb::bson::doc;

use super::{Fixture, LONG, faults::FAIL_POINT};

fn ask(number: usize) -> AcquireRequest {
    let key = Key::new(format!("key {number}")).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

/// The read after the changes fails. The answers must not say that the changes were not made: nobody would release what
/// they granted, and the callers of releases would be told that their leases were lost.
#[tokio::test]
async fn changes_that_were_made_and_not_looked_at_are_unclear() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    for denied in [doc! { "errorCode": 13 }, doc! { "closeConnection": true }] {
        let mut options = fixture.options().await;
        options.app_name = Some(fixture.name.clone());
        options.retry_reads = Some(false);
        let locks = fixture.collection_with(options);
        let store = MongoStore::new(&locks);
        let held = ask(0);
        store.acquire(&held).await.unwrap();
        let mut data = doc! { "failCommands": ["find"], "appName": &fixture.name };
        data.extend(denied);
        let fail =
            doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
        let admin = locks.client().database("admin");
        admin.run_command(fail).await.unwrap();
        let free = ask(1);
        let release = ReleaseRequest::new(held.key.clone(), held.lease).likely_sole();
        let requests = [
            BatchRequest::Acquire(Arc::new(free.clone())),
            BatchRequest::Release(release),
        ];
        let error = store.batch(&requests).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        let state = store.inspect(&free.key).await.unwrap().unwrap();
        assert_eq!(
            state.holders[0].lease, free.lease,
            "the control: it was granted"
        );
        assert!(store.inspect(&held.key).await.unwrap().unwrap().is_free());
        let release = ReleaseRequest::new(free.key.clone(), free.lease);
        store.release(&release).await.unwrap();
    }
}

/// Documents of other applications stay as they are, and the other requests of the batch are carried out.
#[tokio::test]
async fn what_is_no_lock_is_told_and_left_alone() {
    let fixture = Fixture::new(Engine::MongoDb);
    let collection = fixture.collection().await;
    let theirs = [
        doc! { "_id": "key 0", "schema": leasehold::store::SCHEMA, "fence": "theirs" },
        doc! { "_id": "key 1", "name": "somebody" },
        doc! { "_id": "key 2", "schema": "leasehold.lock.2" },
    ];
    collection.insert_many(theirs.clone()).await.unwrap();
    let store = fixture.store().await;
    let (mut requests, mine) = (Vec::new(), ask(3));
    requests.extend((0..3).map(|number| BatchRequest::Acquire(Arc::new(ask(number)))));
    requests.push(BatchRequest::Acquire(Arc::new(mine.clone())));
    let answers = store.batch(&requests).await.unwrap();
    for answer in &answers[..3] {
        let error = answer.as_ref().unwrap_err();
        let foreign = matches!(
            error,
            Error::NotALock { .. } | Error::UnsupportedSchema { .. }
        );
        assert!(foreign, "{error:?}");
    }
    let granted = matches!(
        answers[3],
        Ok(BatchAnswer::Acquire(AcquireAnswer::Granted(_)))
    );
    assert!(granted, "{answers:?}");
    for alone in [false, true] {
        let release = |number| {
            let mut release = ReleaseRequest::new(ask(number).key, LeaseId::random());
            release.likely_sole = alone;
            BatchRequest::Release(release)
        };
        let mut requests: Vec<_> = (0..3).map(release).collect();
        requests.push(release(3));
        let answers = store.batch(&requests).await.unwrap();
        assert!(answers[..3].iter().all(Result::is_err), "{answers:?}");
        let not_held = BatchAnswer::Release(ReleaseAnswer::NotHeld);
        assert_eq!(answers[3].as_ref().unwrap(), &not_held);
    }
    for document in theirs {
        let id = document.get_str("_id").unwrap();
        let found = collection.find_one(doc! { "_id": id }).await.unwrap();
        assert_eq!(found.unwrap(), document);
    }
}

/// The first attempt does not ask for the server's time. Its answer says who holds the key and for how long all the
/// same.
#[tokio::test]
async fn a_refusal_tells_the_servers_time_without_asking_for_it() {
    let fixture = Fixture::new(Engine::MongoDb);
    let [here, there] = [fixture.store().await, fixture.store().await].map(Leases::new);
    let lease = there.acquire("held", LONG).await.unwrap();
    for _ in 0..3 {
        // At the first attempt the client does not know the server's time; from the second on it does.
        let Attempt::Held(held) = here.try_acquire("held", LONG).await.unwrap() else {
            panic!("granted twice");
        };
        assert_eq!(held.holders()[0].lease, lease.id());
        let left = held.expires_in();
        assert!(left <= LONG && left > LONG / 2, "{left:?}");
    }
    lease.release().await.unwrap();
}

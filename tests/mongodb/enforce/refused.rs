//! Transactions in which a lease cannot be enforced.

use leasehold::{Error, Lease, Leases, MemoryStore, MongoStore};
use leasehold_tests::proxy::Proxy;
use mongodb::{
    ClientSession, Collection,
    bson::{Document, doc},
    options::{TransactionOptions, WriteConcern},
};
use tokio::time::timeout;

use super::{
    super::{DATABASE, Engine, Fixture, LONG, PATIENCE, faults::FAIL_POINT},
    App, assert_run_again, leases,
};

/// Checks that `enforce` is refused, for this reason.
async fn refused(lease: &Lease, session: &mut ClientSession, why: &str) {
    let error = lease.enforce(session).await.unwrap_err();
    assert!(matches!(error, Error::NotEnforceable { .. }), "{error:?}");
    assert!(!error.is_retryable() && !error.is_ambiguous());
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn a_session_without_a_transaction_is_refused() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let mut session = app.locks.client().start_session().await.unwrap();
    refused(&lease, &mut session, "no transaction").await;
    let before = app.locks.find_one(doc! {}).await.unwrap().unwrap();
    assert!(!before.contains_key("touched"), "{before}");
    // A transaction that has ended does not count as one.
    for commits in [true, false] {
        session.start_transaction().await.unwrap();
        lease.enforce(&mut session).await.unwrap();
        if commits {
            session.commit_transaction().await.unwrap()
        } else {
            session.abort_transaction().await.unwrap()
        }
        refused(&lease, &mut session, "no transaction").await;
    }
}

#[tokio::test]
async fn a_server_without_transactions_is_named() {
    let fixture = Fixture::new(Engine::MongoDb);
    let collection = fixture.collection().await;
    let lease = Leases::new(MongoStore::new(&collection));
    let lease = lease.acquire("key", LONG).await.unwrap();
    let mut session = collection.client().start_session().await.unwrap();
    // The server refuses the first statement, and not the start.
    let _ = session.start_transaction().await;
    refused(&lease, &mut session, "has no transactions").await;
    let write = collection.insert_one(doc! { "_id": "stray" });
    assert!(write.session(&mut session).await.is_err());
    lease.release().await.unwrap();
}

/// The error does not say that the server has no transactions.
#[tokio::test]
async fn a_session_that_can_have_no_transaction_is_told_why() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let client = app.locks.client();
    let careless = TransactionOptions::builder().write_concern(WriteConcern::nodes(0));
    let careless = client
        .start_session()
        .default_transaction_options(careless.build());
    let snapshot = client.start_session().snapshot(true);
    for (session, why) in [
        (careless.await, "unacknowledged"),
        (snapshot.await, "snapshot"),
    ] {
        let error = lease.enforce(&mut session.unwrap()).await.unwrap_err();
        let Error::Store { source, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(source.to_string().contains(why), "{source}");
        assert!(!error.is_retryable());
    }
    assert!(lease.is_live());
}

/// The fail point answers as a standalone server that has sessions does.
#[tokio::test]
async fn a_server_without_transactions_but_with_sessions_is_named() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let mut options = fixture.options().await;
    options.app_name = Some(fixture.name.clone());
    let locks = fixture.collection_with(options);
    let lease = leases(MongoStore::new(&locks))
        .acquire("key", LONG)
        .await
        .unwrap();
    let refuse = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "times": 1 },
        "data": { "failCommands": ["findAndModify"], "appName": &fixture.name, "errorCode": 20 },
    };
    let client = locks.client();
    client.database("admin").run_command(refuse).await.unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    refused(&lease, &mut session, "has no transactions").await;
}

#[tokio::test]
async fn a_lease_of_another_store_is_refused_and_its_transaction_given_up() {
    let app = App::new().await;
    let lease = Leases::new(MemoryStore::new());
    let lease = lease.acquire("key", LONG).await.unwrap();
    for reads_before in [true, false] {
        let mut session = app.transaction().await;
        if reads_before {
            let read = app.data.find_one(doc! {}).session(&mut session).await;
            assert!(read.unwrap().is_some());
        }
        refused(&lease, &mut session, "not kept by a MongoStore").await;
        app.assert_given_up(session).await;
    }
}

#[tokio::test]
async fn a_transaction_that_began_before_the_grant_is_refused() {
    let app = App::new().await;
    let mut session = app.transaction().await;
    let read = app.data.find_one(doc! {}).session(&mut session).await;
    assert!(read.unwrap().is_some());
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let error = lease.enforce(&mut session).await.unwrap_err();
    assert!(!matches!(error, Error::Lost { .. }), "{error:?}");
    assert!(lease.is_live());
    app.assert_given_up(session).await;

    // A transaction that began when the key had an earlier lock has a conflict.
    lease.release().await.unwrap();
    let mut session = app.transaction().await;
    let read = app.data.find_one(doc! {}).session(&mut session).await;
    assert!(read.unwrap().is_some());
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    assert_run_again(lease.enforce(&mut session).await.unwrap_err());
    app.assert_given_up(session).await;
    assert!(lease.is_live());
}

#[tokio::test]
async fn a_session_of_another_client_is_refused_and_given_up() {
    let app = App::new().await;
    let lease = app.leases.acquire("key", LONG).await.unwrap();
    let stranger = app.fixture.collection().await;
    let mut session = stranger.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let error = lease.enforce(&mut session).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    let database = stranger.client().database(DATABASE);
    let data: Collection<Document> = database.collection(app.data.name());
    let write = data.insert_one(doc! { "_id": "stray" });
    assert!(write.session(&mut session).await.is_err());
    assert!(session.commit_transaction().await.is_err());
    assert_eq!(data.count_documents(doc! {}).await.unwrap(), 1);
}

/// The server has the mark, but its answer is lost. The transaction must not keep others waiting.
#[tokio::test]
async fn an_enforcement_whose_answer_is_lost_is_given_up() {
    let app = App::new().await;
    let server = app.fixture.options().await.hosts[0].to_string();
    let proxy = Proxy::to(server).await;
    let options = app.fixture.options_at(proxy.address, "").await;
    let locks = app.fixture.collection_with(options);
    let lease = leases(MongoStore::new(&locks))
        .acquire("key", LONG)
        .await
        .unwrap();
    let mut session = locks.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    proxy.lose_the_answer_to("findAndModify");
    assert_run_again(lease.enforce(&mut session).await.unwrap_err());
    assert_eq!(proxy.cuts(), 1);
    let evicted = timeout(PATIENCE, app.leases.evict("key")).await;
    evicted
        .expect("it waits for the transaction")
        .unwrap()
        .unwrap();
    assert!(session.commit_transaction().await.is_err());
}

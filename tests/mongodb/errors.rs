//! Servers that cannot be reached, do not answer, or refuse.

use std::{error::Error as _, time::Duration};

use leasehold::{Error, Leases, MongoStore};
use mongodb::{
    bson::{Document, doc},
    options::{ClientOptions, Credential},
};
use tokio::{net::TcpListener, time::Instant};

use super::{
    Engine, Fixture, LONG,
    common::every,
    faults::{FAIL_POINT, failing},
};

/// Everything that a person or a log may get to see of an error.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

fn leases(mut options: ClientOptions) -> Leases {
    options.server_selection_timeout = Some(Duration::from_millis(200));
    let client = mongodb::Client::with_options(options).unwrap();
    let locks = client.database("test").collection::<Document>("locks");
    Leases::new(MongoStore::new(&locks))
}

#[tokio::test]
async fn an_unreachable_server_is_named_as_such() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let uri = format!("mongodb://somebody:hunter2@{address}");
    let leases = leases(ClientOptions::parse(&uri).await.unwrap());
    let failures = [
        leases.acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.try_acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.inspect("key").await.map(drop).unwrap_err(),
        leases.purge(LONG).await.map(drop).unwrap_err(),
    ];
    for error in failures {
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(error.is_retryable() && !error.is_ambiguous());
        assert!(error.to_string().contains("cannot be reached"), "{error}");
        assert!(!everything(&error).contains("hunter2"), "{error:?}");
    }
    assert!(!format!("{leases:?}").contains("hunter2"));
}

#[tokio::test]
async fn refused_credentials_are_named_as_such_and_never_shown() {
    let mut options = Fixture::new(Engine::MongoDbReplicaSet).options().await;
    let credential = Credential::builder()
        .username("somebody".to_owned())
        .password("hunter2".to_owned())
        .build();
    options.credential = Some(credential);
    options.server_selection_timeout = Some(Duration::from_secs(30));
    let client = mongodb::Client::with_options(options).unwrap();
    let locks = client.database("test").collection::<Document>("locks");
    let store = MongoStore::new(&locks);
    let leases = Leases::new(store.clone());
    let failures = [
        leases.acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.inspect("key").await.map(drop).unwrap_err(),
        store.prepare().await.unwrap_err(),
    ];
    for error in failures {
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(!error.is_retryable());
        assert!(error.to_string().contains("check the user"), "{error}");
        assert!(!everything(&error).contains("hunter2"), "{error:?}");
    }
    assert!(!format!("{leases:?} {store:?}").contains("hunter2"));
}

/// As a server with accounts answers to a user with the role `read`: the test server asks nobody who
/// they are.
#[tokio::test]
async fn a_user_who_may_only_read_is_refused_everything_else_and_changes_nothing() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let holder = Leases::builder(fixture.store().await).owner("me").build();
    let lease = holder.acquire("held", LONG).await.unwrap();
    let collection = fixture.collection().await;
    let before = collection.find_one(doc! {}).await.unwrap();
    let writes = [
        "findAndModify",
        "update",
        "delete",
        "createIndexes",
        "collMod",
    ];
    let denied = doc! { "failCommands": &writes[..], "errorCode": 13 };
    let (_client, store) = failing(&fixture, i32::MAX, denied).await;

    let mut outcomes = every::of_a_handle(&Leases::new(store.clone()), LONG).await;
    outcomes.extend(every::of_a_holder(&store).await);
    outcomes.push(("prepare", store.prepare().await));
    for (operation, outcome) in outcomes {
        match outcome {
            Ok(()) => assert!(
                ["list", "inspect", "inspect dots"].contains(&operation),
                "{operation} is more than reading"
            ),
            Err(error) => assert!(
                matches!(error, Error::Denied { .. }),
                "{operation}: {error:?}"
            ),
        }
    }
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(collection.find_one(doc! {}).await.unwrap(), before);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    // It takes connections, by its backlog, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("mongodb://{}", listener.local_addr().unwrap());
    let mut options = ClientOptions::parse(&uri).await.unwrap();
    options.server_selection_timeout = Some(Duration::from_secs(600));
    let client = mongodb::Client::with_options(options).unwrap();
    let locks = client.database("test").collection::<Document>("locks");
    let leases = Leases::builder(MongoStore::new(&locks))
        .call_timeout(Duration::from_millis(100))
        .build();
    let start = Instant::now();
    let error = leases.acquire("key", LONG).await.map(drop).unwrap_err();
    assert!(
        matches!(
            error,
            Error::TimedOut {
                operation: "acquire",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.is_retryable() && error.is_ambiguous());
    // Three tries of 100 ms; without the bound it would be 600 s.
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_future_outside_a_runtime_is_an_error_and_no_panic() {
    let leases = Leases::new(leasehold::MemoryStore::new());
    let acquired = futures::executor::block_on(leases.acquire("key", LONG).into_future());
    assert!(matches!(acquired, Err(Error::NoRuntime)), "{acquired:?}");
}

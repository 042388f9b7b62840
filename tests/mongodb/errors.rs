//! Servers that cannot be reached, do not answer, or refuse, and what the errors show of that.

use std::{error::Error as _, time::Duration};

use futures::TryStreamExt;
use leasehold::{
    Error, Fence, Filter, Key, Leases, MongoStore, Store,
    fencing::GuardedCollection,
    store::{AcquireRequest, BatchRequest, LeaseId, ReleaseRequest, RenewRequest},
};
use leasehold_tests::{disguise::Disguise, sentence::sentence};
use mongodb::{
    bson::{Document, doc},
    options::ClientOptions,
};
use tokio::{net::TcpListener, time::Instant};

use super::{DATABASE, Engine, Fixture, LONG, SHORT};

/// Everything of an error that a person or a log may get to see. Checks that the message is a sentence, and names the
/// server.
pub(super) fn everything(error: &Error) -> String {
    let said = sentence(error);
    let has_host = ["127.0.0.1:", "mongodb.sock"]
        .iter()
        .any(|it| said.contains(it));
    assert!(has_host, "{said}");
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
    // Nobody listens on this port, which was free a moment ago.
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

/// Purging does not wait longer for a primary than other calls do, and no message shows a statement.
#[tokio::test]
async fn a_missing_primary_is_named_as_such() {
    let server = Engine::MongoDb.address();
    let address = Disguise::Secondary.of(&server).await;
    let leases = leases(ClientOptions::parse(&address).await.unwrap());
    let start = Instant::now();
    let looked = leases.inspect("key").await.map(drop).unwrap_err();
    let wait = start.elapsed();
    let start = Instant::now();
    let purged = leases.purge(LONG).await.map(drop).unwrap_err();
    let purge = start.elapsed();
    assert!(purge < wait * 3, "{purge:?}, where a look took {wait:?}");
    let failures = [
        looked,
        purged,
        leases.acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.try_acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.evict("key").await.map(drop).unwrap_err(),
        leases.release_owner("me").await.map(drop).unwrap_err(),
        leases
            .list(Filter::new())
            .try_next()
            .await
            .map(drop)
            .unwrap_err(),
    ];
    for error in failures {
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let text = everything(&error);
        let words = "none of these servers takes writes: 127.0.0.1:";
        assert!(text.contains(words), "{text}");
        for raw in ["expires_at", "$cond", "findAndModify"] {
            assert!(!text.contains(raw), "{text}");
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    // Its backlog takes connections, and nothing answers.
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
    assert!(sentence(&error).contains("MongoDB (test.locks)"), "{error}");
    // Three tries take 100 ms each. Without the time limit it would be 600 s.
    assert!(
        start.elapsed() < Duration::from_secs(500),
        "{:?}",
        start.elapsed()
    );
}

/// The collection has rules for its documents. The server's refusal lists all that a document
/// lacks.
#[tokio::test]
async fn a_refusal_by_a_validator_is_a_sentence() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (store, collection) = (fixture.store().await, fixture.collection().await);
    let key = |name: &str| Key::new(name).unwrap();
    let ask =
        |name: &str, ttl| AcquireRequest::exclusive(key(name), LeaseId::random(), "me".into(), ttl);
    let [held, expired] = [ask("held", LONG), ask("expired", SHORT)];
    for request in [&held, &expired] {
        store.acquire(request).await.unwrap();
    }
    let rule = doc! { "$jsonSchema": { "required": ["never there"] } };
    let modified = doc! { "collMod": collection.name(), "validator": rule };
    let database = collection.client().database(DATABASE);
    database.run_command(modified).await.unwrap();

    let release = ReleaseRequest::new(held.key.clone(), held.lease);
    let plain = release.clone().likely_sole().undoable();
    let batch = [BatchRequest::Release(plain.clone())];
    let renewal = RenewRequest::new(held.key.clone(), held.lease, LONG * 2);
    let errors = [
        store.acquire(&ask("new", LONG).fresh()).await.unwrap_err(),
        store.acquire(&ask("new", LONG)).await.unwrap_err(),
        store
            .renew(&[renewal])
            .await
            .unwrap()
            .remove(0)
            .unwrap_err(),
        store.release(&release).await.unwrap_err(),
        store.release(&plain).await.unwrap_err(),
        store.batch(&batch).await.unwrap().remove(0).unwrap_err(),
    ];
    for error in &errors {
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        let text = everything(error);
        assert!(text.contains("its validator refuses"), "{text}");
        for raw in ["WriteError", "details", "never there", "Some("] {
            assert!(!text.contains(raw), "{text}");
        }
        // A retry cannot help, and nothing is left to be released.
        assert!(!error.is_retryable() && !error.is_ambiguous());
    }

    // A document need not fit the rules to be removed.
    while !store.remove_expired(&expired.key).await.unwrap() {
        tokio::time::sleep(SHORT / 10).await;
    }
}

#[test]
fn a_future_outside_a_runtime_is_an_error_and_no_panic() {
    let leases = Leases::new(leasehold::MemoryStore::new());
    let acquired = futures::executor::block_on(leases.acquire("key", LONG).into_future());
    assert!(matches!(acquired, Err(Error::NoRuntime)), "{acquired:?}");
}

/// Nothing can be written to a view, so the server refuses every removal.
#[tokio::test]
async fn a_removal_that_fails_is_a_sentence() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let database = collection.client().database(DATABASE);
    let name = format!("{}-view", collection.name());
    let view = doc! { "create": &name, "viewOn": collection.name(), "pipeline": [] };
    database.run_command(view).await.unwrap();
    let store = MongoStore::new(&database.collection::<Document>(&name));
    let key = Key::new("a key that is in the statement").unwrap();
    // Nothing of a server has to be known for a write that waits for no journal, and its error names it all the same.
    let view = database.collection::<Document>(&name);
    let guarded = GuardedCollection::new(&view, Fence::new(7)).journal(false);
    let written = guarded.update_one(doc! { "_id": 7 }, doc! { "$set": { "a": 1 } });
    let text = everything(&written.await.unwrap_err());
    assert!(text.contains("view"), "{text}");
    for error in [
        store.remove_expired(&key).await.unwrap_err(),
        store.purge(SHORT).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        let text = everything(&error);
        assert!(text.contains("is a view"), "{text}");
        for raw in [key.as_str(), "$expr", "schema", "Some("] {
            assert!(!text.contains(raw), "{text}");
        }
    }
}

//! Servers that answer nonsense, as bytes, as messages, and as answers to commands.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Error, Key, Leases, MongoStore, Store,
    store::{AcquireRequest, LeaseId},
};
use leasehold_tests::{
    every,
    liar::{Liar, Lie, Reply, always},
    sentence::sentence,
};
use mongodb::{
    bson::{self, Bson, DateTime, Document, doc},
    options::{ClientOptions, ServerAddress},
};
use tokio::time::Instant;

use super::{Engine, Fixture, LONG, PATIENCE, patiently};

/// How long a call of the handle may take.
const CALL: Duration = Duration::from_millis(300);
/// The code of the only kind of message that current servers use.
const MESSAGE: i32 = 2_013;

/// A store that gives up soon if it finds no server.
fn store(mut options: ClientOptions) -> MongoStore {
    options.server_selection_timeout = Some(CALL / 2);
    options.connect_timeout = Some(CALL / 2);
    let client = mongodb::Client::with_options(options).unwrap();
    MongoStore::new(&client.database("test").collection::<Document>("locks"))
}

fn leases(store: &MongoStore) -> Leases {
    let leases = Leases::builder(store.clone());
    leases.call_timeout(CALL).build()
}

/// A message with this length, kind and content, in answer to the request with this number.
fn message(length: i32, to: &[u8], kind: i32, content: &[u8]) -> Vec<u8> {
    let head = [
        &length.to_le_bytes(),
        &[7, 0, 0, 0],
        to,
        &kind.to_le_bytes(),
    ];
    [&head.concat(), content].concat()
}

/// The reply to the request with this number.
type Answer = fn(&[u8]) -> Reply;

/// Replies in which no document can be read.
fn bad_messages() -> Vec<(&'static str, Answer)> {
    fn says(length: i32, to: &[u8], kind: i32, content: &[u8]) -> Reply {
        Reply::Says(message(length, to, kind, content))
    }
    vec![
        ("random bytes", |_| {
            let mut random = vec![0; 4_096];
            fastrand::Rng::with_seed(5).fill(&mut random);
            Reply::Says(random)
        }),
        ("nothing before the end", |_| Reply::SaysAndGoes(Vec::new())),
        ("half a head", |_| Reply::SaysAndGoes(vec![60, 0, 0, 0, 1])),
        ("half a message", |to| {
            Reply::SaysAndGoes(message(90, to, MESSAGE, &[0; 9]))
        }),
        ("too long", |to| says(i32::MAX, to, MESSAGE, &[0; 99])),
        ("shorter than nothing", |to| says(-1, to, MESSAGE, &[])),
        ("shorter than its head", |to| says(3, to, MESSAGE, &[])),
        ("a head alone", |to| says(16, to, MESSAGE, &[])),
        ("of no kind", |to| says(21, to, 77, &[0, 0, 0, 0, 0])),
        ("compressed by nobody", |to| {
            says(35, to, 2_012, &[0xdd; 19])
        }),
        ("a part of no kind", |to| {
            says(26, to, MESSAGE, &[0, 0, 0, 0, 9, 5, 0, 0, 0, 0])
        }),
        ("every flag", |to| {
            says(26, to, MESSAGE, &[0xff, 0xff, 0xff, 0xff, 0, 5, 0, 0, 0, 0])
        }),
        ("a document that is none", |to| {
            says(
                30,
                to,
                MESSAGE,
                &[0, 0, 0, 0, 0, 9, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0],
            )
        }),
        ("a document without end", |to| {
            says(26, to, MESSAGE, &[0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0])
        }),
        ("to somebody else", |_| {
            says(26, &[9; 4], MESSAGE, &[0, 0, 0, 0, 0, 5, 0, 0, 0, 0])
        }),
        ("an empty document", |to| {
            says(26, to, MESSAGE, &[0, 0, 0, 0, 0, 5, 0, 0, 0, 0])
        }),
    ]
}

/// A lie that gets the number of the request.
fn lie(reply: Answer) -> Lie {
    Arc::new(move |asked: &[u8]| reply(asked.get(4..8).unwrap_or(&[0; 4])))
}

/// The driver does not get as far as sending a command.
#[tokio::test]
async fn a_server_that_speaks_another_language_is_an_error_of_every_operation() {
    for (what, reply) in bad_messages() {
        let liar = Liar::saying(lie(reply)).await;
        let uri = format!("mongodb://{}", liar.address);
        let store = store(ClientOptions::parse(&uri).await.unwrap());
        let mut outcomes = every::of_a_handle(&leases(&store), CALL).await;
        outcomes.extend(every::of_a_holder(&store).await);
        outcomes.push(("prepare", store.prepare().await));
        for (name, outcome) in outcomes {
            let error = outcome.unwrap_err();
            assert!(error.is_retryable(), "{name}, {what}: {error:?}");
            let said = sentence(&error);
            // Who gives up before the driver does is told by no driver where the server is.
            let is_early = matches!(error, Error::TimedOut { .. });
            let has_host = said.contains(&liar.address.to_string());
            assert!(is_early || has_host, "{name}, {what}: {said}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_never_ends_is_given_up_in_time() {
    let head = message(9_000, &[1, 0, 0, 0], MESSAGE, &[0, 0, 0, 0, 0]);
    for reply in [Reply::Nothing, Reply::SaysSlowly(head)] {
        let liar = Liar::saying(always(reply.clone())).await;
        let uri = format!("mongodb://{}", liar.address);
        let store = store(ClientOptions::parse(&uri).await.unwrap());
        for (name, outcome) in every::of_a_handle(&leases(&store), CALL).await {
            let error = outcome.unwrap_err();
            assert!(error.is_retryable(), "{name}, {reply:?}: {error:?}");
        }
    }
}

/// A store behind a server that is honest until it is told to lie.
async fn behind_a_liar() -> (Liar, MongoStore, Fixture) {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let mut options = fixture.options().await;
    let liar = Liar::to(options.hosts[0].to_string()).await;
    options.hosts = vec![ServerAddress::parse(liar.address.to_string()).unwrap()];
    options.direct_connection = Some(true);
    (liar, store(options), fixture)
}

fn ask() -> AcquireRequest {
    let key = Key::new(LeaseId::random().to_string()).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

/// Lies in answer to commands only, so that the driver still finds its server.
fn about_commands(reply: impl Fn(&[u8]) -> Reply + Send + Sync + 'static) -> Lie {
    const GREETINGS: [&[u8]; 3] = [b"hello", b"ismaster", b"isMaster"];
    Arc::new(move |asked: &[u8]| {
        let has = |word: &&[u8]| asked.windows(word.len()).any(|part| part == *word);
        if GREETINGS.iter().any(has) {
            Reply::Honest
        } else {
            reply(asked.get(4..8).unwrap_or(&[0; 4]))
        }
    })
}

/// The driver reports a negative length as an invalid argument, as it reports options that it refuses before it sends
/// anything. What may have been granted is released after such an error too.
fn is_of_the_driver(error: &Error) -> bool {
    let driver = error.driver_error::<mongodb::error::Error>();
    driver.is_some_and(|it| matches!(&*it.kind, mongodb::error::ErrorKind::InvalidArgument { .. }))
}

/// The request was sent, so nobody knows whether it was carried out. The lease from before is still there afterwards.
#[tokio::test]
async fn nonsense_in_the_place_of_an_answer_is_ambiguous_and_loses_nothing() {
    let (liar, store, _fixture) = behind_a_liar().await;
    // This handle does not give up while the driver finds out about the lies.
    let patient = Leases::new(store.clone());
    for (what, reply) in bad_messages() {
        for commands_only in [true, false] {
            let lease = patiently(|| patient.acquire(ask().key, LONG).into_future()).await;
            liar.lie(if commands_only {
                about_commands(reply)
            } else {
                lie(reply)
            });
            let start = Instant::now();
            let error = loop {
                match store.acquire(&ask()).await.unwrap_err() {
                    // Nothing was sent: a slow machine finds no server in time, or the driver has found out about the
                    // lies already.
                    Error::Unreachable { .. } if commands_only && start.elapsed() < PATIENCE => {}
                    error => break error,
                }
            };
            let unsent = !commands_only && matches!(error, Error::Unreachable { .. });
            let open = error.is_ambiguous() || is_of_the_driver(&error) || unsent;
            assert!(open, "{what}, {commands_only}: {error:?}");
            // When the driver finds no server, each operation has the errors of the test above.
            if commands_only {
                for (name, outcome) in every::of_a_handle(&leases(&store), CALL).await {
                    let error = outcome.unwrap_err();
                    let typed = error.is_retryable() || is_of_the_driver(&error);
                    assert!(typed, "{name}, {what}: {error:?}");
                }
            }
            liar.repent();
            // The driver has to find the server again, and to drop what the lies left in its connections.
            patiently(|| lease.renew()).await;
            // On a slow machine the driver finds no server in time. The release then goes on in the background.
            let released = lease.release().await;
            assert!(!matches!(released, Err(Error::Lost { .. })), "{what}");
        }
    }
}

/// Documents that are no answer to any command.
fn bad_answers() -> Vec<Document> {
    let date = DateTime::from_millis(i64::MAX);
    let holder = doc! { "lease": 7, "owner": {}, "expires_at": "x", "fence": 1e300 };
    vec![
        doc! {},
        doc! { "ok": "1" },
        doc! { "ok": 1 },
        doc! { "ok": 1, "value": 7, "n": "7", "nModified": {}, "cursor": 7 },
        doc! { "ok": 1, "value": [], "n": -1, "cursor": { "id": "0", "ns": 7, "firstBatch": {} } },
        doc! { "ok": 1, "value": { "schema": leasehold::store::SCHEMA, "fence": "x" }, "cursor": { "id": 0_i64, "ns": "", "firstBatch": 7 } },
        doc! { "ok": 1, "writeErrors": 7, "writeConcernError": 7 },
        doc! { "ok": 1, "n": 1, "writeErrors": [7], "writeConcernError": { "code": "x" } },
        doc! { "ok": 1, "value": { "schema": leasehold::store::SCHEMA, "fence": 1, "holders": [7], "expires_at": date, "now": date } },
        doc! { "ok": 1, "value": { "schema": leasehold::store::SCHEMA, "fence": 1, "holders": [holder], "expires_at": date, "now": date } },
        doc! { "ok": 1, "value": { "limiter": 1, "used": i64::MIN, "granted_at": date, "over_at": Bson::Null } },
        doc! { "ok": 0 },
        doc! { "ok": 0, "code": 1e300, "errmsg": 7, "errorLabels": 7 },
        doc! { "ok": 0, "code": "13", "codeName": [], "errmsg": {} },
        doc! { "ok": 0, "code": i32::MIN, "errmsg": "no" },
    ]
}

fn says(answer: &Document) -> Lie {
    let content = [&[0; 5], &bson::to_vec(answer).unwrap()[..]].concat();
    let length = 16 + content.len() as i32;
    about_commands(move |to| Reply::Says(message(length, to, MESSAGE, &content)))
}

#[tokio::test]
async fn answers_of_another_shape_are_errors_and_no_panic() {
    let (liar, store, _fixture) = behind_a_liar().await;
    patiently(async || store.acquire(&ask()).await).await;
    for answer in bad_answers() {
        liar.lie(says(&answer));
        let mut outcomes = every::of_a_handle(&leases(&store), CALL).await;
        outcomes.extend(every::of_a_holder(&store).await);
        for (name, outcome) in outcomes {
            assert!(outcome.is_err(), "{name} takes {answer} for an answer");
        }
        // The server's answer to the creation of an index needs to be no more than `ok`.
        let prepared = store.prepare().await;
        assert!(prepared.is_err() || answer.get("ok") == Some(&1.into()));
    }
}

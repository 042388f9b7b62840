//! The commands that are sent: how many there are, and with which concerns.

mod oplog;
mod plans;
mod turns;

use std::time::Duration;

use leasehold::{
    Attempt, Key, Leases, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseRequest,
        RenewRequest,
    },
};
use leasehold_tests::{long, many};
use mongodb::{
    bson::Document,
    options::{
        Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria,
        WriteConcern,
    },
};

use tokio::time::Instant;

use super::{ATTEMPTS, Commands, Engine, Fixture, LONG, PATIENCE, SHORT, short_lived};

async fn watched_leases(engine: Engine) -> (Leases, Commands) {
    let (collection, commands) = Fixture::new(engine).watched().await;
    let store = MongoStore::new(&collection);
    store.prepare().await.unwrap();
    commands.take();
    // With so long a time limit a slow server is sent each request only once.
    let leases = Leases::builder(store).call_timeout(PATIENCE);
    (leases.build(), commands)
}

#[tokio::test]
async fn each_operation_is_one_round_trip() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (leases, commands) = watched_leases(engine).await;

        let lease = leases.acquire("key", LONG).await.unwrap();
        assert_eq!(commands.names(), ["findAndModify"], "a free acquire");

        let attempt = leases.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
        assert_eq!(commands.names(), [""; 0], "held by this process");

        lease.renew().await.unwrap();
        assert_eq!(commands.names(), ["findAndModify"], "a renewal");

        lease.release().await.unwrap();
        assert_eq!(commands.names(), ["update"], "a release");

        drop(short_lived(&leases, "dies").await.detach());
        tokio::time::sleep(SHORT).await;
        commands.take();
        let next = leases.acquire("dies", LONG).await.unwrap();
        assert_eq!(commands.names(), ["findAndModify"], "a takeover");
        next.release().await.unwrap();
        commands.take();

        leases.inspect("key").await.unwrap();
        assert_eq!(commands.names(), ["find"], "a look");

        leases.evict("key").await.unwrap();
        assert_eq!(commands.names(), ["findAndModify"], "an eviction");
    }
}

/// A release whose batch is not answered within this time is sent again, alone.
const OVERDUE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_set_of_free_keys_is_two_commands_and_its_release_is_one() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (leases, commands) = watched_leases(engine).await;
        let mut in_time = false;
        for attempt in 0..ATTEMPTS {
            let keys = (0..20).map(|number| format!("{attempt} {number}"));
            let set = leases.acquire_all(keys, LONG).await.unwrap();
            let sent = commands.take();
            let names: Vec<_> = sent.iter().filter_map(|it| it.keys().next()).collect();
            assert_eq!(names, ["update", "find"], "{engine:?}");
            assert_eq!(sent[0].get_array("updates").unwrap().len(), 20);
            let start = Instant::now();
            set.release().await.unwrap();
            let sent = commands.take();
            in_time = start.elapsed() < OVERDUE;
            if in_time {
                assert_eq!(sent.len(), 1, "{engine:?}: {sent:?}");
                // All of them are one statement.
                assert_eq!(sent[0].get_array("updates").unwrap().len(), 1);
                break;
            }
        }
        assert!(in_time, "no release was quick enough to tell");
    }
}

fn key() -> Key {
    Key::new("key").unwrap()
}

fn ask(lease: LeaseId) -> AcquireRequest {
    AcquireRequest::exclusive(key(), lease, "me".into(), LONG)
}

async fn granted(store: &MongoStore, request: &AcquireRequest) -> bool {
    let answer = store.acquire(request).await.unwrap();
    matches!(answer, AcquireAnswer::Granted(_))
}

async fn converted(store: &MongoStore, request: &ConvertRequest) -> bool {
    let answer = store.convert(request).await.unwrap();
    matches!(answer, ConvertAnswer::Converted(_))
}

/// Runs every operation that reads several holders, from a fresh key to a free one.
async fn run_with_several_holders(store: &MongoStore) {
    let [one, two, three] = [(); 3].map(|()| LeaseId::random());
    assert!(granted(store, &ask(one).shared()).await);
    assert!(granted(store, &ask(two).shared()).await);
    assert!(!granted(store, &ask(three).permits(1, 2).unwrap()).await);
    assert!(granted(store, &ask(three).permits(1, 2).unwrap().reentrant()).await);
    assert!(!converted(store, &ConvertRequest::upgrade(key(), one)).await);
    for lease in [two, three] {
        let release = ReleaseRequest::new(key(), lease);
        store.release(&release).await.unwrap();
    }
    assert!(converted(store, &ConvertRequest::upgrade(key(), one)).await);
    assert!(converted(store, &ConvertRequest::downgrade(key(), one)).await);
    let held_on = ReleaseRequest::new(key(), one).min_hold(SHORT, LeaseId::random());
    store.release(&held_on).await.unwrap();
}

const WITH_SEVERAL_HOLDERS: [&str; 10] = [
    "findAndModify",
    "findAndModify",
    "findAndModify",
    "findAndModify",
    "findAndModify",
    "update",
    "update",
    "findAndModify",
    "findAndModify",
    "update",
];

#[tokio::test]
async fn with_several_holders_too_each_operation_is_one_round_trip() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (collection, commands) = Fixture::new(engine).watched().await;
        let store = MongoStore::new(&collection);
        run_with_several_holders(&store).await;
        assert_eq!(commands.names(), WITH_SEVERAL_HOLDERS);
    }
}

#[tokio::test]
async fn a_thousand_renewals_are_two_commands() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let store = MongoStore::new(&collection);
    let requests: Vec<_> = (0..1_000)
        .map(|number| {
            let key = leasehold::Key::new(format!("key {number}")).unwrap();
            RenewRequest::new(key, leasehold::store::LeaseId::random(), LONG)
        })
        .collect();
    let answers = store.renew(&requests).await.unwrap();
    assert_eq!(answers.len(), 1_000);
    assert_eq!(commands.names(), ["update", "find"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_kept_leases_are_renewed_by_a_handful_of_commands() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let sent = || commands.names().len();
    let thousands = if long() { 10 } else { 2 };
    // There is one command for each thousand leases, and some for leases that are not in step yet.
    let enough = 5 * thousands;
    let store = MongoStore::new(&collection);
    let cost = many::cost_of_renewals(store, 1_000 * thousands, enough, sent).await;
    assert!((thousands..=enough).contains(&cost), "{cost} commands");
}

#[tokio::test]
async fn writes_ask_for_a_majority_and_reads_for_the_primary_whatever_the_defaults() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (collection, commands) = fixture.watched().await;
    let anywhere = ReadPreference::Nearest { options: None };
    let careless = CollectionOptions::builder()
        .write_concern(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build())
        .read_concern(ReadConcern::available())
        .selection_criteria(SelectionCriteria::ReadPreference(anywhere))
        .build();
    let careless = collection
        .client()
        .database(super::DATABASE)
        .collection_with_options::<Document>(&fixture.name, careless);
    let store = MongoStore::new(&careless).durable_releases(true);
    let leases = Leases::new(store.clone());
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.renew().await.unwrap();
    let requests = ["one", "two"].map(|key| {
        let key = leasehold::Key::new(key).unwrap();
        RenewRequest::new(key, leasehold::store::LeaseId::random(), LONG)
    });
    store.renew(&requests).await.unwrap();
    leases.inspect("key").await.unwrap();
    lease.release().await.unwrap();
    leases.evict("key").await.unwrap();
    leases.remove_expired("key").await.unwrap();
    leases.purge(Duration::ZERO).await.unwrap();

    let mut writes = 0;
    for command in commands.take() {
        let name = command.keys().next().cloned().unwrap();
        if name == "find" {
            let preference = command.get_document("$readPreference");
            let mode = preference.and_then(|preference| preference.get_str("mode"));
            // To a member that it is connected to directly, the driver always sends
            // `primaryPreferred`.
            let primary = matches!(mode, Ok("primary" | "primaryPreferred") | Err(_));
            assert!(primary, "{command}");
            let concern = command.get_document("readConcern").unwrap();
            assert_eq!(concern.get_str("level"), Ok("local"), "{command}");
        } else {
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!(concern.get_str("w"), Ok("majority"), "{command}");
            // With this limit a server without a majority does not keep the connection for ever.
            assert!(concern.contains_key("wtimeout"), "{command}");
            writes += 1;
        }
    }
    assert_eq!(writes, 8);
}

/// A read costs less than an update that is refused.
#[tokio::test]
async fn an_attempt_on_a_key_that_was_held_a_moment_ago_only_looks() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (collection, commands) = Fixture::new(engine).watched().await;
        let here = Leases::new(MongoStore::new(&collection));
        let there = Leases::new(MongoStore::new(&collection));
        let lease = there.acquire("key", LONG).await.unwrap();
        let attempt = async || here.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(attempt().await, Attempt::Held(_)));
        commands.take();
        for _ in 0..3 {
            let Attempt::Held(held) = attempt().await else {
                panic!("granted twice");
            };
            assert_eq!(held.holders()[0].lease, lease.id());
            assert!(held.expires_in() > LONG / 2);
            assert_eq!(commands.names(), ["find"], "{engine:?}");
        }
        // One read is enough to refuse readers too.
        let reading = here.try_acquire("key", LONG).shared().await.unwrap();
        assert!(matches!(reading, Attempt::Held(_)));
        assert_eq!(commands.names(), ["find"]);

        lease.release().await.unwrap();
        commands.take();
        let Attempt::Acquired(mine) = attempt().await else {
            panic!("it is free");
        };
        assert_eq!(commands.names(), ["find", "findAndModify"]);
        // The client's own lease does not make it expect another holder.
        mine.release().await.unwrap();
        commands.take();
        let again = attempt().await;
        assert!(matches!(again, Attempt::Acquired(_)));
        assert_eq!(commands.names(), ["findAndModify"]);
    }
}

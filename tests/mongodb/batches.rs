//! The commands of a batch, and what happens when one of the two fails.

use std::{sync::Arc, time::Duration};

use chrono::TimeDelta;
use futures::future::join_all;
use leasehold::{
    Attempt, Error, Key, Leases, MongoStore, Store,
    jobs::Tick,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, ReleaseAnswer,
        ReleaseRequest, Turn,
    },
};
use leasehold_tests::{disguise::Disguise, engine::Engine, proxy::Proxy};
use mongodb::{bson::doc, options::ClientOptions};
use tokio::time::timeout;

use super::{Commands, Fixture, LONG, faults::FAIL_POINT, soon_mended};

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

/// Keys that look like paths, operators and variables, and the longest one.
fn odd_keys() -> Vec<Key> {
    let longest = "é".repeat(256);
    let odd = ["a.b", "$set", "$$NOW", "{ $ne: 1 }", "$a.$b", "0", &longest];
    odd.map(|key| Key::new(key).unwrap()).into()
}

fn exclusive(key: &Key) -> AcquireRequest {
    AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG)
}

/// The answers to these acquires, in one batch.
async fn acquired(
    store: &MongoStore,
    requests: &[AcquireRequest],
) -> Vec<Result<AcquireAnswer, Error>> {
    let batch: Vec<_> = requests.iter().cloned().map(Arc::new).collect();
    let batch: Vec<_> = batch.into_iter().map(BatchRequest::Acquire).collect();
    let answers = store.batch(&batch).await.unwrap().into_iter();
    let answer = |answer| match answer {
        Ok(BatchAnswer::Acquire(answer)) => Ok(answer),
        Ok(answer) => panic!("{answer:?}"),
        Err(error) => Err(error),
    };
    answers.map(answer).collect()
}

fn is_granted(answer: &Result<AcquireAnswer, Error>) -> bool {
    matches!(answer, Ok(AcquireAnswer::Granted(_)))
}

async fn release(store: &MongoStore, requests: &[AcquireRequest]) {
    let release = |it: &AcquireRequest| ReleaseRequest::new(it.key.clone(), it.lease);
    let batch: Vec<_> = requests
        .iter()
        .map(release)
        .map(BatchRequest::Release)
        .collect();
    for answer in store.batch(&batch).await.unwrap() {
        assert_eq!(
            answer.unwrap(),
            BatchAnswer::Release(ReleaseAnswer::Released)
        );
    }
}

/// How many statements the last batch had, and how many of them were for many documents.
fn statements(commands: &Commands) -> (usize, usize) {
    let sent = commands.take();
    let updates = sent.iter().filter_map(|it| it.get_array("updates").ok());
    let updates: Vec<_> = updates
        .flatten()
        .filter_map(|it| it.as_document())
        .collect();
    let many = updates.iter().filter(|it| it.contains_key("multi"));
    (updates.len(), many.count())
}

/// Each lease is in the document of its own key, with a fence of its own, whatever the key looks like.
#[tokio::test]
async fn keys_that_exist_are_granted_by_one_statement() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let (collection, commands) = Fixture::new(engine).watched().await;
        let store = MongoStore::new(&collection);
        let keys = odd_keys();
        let mut fences = Vec::new();
        for round in 0..3 {
            let asked: Vec<_> = keys.iter().map(exclusive).collect();
            let answers = acquired(&store, &asked).await;
            // With its first batch the process learns which keys have a document.
            let expected = if round == 0 { (keys.len(), 0) } else { (1, 1) };
            assert_eq!(statements(&commands), expected, "{engine:?}");
            for (index, (request, answer)) in asked.iter().zip(&answers).enumerate() {
                let Ok(AcquireAnswer::Granted(grant)) = answer else {
                    panic!("{answer:?}");
                };
                let state = store.inspect(&request.key).await.unwrap().unwrap();
                let [holder] = &state.holders[..] else {
                    panic!("{state:?}");
                };
                assert_eq!((holder.lease, holder.fence), (request.lease, grant.fence));
                let before = fences.get(index).copied();
                assert!(before < Some(grant.fence), "{before:?} {grant:?}");
                fences.retain(|it| Some(*it) != before);
                fences.insert(index, grant.fence);
            }
            release(&store, &asked).await;
            commands.take();
        }
    }
}

/// Only those on the same terms share a statement. A ticked one, a reader and one that barges have their own.
#[tokio::test]
async fn requests_on_other_terms_have_statements_of_their_own() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let store = MongoStore::new(&collection);
    let keys: Vec<_> = (0..8).map(|number| ask(number).key).collect();
    let known: Vec<_> = keys.iter().map(exclusive).collect();
    acquired(&store, &known).await;
    release(&store, &known).await;
    commands.take();
    let mut asked: Vec<_> = keys.iter().map(exclusive).collect();
    asked[2].owner = "other".into();
    asked[3].ttl = 2 * LONG;
    asked[4].note = Some("a note".into());
    asked[5] = asked[5].clone().shared();
    asked[6] = asked[6].clone().turn(Turn::Barging);
    asked[7] = asked[7].clone().tick(Tick::counter(1));
    let answers = acquired(&store, &asked).await;
    assert!(answers.iter().all(is_granted), "{answers:?}");
    // Two on the same terms, three on terms of their own, and three that never share.
    assert_eq!(statements(&commands), (7, 1));
    for request in &asked {
        let state = store.inspect(&request.key).await.unwrap().unwrap();
        let [holder] = &state.holders[..] else {
            panic!("{state:?}");
        };
        let found = (&holder.owner, &holder.note, holder.mode);
        assert_eq!(
            found,
            (&request.owner, &request.note, request.access.mode())
        );
        let lives_long = holder.expires_at - state.now > TimeDelta::from_std(LONG).unwrap();
        assert_eq!(lives_long, request.ttl > LONG, "{state:?}");
    }
}

/// A key that is held, one whose document has been removed, and one that a validator protects: each has its own answer,
/// and the others are granted.
#[tokio::test]
async fn what_the_one_statement_does_not_grant_is_asked_for_by_itself() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let collection = fixture.collection().await;
    let store = MongoStore::new(&collection);
    let keys: Vec<_> = (0..5).map(|number| ask(number).key).collect();
    let known: Vec<_> = keys.iter().map(exclusive).collect();
    acquired(&store, &known).await;
    release(&store, &known).await;
    let other = exclusive(&keys[1]);
    store.acquire(&other).await.unwrap();
    let removed = doc! { "_id": keys[2].as_str() };
    collection.delete_one(removed).await.unwrap();
    let refuses = doc! { "$expr": { "$or": [
        { "$ne": ["$_id", keys[3].as_str()] }, { "$not": ["$lease"] },
    ] } };
    let command = doc! { "collMod": collection.name(), "validator": refuses };
    let database = collection.client().database(super::DATABASE);
    database.run_command(command).await.unwrap();
    let asked: Vec<_> = keys.iter().map(exclusive).collect();
    let answers = acquired(&store, &asked).await;
    for granted in [0, 2, 4] {
        assert!(is_granted(&answers[granted]), "{answers:?}");
        let state = store.inspect(&keys[granted]).await.unwrap().unwrap();
        assert_eq!(state.holders[0].lease, asked[granted].lease);
    }
    let Ok(AcquireAnswer::Held(held)) = &answers[1] else {
        panic!("{answers:?}");
    };
    assert_eq!(held.holders()[0].lease, other.lease);
    assert!(answers[3].is_err(), "{answers:?}");
}

/// Each key was asked for alone before.
#[tokio::test]
async fn keys_that_were_acquired_alone_are_known_too() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let store = MongoStore::new(&collection);
    let alone: Vec<_> = (0..8).map(|number| exclusive(&ask(number).key)).collect();
    for request in &alone {
        store.acquire(request).await.unwrap();
    }
    release(&store, &alone).await;
    commands.take();
    let again: Vec<_> = alone.iter().map(|it| exclusive(&it.key)).collect();
    let answers = acquired(&store, &again).await;
    assert!(answers.iter().all(is_granted), "{answers:?}");
    assert_eq!(statements(&commands), (1, 1));
}

/// The server has removed documents that this process has seen. The requests for them go together once more.
#[tokio::test]
async fn keys_whose_documents_were_removed_are_asked_for_together() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let store = MongoStore::new(&collection);
    let keys: Vec<_> = (0..8).map(|number| ask(number).key).collect();
    for removed in [8, 3, 1] {
        let known: Vec<_> = keys.iter().map(exclusive).collect();
        acquired(&store, &known).await;
        release(&store, &known).await;
        let ids: Vec<_> = keys[..removed].iter().map(|key| key.as_str()).collect();
        let gone = doc! { "_id": { "$in": ids } };
        collection.delete_many(gone).await.unwrap();
        commands.take();
        let mut asked: Vec<_> = keys.iter().map(exclusive).collect();
        // It has a statement of its own, of whose failures the indexes of the others must not remind.
        asked[7].owner = "other".into();
        let answers = acquired(&store, &asked).await;
        assert!(answers.iter().all(is_granted), "{answers:?}");
        let expected: &[_] = match removed {
            1 => &["update", "find", "findAndModify"],
            _ => &["update", "find", "update", "find"],
        };
        assert_eq!(commands.names(), expected, "{removed}");
        for request in &asked {
            let state = store.inspect(&request.key).await.unwrap().unwrap();
            assert_eq!(state.holders[0].lease, request.lease);
        }
        release(&store, &asked).await;
    }
}

/// The second command for removed documents fails. The other keys are granted, and each of these is asked for by itself.
#[tokio::test]
async fn a_failure_to_ask_for_removed_documents_concerns_no_others() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let mut options = fixture.options().await;
    options.app_name = Some(fixture.name.clone());
    let locks = fixture.collection_with(options);
    let store = MongoStore::new(&locks);
    let keys: Vec<_> = (0..4).map(|number| ask(number).key).collect();
    let known: Vec<_> = keys.iter().map(exclusive).collect();
    acquired(&store, &known).await;
    release(&store, &known).await;
    let gone = doc! { "_id": { "$in": [keys[0].as_str(), keys[1].as_str()] } };
    locks.delete_many(gone).await.unwrap();
    let data = doc! { "failCommands": ["update"], "appName": &fixture.name, "errorCode": 13 };
    let fail = doc! { "configureFailPoint": "failCommand", "mode": { "skip": 1 }, "data": data };
    let admin = locks.client().database("admin");
    admin.run_command(fail).await.unwrap();
    let asked: Vec<_> = keys.iter().map(exclusive).collect();
    let batch = asked.iter().cloned().map(Arc::new);
    let batch: Vec<_> = batch.map(BatchRequest::Acquire).collect();
    let answers = store.batch(&batch).await.unwrap();
    let mend = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    admin.run_command(mend).await.unwrap();
    for (answer, request) in answers.into_iter().zip(&asked) {
        assert!(
            matches!(answer, Ok(BatchAnswer::Acquire(AcquireAnswer::Granted(_)))),
            "{answer:?}"
        );
        let state = store.inspect(&request.key).await.unwrap().unwrap();
        assert_eq!(state.holders[0].lease, request.lease);
    }
}

/// The batch is answered by a read. It shows the grant of a request that was repeated meanwhile, which a majority may not
/// have yet.
#[tokio::test]
async fn a_grant_that_may_not_be_confirmed_yet_is_not_given_to_its_caller() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let options = fixture.options_at(proxy.address, "").await;
    let leases = Leases::new(MongoStore::new(&fixture.collection_with(options)));
    let (other, held) = (fixture.store().await, ask(23));
    other.acquire(&held).await.unwrap();
    // Only the read of a batch has this option.
    let read = proxy.hold_the_request("batchSize");
    // The first sixteen go alone, and the others together.
    let acquire = |number| leases.acquire(format!("key {number}"), LONG).into_future();
    let before = tokio::spawn(join_all((0..23).map(acquire)));
    let mut asked = tokio::spawn(acquire(23));
    read.reached().await;
    let release = ReleaseRequest::new(held.key.clone(), held.lease);
    other.release(&release).await.unwrap();
    // It is answered when a majority has what it has changed.
    let repeated = proxy.hold_the_answer_to("key 23");
    repeated.reached().await;
    let state = other.inspect(&held.key).await.unwrap().unwrap();
    assert!(!state.is_free(), "the control");
    // The request is sent once more, a second after the first repetition.
    let again = proxy.hold_the_answer_to("key 23");
    read.open();
    let early = timeout(Duration::from_secs(2), &mut asked).await;
    assert!(early.is_err(), "{early:?}");
    again.open();
    repeated.open();
    let lease = asked.await.unwrap().unwrap();
    assert_eq!(lease.id(), state.holders[0].lease);
    let others = before.await.unwrap();
    assert!(others.iter().all(Result::is_ok), "{others:?}");
}

/// An upsert under a clock that has no fence leaves a document with nothing but its key.
#[tokio::test]
async fn an_empty_document_of_a_known_key_is_granted() {
    let fixture = Fixture::new(Engine::MongoDb);
    let (collection, store) = (fixture.collection().await, fixture.store().await);
    let keys: Vec<_> = (0..3).map(|number| ask(number).key).collect();
    let known: Vec<_> = keys.iter().map(exclusive).collect();
    acquired(&store, &known).await;
    release(&store, &known).await;
    let empty = doc! { "_id": keys[1].as_str() };
    collection.replace_one(empty.clone(), empty).await.unwrap();
    let asked: Vec<_> = keys.iter().map(exclusive).collect();
    let answers = acquired(&store, &asked).await;
    assert!(answers.iter().all(is_granted), "{answers:?}");
}

/// A place that counts keeps a key that exists from a batch.
#[tokio::test]
async fn the_one_statement_passes_no_place() {
    let store = Fixture::new(Engine::MongoDb).store().await;
    let keys: Vec<_> = (0..3).map(|number| ask(number).key).collect();
    let known: Vec<_> = keys.iter().map(exclusive).collect();
    acquired(&store, &known).await;
    let waits = Turn::in_turn(LeaseId::random(), LONG);
    let waiting = exclusive(&keys[1]).turn(waits);
    store.acquire(&waiting).await.unwrap();
    release(&store, &known).await;
    let asked: Vec<_> = keys.iter().map(exclusive).collect();
    let answers = acquired(&store, &asked).await;
    assert!(
        is_granted(&answers[0]) && is_granted(&answers[2]),
        "{answers:?}"
    );
    assert!(
        matches!(answers[1], Ok(AcquireAnswer::Held(_))),
        "{answers:?}"
    );
    assert!(is_granted(&store.acquire(&waiting).await), "it comes first");
}

/// On a sharded cluster a statement for many documents may be carried out on some of them twice. The server seems to be a
/// router, in front of shards that have pipelines.
#[tokio::test]
async fn a_sharded_cluster_gets_a_statement_for_each_key() {
    let fixture = Fixture::new(Engine::MongoDbAlpha);
    let address = Disguise::Router.of(&fixture.uri).await;
    let options = soon_mended(ClientOptions::parse(&address).await.unwrap());
    let (collection, commands) = fixture.watched_with(options);
    let store = MongoStore::new(&collection);
    assert!(store.has_pipelines().await.unwrap(), "the control");
    for _ in 0..2 {
        commands.take();
        let asked: Vec<_> = (0..3).map(ask).collect();
        let answers = acquired(&store, &asked).await;
        assert!(answers.iter().all(is_granted), "{answers:?}");
        assert_eq!(statements(&commands), (3, 0));
        release(&store, &asked).await;
    }
}

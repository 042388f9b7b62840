//! What acknowledges a write. Every command says it itself, whatever the client and the collection are set to.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Error, Fence, Key, Leases, MongoDistributedLock, MongoStore, Store, Upgrade,
    fencing::GuardedCollection,
    store::{AcquireAnswer, AcquireRequest, BatchRequest, Earlier, LeaseId, ReleaseRequest},
};
use leasehold_tests::{
    every,
    liar::{Liar, Reply},
};
use mongodb::{
    Collection,
    bson::{Document, doc, to_vec},
    options::{CollectionOptions, WriteConcern},
};

use super::{Commands, DATABASE, Engine, Fixture, LONG, SHORT};

pub const BOTH: [Engine; 2] = [Engine::MongoDb, Engine::MongoDbReplicaSet];
/// The commands that change nothing.
const READS: [&str; 6] = [
    "find",
    "aggregate",
    "getMore",
    "listCollections",
    "listIndexes",
    "commitTransaction",
];

/// A collection that asks for as weak a write concern as possible, as its client does.
pub async fn careless(engine: Engine) -> (Collection<Document>, Commands) {
    let mut fixture = Fixture::new(engine);
    let separator = if fixture.uri.contains('?') { "&" } else { "/?" };
    fixture.uri.push_str(separator);
    fixture.uri.push_str("w=1&journal=false");
    let (collection, commands) = fixture.watched().await;
    let least = WriteConcern::builder()
        .w(Some(1.into()))
        .journal(false)
        .build();
    let options = CollectionOptions::builder().write_concern(least).build();
    let database = collection.client().database(DATABASE);
    let collection = database.collection_with_options(collection.name(), options);
    (collection, commands)
}

/// Checks that each of these writes waits for the journal, and for a majority where there can be one.
#[track_caller]
fn assert_durable(engine: Engine, commands: &Commands, names: &[&str]) {
    let mut seen = Vec::new();
    for command in commands.take() {
        let name = command.keys().next().cloned().unwrap_or_default();
        if READS.contains(&name.as_str()) {
            continue;
        }
        let concern = command.get_document("writeConcern");
        let concern = concern.unwrap_or_else(|_| panic!("{engine:?}: {command}"));
        assert_eq!(concern.get_bool("j"), Ok(true), "{engine:?}: {command}");
        match engine {
            Engine::MongoDb => assert_eq!(concern.get_i32("w"), Ok(1), "{command}"),
            _ => assert_eq!(concern.get_str("w"), Ok("majority"), "{command}"),
        }
        assert!(concern.contains_key("wtimeout"), "{command}");
        seen.push(name);
    }
    for name in names {
        assert!(seen.iter().any(|it| it == name), "no {name} among {seen:?}");
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

#[tokio::test]
async fn every_write_of_the_store_waits_for_the_journal_whatever_the_defaults_are() {
    for engine in BOTH {
        let (collection, commands) = careless(engine).await;
        // Plain releases are tested in a file of their own, `releases.rs`.
        let store = MongoStore::new(&collection).durable_releases(true);
        store.prepare().await.unwrap();
        let changed = store.clone().retention(Duration::from_secs(60));
        // The standalone engine does not know `collMod`, but the command is sent.
        let _ = changed.prepare().await;
        let leases = Leases::new(store.clone());

        let lease = leases.acquire("key", LONG).await.unwrap();
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
        let shared = leases.acquire("key", LONG).shared().await.unwrap();
        let upgraded = shared.upgrade().await.unwrap();
        assert!(matches!(upgraded, Upgrade::Exclusive));
        shared.downgrade().await.unwrap();
        leases.evict("key").await.unwrap();
        drop(shared);
        let acquire = AcquireRequest::exclusive(key("a"), LeaseId::random(), "me".into(), SHORT);
        let requests = [
            BatchRequest::Acquire(Arc::new(acquire.clone())),
            BatchRequest::Release(ReleaseRequest::new(key("b"), LeaseId::random()).likely_sole()),
        ];
        for answer in store.batch(&requests).await.unwrap() {
            answer.unwrap();
        }
        let release = ReleaseRequest::new(acquire.key.clone(), acquire.lease);
        let held_on = release.min_hold(SHORT, LeaseId::random());
        store.release(&held_on).await.unwrap();
        every::of_a_handle(&leases, Duration::from_millis(50)).await;
        every::of_a_holder(&store).await;
        leases.close().await;
        let all = [
            "findAndModify",
            "update",
            "delete",
            "createIndexes",
            "collMod",
        ];
        assert_durable(engine, &commands, &all);
    }
}

#[tokio::test]
async fn every_write_under_a_fence_waits_for_the_journal_whatever_the_defaults_are() {
    for engine in BOTH {
        let (collection, commands) = careless(engine).await;
        let guarded = GuardedCollection::new(&collection, Fence::new(7));
        let seven = || doc! { "_id": 7 };
        let set = || doc! { "$set": { "a": 1 } };
        guarded.insert_one(&seven()).await.unwrap();
        guarded.update_one(seven(), set()).await.unwrap();
        guarded
            .replace_one(seven(), &doc! {})
            .upsert()
            .await
            .unwrap();
        guarded.find_one_and_update(seven(), set()).await.unwrap();
        guarded.claim(7).await.unwrap();
        guarded.delete_one(seven()).await.unwrap();
        let all = ["insert", "update", "findAndModify", "delete"];
        assert_durable(engine, &commands, &all);
    }
}

#[tokio::test]
async fn every_write_of_the_java_class_waits_for_the_journal_whatever_the_defaults_are() {
    for engine in BOTH {
        let (collection, commands) = careless(engine).await;
        let locks = MongoDistributedLock::new(&collection);
        locks.prepare().await.unwrap();
        let grant = locks.acquire("key", LONG).await.unwrap().unwrap();
        assert!(locks.release(&grant).await.unwrap());
        locks.increment("key", LONG).await.unwrap().unwrap();
        locks.remove_expired("key").await.unwrap();
        let all = ["createIndexes", "findAndModify", "delete"];
        assert_durable(engine, &commands, &all);
    }
}

/// A transaction has its own write concern, and the server refuses statements in it that have another.
#[tokio::test]
async fn in_a_transaction_the_write_concern_is_the_applications() {
    let (collection, commands) = careless(Engine::MongoDbReplicaSet).await;
    let leases = Leases::new(MongoStore::new(&collection));
    let lease = leases.acquire("key", LONG).await.unwrap();
    commands.take();
    let mut session = collection.client().start_session().await.unwrap();
    let durable = WriteConcern::builder()
        .w(Some(mongodb::options::Acknowledgment::Majority))
        .journal(true)
        .build();
    let transaction = session.start_transaction().write_concern(durable);
    transaction.await.unwrap();
    lease.enforce(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let sent = commands.take();
    let named = |name: &str| sent.iter().find(|it| it.keys().next().unwrap() == name);
    let enforced = named("findAndModify").unwrap();
    assert!(!enforced.contains_key("writeConcern"), "{enforced}");
    let committed = named("commitTransaction").unwrap();
    let concern = committed.get_document("writeConcern").unwrap();
    assert_eq!(concern.get_bool("j"), Ok(true), "{committed}");
    lease.release().await.unwrap();
}

/// If the store is told not to wait for the journal, its commands do not mention the journal, and it does not ask which
/// kind of server it has.
#[tokio::test]
async fn without_the_journal_a_majority_is_asked_for_all_the_same() {
    for engine in BOTH {
        let (collection, commands) = careless(engine).await;
        let store = MongoStore::new(&collection)
            .journal(false)
            .durable_releases(true);
        let lease = Leases::new(store).acquire("key", LONG).await.unwrap();
        lease.release().await.unwrap();
        let guarded = GuardedCollection::new(&collection, Fence::new(7)).journal(false);
        guarded.insert_one(&doc! { "_id": 7 }).await.unwrap();
        let locks = MongoDistributedLock::new(&beside(&collection)).journal(false);
        locks.prepare().await.unwrap();
        locks.increment("another", LONG).await.unwrap().unwrap();
        let mut writes = 0;
        for command in commands.take() {
            if command.contains_key("aggregate") {
                continue;
            }
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!(concern.get_str("w"), Ok("majority"), "{command}");
            assert!(!concern.contains_key("j"), "{command}");
            writes += 1;
        }
        assert_eq!(writes, 7);
    }
}

/// A repetition of a request may be granted the lease before the request itself reads the document. A failover may still
/// undo that grant, so the answer waits for a majority. A refusal does not.
#[tokio::test]
async fn the_classic_dialect_tells_of_a_grant_when_a_majority_has_it() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let (collection, commands) = fixture.watched().await;
    let store = MongoStore::new(&collection).without_pipelines();
    let key = Key::new("key").unwrap();
    let ask = || {
        let mut first =
            AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        first.earlier = Earlier::None;
        first
    };
    let (own, other) = (ask(), ask());
    store.acquire(&own).await.unwrap();
    for (request, is_own) in [(&own, true), (&other, false)] {
        commands.take();
        let answer = store.acquire(request).await.unwrap();
        assert_eq!(matches!(answer, AcquireAnswer::Granted(_)), is_own);
        let sent = commands.take();
        let concern = sent.last().unwrap().get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w").is_ok(), is_own, "{sent:?}");
    }
}

/// A collection for the locks of the Java class, which need a unique index.
fn beside(collection: &Collection<Document>) -> Collection<Document> {
    let database = collection.client().database(DATABASE);
    database.collection(&format!("{}_java", collection.name()))
}

/// The length of a message's header, and the place of the document in the message.
const HEADER: usize = 16;
const OP_MSG: i32 = 2013;

/// The answer of a server without a journal to a write that has to wait for one.
fn without_a_journal(request: &[u8]) -> Reply {
    let asks = b"\x08j\0\x01";
    if !request.windows(asks.len()).any(|bytes| bytes == asks) {
        return Reply::Honest;
    }
    let refusal = doc! {
        "ok": 0.0,
        "errmsg": "cannot use 'j' option when a host does not have journaling enabled",
        "code": 2,
        "codeName": "BadValue",
    };
    let refusal = to_vec(&refusal).unwrap();
    let length = (HEADER + 5 + refusal.len()) as i32;
    let mut answer = Vec::new();
    answer.extend(length.to_le_bytes());
    answer.extend(0_i32.to_le_bytes());
    // The answer has the number of the request.
    answer.extend(&request[4..8]);
    answer.extend(OP_MSG.to_le_bytes());
    answer.extend([0; 5]);
    answer.extend(refusal);
    Reply::Says(answer)
}

#[tokio::test]
async fn a_server_without_a_journal_is_told_as_what_it_is_and_can_be_used_all_the_same() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let server = fixture.options().await.hosts[0].to_string();
    let liar = Liar::to(server).await;
    liar.lie(Arc::new(without_a_journal));
    let options = fixture.options_at(liar.address, "").await;
    let collection = fixture.collection_with(options);
    let store = MongoStore::new(&collection);
    let leases = Leases::new(store.clone());
    let guarded = GuardedCollection::new(&collection, Fence::new(7));
    let honest = beside(&fixture.collection().await);
    MongoDistributedLock::new(&honest).prepare().await.unwrap();
    let locks = MongoDistributedLock::new(&beside(&collection));
    let failures = [
        leases.acquire("key", LONG).await.map(drop).unwrap_err(),
        leases.evict("key").await.map(drop).unwrap_err(),
        leases.purge(LONG).await.map(drop).unwrap_err(),
        store.prepare().await.unwrap_err(),
        guarded.claim(7).await.map(drop).unwrap_err(),
        locks.increment("key", LONG).await.map(drop).unwrap_err(),
    ];
    for error in failures {
        assert!(matches!(error, Error::NoJournal { .. }), "{error:?}");
        assert!(!error.is_retryable() && !error.is_ambiguous());
        assert!(error.to_string().contains("journal(false)"), "{error}");
    }
    let leases = Leases::new(store.journal(false));
    let lease = leases.acquire("key", LONG).await.unwrap();
    lease.release().await.unwrap();
}

//! Limiters on MongoDB: what is sent and stored, and what a bad network costs.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::{
    Error, Key, Leases, MongoStore, Store,
    store::{PermitAnswer, PermitId, PermitRequest, Quota},
};
use leasehold_tests::{long, permits, proxy::Proxy};
use mongodb::{
    Collection,
    bson::{Bson, DateTime, Document, doc},
};
use tokio::time::Instant;

use super::{ATTEMPTS, Commands, DATABASE, Engine, Fixture};

const BOTH: [Engine; 2] = [Engine::MongoDb, Engine::MongoDbReplicaSet];
/// A window that outlasts any test.
const ENDLESS: Duration = Duration::from_secs(300 * 24 * 60 * 60);

async fn watched(engine: Engine) -> (MongoStore, Collection<Document>, Commands) {
    let (collection, commands) = Fixture::new(engine).watched().await;
    (MongoStore::new(&collection), collection, commands)
}

fn fixed(limit: u32) -> Quota {
    Quota::fixed(limit, ENDLESS).unwrap()
}

fn ask(quota: Quota) -> PermitRequest {
    PermitRequest::new(Key::new("key").unwrap(), PermitId::random(), quota, 1)
}

/// The id of the limiter with windows of this length.
fn id_of(window: Duration) -> Document {
    let window = window.as_millis() as i64;
    doc! { "_id": { "limiter": "key", "window": window, "kind": "fixed" } }
}

fn id() -> Document {
    id_of(ENDLESS)
}

fn is_granted(answer: PermitAnswer) -> bool {
    matches!(answer, PermitAnswer::Granted { .. })
}

#[tokio::test]
async fn each_request_is_one_command_on_the_servers_shortest_path() {
    for engine in BOTH {
        let (store, collection, commands) = watched(engine).await;
        for (granted, what) in [
            (true, "the first"),
            (true, "the second"),
            (false, "a full one"),
        ] {
            let answer = store.permit(&ask(fixed(2))).await.unwrap();
            assert_eq!(is_granted(answer), granted, "{what}");
            let sent = commands.take();
            assert_eq!(sent.len(), 1, "{what}: {sent:?}");
            assert_eq!(sent[0].get_bool("upsert"), Ok(true), "{what}");
            let concern = sent[0].get_document("writeConcern").unwrap();
            assert_eq!(concern.get_bool("j"), Ok(true), "{what}");
        }
        store.permit(&ask(fixed(3))).await.unwrap();
        let mut sent = commands.take().remove(0);
        for field in ["lsid", "txnNumber", "$clusterTime", "$db", "writeConcern"] {
            sent.remove(field);
        }
        let plan = doc! { "explain": sent, "verbosity": "queryPlanner" };
        let database = collection.client().database(DATABASE);
        let plan = database.run_command(plan).await.unwrap().to_string();
        let shortest = ["IDHACK", "EXPRESS"].iter().any(|path| plan.contains(path));
        assert!(shortest, "{plan}");
    }
}

#[tokio::test]
async fn a_refusal_writes_nothing() {
    let (store, collection, _) = watched(Engine::MongoDbReplicaSet).await;
    store.permit(&ask(fixed(1))).await.unwrap();
    let namespace = collection.namespace().to_string();
    let oplog = collection
        .client()
        .database("local")
        .collection::<Document>("oplog.rs");
    let written = || async {
        oplog
            .count_documents(doc! { "ns": &namespace })
            .await
            .unwrap()
    };
    let (before, document) = (written().await, collection.find_one(id()).await.unwrap());
    let losers = join_all((0..50).map(|_| async { store.permit(&ask(fixed(1))).await }));
    for answer in losers.await {
        assert!(!is_granted(answer.unwrap()));
    }
    assert_eq!(written().await, before);
    assert_eq!(collection.find_one(id()).await.unwrap(), document);
    // The control: the comparison would show a grant.
    assert!(is_granted(store.permit(&ask(fixed(2))).await.unwrap()));
    assert_eq!(written().await, before + 1);
}

#[tokio::test]
async fn a_peek_is_one_read_and_writes_nothing() {
    let key = Key::new("key").unwrap();
    for engine in BOTH {
        let (store, collection, commands) = watched(engine).await;
        let peek = async |remaining| {
            commands.take();
            let left = store.peek(&key, &fixed(2)).await.unwrap();
            assert_eq!(left.remaining, remaining);
            assert_eq!(commands.names(), ["find"]);
        };
        // The first request of a store asks which kind of server it is.
        store.permit(&ask(fixed(2))).await.unwrap();
        collection.delete_one(id()).await.unwrap();
        peek(2).await;
        assert_eq!(collection.find_one(id()).await.unwrap(), None);
        store.permit(&ask(fixed(2))).await.unwrap();
        let document = collection.find_one(id()).await.unwrap();
        peek(1).await;
        assert_eq!(collection.find_one(id()).await.unwrap(), document);
    }
}

/// The unique id decides the race of the first requests: none gets an error, and each counts.
#[tokio::test]
async fn of_the_first_requests_at_once_each_counts() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        for round in 0..2 {
            let key = Key::new(format!("key {round}")).unwrap();
            let racers = (0..32).map(|_| async {
                let store = fixture.store().await;
                let request = PermitRequest::new(key.clone(), PermitId::random(), fixed(20), 1);
                is_granted(store.permit(&request).await.unwrap())
            });
            let granted = join_all(racers).await.into_iter().filter(|it| *it);
            assert_eq!(granted.count(), 20);
        }
    }
}

#[tokio::test]
async fn the_document_is_one_of_its_own() {
    let (store, collection, _) = watched(Engine::MongoDb).await;
    let request = ask(Quota::fixed(10, Duration::from_secs(3_600)).unwrap()).up_to(3);
    store.permit(&request).await.unwrap();
    let hour = id_of(Duration::from_secs(3_600));
    let stored = collection.find_one(hour).await.unwrap().unwrap();
    let fields: Vec<_> = stored.keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "_id",
            "limiter",
            "granted_at",
            "used",
            "last",
            "granted",
            "over_at"
        ]
    );
    assert_eq!(stored.get_i64("used"), Ok(3));
    assert_eq!(stored.get_str("last"), Ok(&*request.id.to_string()));
    let over = stored.get_datetime("over_at").unwrap().timestamp_millis();
    assert_eq!(over % 3_600_000, 0, "it moves once a window");
    // The limiter is not listed as a lock, and does not get in the way of one.
    let leases = Leases::new(store);
    let lease = leases.acquire("key", ENDLESS).await.unwrap();
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 2);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn what_is_not_a_limiter_is_named_and_left_alone() {
    let (store, collection, _) = watched(Engine::MongoDb).await;
    let now = DateTime::now();
    let mut whole = id();
    whole.extend(doc! {
        "limiter": 1, "granted_at": now, "used": 1_i64, "last": PermitId::random().to_string(),
        "granted": 1_i64, "over_at": now,
    });
    let mut others = vec![id()];
    for field in ["limiter", "granted_at", "used", "granted"] {
        for nonsense in [
            Bson::Null,
            "$$ROOT".into(),
            (-7.5).into(),
            Bson::Array(Vec::new()),
        ] {
            let mut other = whole.clone();
            other.insert(field, nonsense);
            others.push(other);
        }
    }
    // A document that was made by hand and has nothing but the id is a new limiter.
    collection.insert_one(others.remove(0)).await.unwrap();
    assert!(is_granted(store.permit(&ask(fixed(1))).await.unwrap()));
    for other in others {
        collection.replace_one(id(), &other).await.unwrap();
        let refused = store.permit(&ask(fixed(9))).await;
        assert!(
            matches!(refused, Err(Error::NotALimiter { .. })),
            "{other}: {refused:?}"
        );
        assert_eq!(collection.find_one(id()).await.unwrap(), Some(other));
    }
    let mut later = whole.clone();
    later.insert("limiter", 2);
    collection.replace_one(id(), &later).await.unwrap();
    let refused = store.permit(&ask(fixed(9))).await;
    assert!(
        matches!(refused, Err(Error::UnsupportedSchema { .. })),
        "{refused:?}"
    );
}

/// If the last grant is a little ahead of the server's clock, the limiter's clock stands still until then. If it is far
/// ahead, the clock of that grant was wrong.
#[tokio::test]
async fn a_grant_from_the_future_blocks_nobody_for_ever() {
    for engine in BOTH {
        let (store, collection, _) = watched(engine).await;
        let second = Quota::fixed(2, Duration::from_secs(1)).unwrap();
        let mut cases = vec![(600_000, false), (5_000, true)];
        let mut attempts = 0;
        while let Some((ahead, full)) = cases.pop() {
            store.permit(&ask(second)).await.unwrap();
            let start = Instant::now();
            let later = DateTime::from_millis(DateTime::now().timestamp_millis() + ahead);
            let change = doc! { "$set": { "granted_at": later, "used": 2_i64 } };
            let id = id_of(second.window());
            collection.update_one(id.clone(), change).await.unwrap();
            match store.permit(&ask(second)).await.unwrap() {
                PermitAnswer::Full { retry_in, .. } => {
                    assert!(full && retry_in <= Duration::from_secs(6), "{retry_in:?}");
                }
                PermitAnswer::Granted { granted_at, .. } => {
                    let before = granted_at.timestamp_millis() < later.timestamp_millis();
                    assert_ne!(full, before, "{granted_at}, and {later} is stored");
                    if full {
                        // On a machine that stood still for so long, the server's clock may get there first.
                        attempts += 1;
                        let (took, needs) = (start.elapsed(), Duration::from_millis(ahead as u64));
                        assert!(
                            attempts < ATTEMPTS && took >= needs * 9 / 10,
                            "granted after {took:?}, at attempt {attempts}"
                        );
                        cases.push((ahead, full));
                    }
                }
            }
            collection.delete_one(id).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_network_that_loses_answers_breaks_no_limit() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    let client = async || {
        let options = fixture.options_at(proxy.address, "&maxPoolSize=1000");
        let options = options.await;
        let locks = fixture.collection_with(options);
        Arc::new(MongoStore::new::<Document>(&locks)) as Arc<dyn Store>
    };
    let clients = [client().await, client().await];
    let calls = if long() { 10 } else { 4 };
    proxy.lose_share_of_answers(0.2, 1, &["findAndModify"]);
    let table = permits::through_a_bad_network(clients, calls).await;
    table.print(&format!("{} answers were lost", proxy.lost()));
    assert!(table.most() <= permits::LIMIT);
    assert!(proxy.lost() >= 3, "{} answers were lost", proxy.lost());
}

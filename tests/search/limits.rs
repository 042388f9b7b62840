//! Limiters on the search engines: what is sent and stored, and what a bad network costs.

use std::{sync::Arc, time::Duration};

use elasticsearch::http::Method::{Delete, Get, Post, Put};
use futures::{TryStreamExt, future::join_all};
use leasehold::{
    Error, Filter, Key, PermitAttempt, Store,
    store::{PermitAnswer, PermitId, PermitRequest, Quota},
};
use leasehold_tests::{
    hostile::{limiters, with_times},
    long, permits,
    proxy::Proxy,
};
use serde_json::{Value, json};

use super::{BOTH, Engine, Fixture, LONG, granted, leases, patience::until_quick};

/// A window that is longer than any test.
const ENDLESS: Duration = Duration::from_secs(300 * 24 * 60 * 60);

fn fixed(limit: u32) -> Quota {
    Quota::fixed(limit, ENDLESS).unwrap()
}

fn ask(quota: Quota) -> PermitRequest {
    PermitRequest::new(Key::new("key").unwrap(), PermitId::random(), quota, 1)
}

fn is_granted(answer: PermitAnswer) -> bool {
    matches!(answer, PermitAnswer::Granted { .. })
}

async fn take(store: &dyn Store, quota: Quota) -> bool {
    is_granted(store.permit(&ask(quota)).await.unwrap())
}

/// All documents of the index, as they are stored.
async fn documents(fixture: &Fixture) -> Vec<Value> {
    fixture
        .ask(Post, &format!("{}/_refresh", fixture.alias), Value::Null)
        .await;
    let path = format!(
        "{}/_search?version=true&seq_no_primary_term=true",
        fixture.alias
    );
    let found = fixture.ask(Get, &path, Value::Null).await;
    found["hits"]["hits"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_request_is_one_bulk_of_one_and_a_refusal_writes_nothing() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.store_at(&format!("http://{}", proxy.address));
        let path = format!("POST /{}/_bulk?", fixture.write_alias().replace('-', "%2D"));
        // With this request the store finds its index. It does so only once.
        leases(store.clone()).inspect("key").await.unwrap();
        proxy.http_requests();
        let one_bulk = |what: &str| {
            let requests = proxy.http_requests();
            assert_eq!(requests.len(), 1, "{what}: {requests:?}");
            assert!(requests[0].starts_with(&path), "{what}: {requests:?}");
            assert!(!requests[0].contains("refresh"), "{what}: {requests:?}");
        };
        assert!(take(&*store, fixed(2)).await);
        one_bulk("the first");
        assert!(take(&*store, fixed(2)).await);
        one_bulk("the second");
        let before = documents(&fixture).await;
        for _ in 0..10 {
            assert!(!take(&*store, fixed(2)).await);
            one_bulk("a full one");
        }
        let key = Key::new("key").unwrap();
        for (key, remaining) in [(key, 0), (Key::new("other").unwrap(), 2)] {
            let left = store.peek(&key, &fixed(2)).await.unwrap();
            assert_eq!(left.remaining, remaining);
            one_bulk("a peek");
        }
        let after = documents(&fixture).await;
        assert_eq!(before[0]["_seq_no"], after[0]["_seq_no"]);
        assert_eq!(before, after);
        // The control: the comparison would show a grant.
        assert!(take(&*store, fixed(3)).await);
        assert_ne!(
            before[0]["_seq_no"],
            documents(&fixture).await[0]["_seq_no"]
        );
    }
}

/// The first requests race to create the document, and every grant is written to it.
#[tokio::test]
async fn of_many_requests_at_once_each_counts() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let racers = (0..16).map(|_| async { take(&*fixture.store(), fixed(10)).await });
        let granted = join_all(racers).await.into_iter().filter(|it| *it);
        assert_eq!(granted.count(), 10, "{engine:?}");
    }
}

#[tokio::test]
async fn a_repeated_grant_is_written_again() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (store, request) = (fixture.store(), ask(fixed(2)));
        assert!(is_granted(store.permit(&request).await.unwrap()));
        let before = documents(&fixture).await;
        assert!(is_granted(store.permit(&request).await.unwrap()));
        let after = documents(&fixture).await;
        assert_ne!(before[0]["_seq_no"], after[0]["_seq_no"]);
        assert_eq!(after[0]["_source"]["used"], 1);
    }
}

#[tokio::test]
async fn the_document_is_one_of_its_own() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let request = ask(Quota::fixed(10, Duration::from_secs(3_600)).unwrap()).up_to(3);
        fixture.store().permit(&request).await.unwrap();
        let stored = documents(&fixture).await.remove(0);
        let id = stored["_id"].as_str().unwrap();
        assert!(id.starts_with("limiter:") && id.len() == 44, "{id}");
        let source = &stored["_source"];
        assert_eq!(source["key"], "key");
        assert_eq!(source["limiter"], 1);
        assert_eq!(source["window"], 3_600_000);
        assert_eq!(source["kind"], "fixed");
        assert_eq!(source["used"], 3);
        assert_eq!(source["last"], request.id.to_string());
        assert_eq!(source.get("now"), None);
        // The limiter is not listed as a lock. The lock whose key is the limiter's id is another document.
        let leases = leases(fixture.store());
        let locks: Vec<_> =
            futures::StreamExt::collect(leases.list(leasehold::Filter::new())).await;
        assert!(locks.is_empty(), "{locks:?}");
        leases
            .acquire(id, LONG)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(documents(&fixture).await.len(), 2);
    }
}

#[tokio::test]
async fn what_is_not_a_limiter_is_named_and_left_alone() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        assert!(take(&*store, fixed(9)).await);
        let stored = documents(&fixture).await.remove(0);
        let path = format!("{}/_doc/{}", fixture.alias, stored["_id"].as_str().unwrap());
        let mut others: Vec<_> = ["limiter", "key", "used", "granted", "granted_at"]
            .into_iter()
            .map(|field| {
                let mut other = stored["_source"].clone();
                other.as_object_mut().unwrap().remove(field);
                other
            })
            .collect();
        others.push(json!({ "key": "key", "schema": leasehold::store::SCHEMA, "fence": 7 }));
        for other in others {
            fixture.ask(Put, &path, other.clone()).await;
            // There would be permits left.
            let refused = store.permit(&ask(fixed(9))).await;
            assert!(
                matches!(refused, Err(Error::NotALimiter { .. })),
                "{other}: {refused:?}"
            );
            assert_eq!(documents(&fixture).await[0]["_source"], other);
        }
        let mut later = stored["_source"].clone();
        later["limiter"] = json!(2);
        fixture.ask(Put, &path, later).await;
        let refused = store.permit(&ask(fixed(9))).await;
        assert!(
            matches!(refused, Err(Error::UnsupportedSchema { .. })),
            "{refused:?}"
        );
    }
}

/// The index was made by a version without limiters. The error says what to do, and `prepare` does it.
#[tokio::test]
async fn an_index_without_limiters_is_brought_up_to_date() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let date = json!({ "type": "date", "format": "epoch_millis" });
        let index = json!({
            "mappings": {
                "dynamic": "strict",
                "_meta": { "leasehold_schema": 1 },
                "properties": { "key": { "type": "keyword" }, "expires_at": date },
            },
            "aliases": { &fixture.alias: {} },
        });
        fixture.ask(Put, &fixture.index(), index).await;
        let limiter = leases(fixture.store()).limiter("key", 1, ENDLESS);
        let refused = limiter.try_permit().await;
        assert!(
            matches!(refused, Err(Error::NotPrepared { .. })),
            "{refused:?}"
        );
        fixture.prepare().await.unwrap();
        let granted = limiter.try_permit().await;
        assert!(
            matches!(granted, Ok(PermitAttempt::Granted(_))),
            "{granted:?}"
        );
    }
}

#[tokio::test]
async fn without_an_index_nothing_is_created() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let refused = fixture.store().permit(&ask(fixed(1))).await;
        assert!(
            matches!(refused, Err(Error::NotPrepared { .. })),
            "{refused:?}"
        );
        let missing = fixture.ask(Get, &fixture.alias, Value::Null).await;
        assert_eq!(missing["status"], 404);
    }
}

/// If the last grant is a little ahead of the node's clock, the limiter's clock stands still until then. If it is far
/// ahead, the clock of that grant was wrong.
#[tokio::test]
async fn a_grant_from_the_future_blocks_nobody_for_ever() {
    const WINDOW_MS: i64 = 1_000;
    const LITTLE_MS: i64 = 5_000;
    const FAR_MS: i64 = 5 * 60 * 1_000;
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let second = Quota::fixed(2, Duration::from_millis(WINDOW_MS as u64)).unwrap();
        assert!(take(&*store, second).await);
        let stored = documents(&fixture).await.remove(0);
        let path = format!("{}/_doc/{}", fixture.alias, stored["_id"].as_str().unwrap());
        // Writes that the window was full at a time that is this far ahead of the server's, asks for a permit, and
        // returns the time of that grant and the answer.
        let ask_ahead = async |ahead: i64| {
            let mut changed = stored["_source"].clone();
            let now = store.inspect(&ask(second).key).await.unwrap();
            let granted_at = now.unwrap().now.timestamp_millis() + ahead;
            changed["granted_at"] = json!(granted_at);
            changed["used"] = json!(2);
            fixture.ask(Put, &path, changed).await;
            (granted_at, store.permit(&ask(second)).await.unwrap())
        };
        // The answer to an inspection of this lock has the server's time.
        granted(&store, &super::ask()).await;
        let (full_at, retry_in) = until_quick(async || match ask_ahead(LITTLE_MS).await {
            (full_at, PermitAnswer::Full { retry_in, .. }) => Some((full_at, retry_in)),
            (full_at, PermitAnswer::Granted { granted_at, .. }) => {
                // In the window of that grant, and before it, no permit was left.
                let window = |millis: i64| millis.div_euclid(WINDOW_MS);
                assert!(window(granted_at.timestamp_millis()) > window(full_at));
                None
            }
        })
        .await;
        let longest = Duration::from_millis((LITTLE_MS + WINDOW_MS) as u64);
        assert!(retry_in <= longest, "{retry_in:?} of {full_at}");
        match ask_ahead(FAR_MS).await {
            (_, PermitAnswer::Full { retry_in, .. }) => panic!("full for {retry_in:?}"),
            (full_at, PermitAnswer::Granted { granted_at, .. }) => {
                assert!(granted_at.timestamp_millis() < full_at);
            }
        }
    }
}

#[tokio::test]
async fn a_network_that_loses_answers_breaks_no_limit() {
    let lossy = async |engine: Engine| {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let url = format!("http://{}", proxy.address);
        let clients = [fixture.store_at(&url), fixture.store_at(&url)];
        proxy.lose_share_of_answers(0.2, 1, &["_bulk"]);
        // How many requests are sent depends on how soon the engine answers.
        let call = async || permits::through_a_bad_network(clients.clone(), 10).await;
        // The end of one call and the beginning of the next may be in one window, so their tables are added.
        let mut table = call().await;
        while proxy.lost() < 3 {
            table.add(&call().await);
        }
        table.print(&format!("{engine:?}: {} answers were lost", proxy.lost()));
        assert!(table.most() <= permits::LIMIT);
    };
    join_all(BOTH.map(lossy)).await;
}

/// A lock whose key is the id of a limiter's document does not affect the limiter, and the limiter does not affect the
/// lock.
#[tokio::test]
async fn a_lock_with_the_name_of_a_limiters_document_spoils_nothing() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        assert!(take(&*store, fixed(9)).await);
        let id = documents(&fixture).await.remove(0)["_id"].take();
        fixture
            .ask(
                Delete,
                &format!(
                    "{}/_doc/{}?refresh=true",
                    fixture.alias,
                    id.as_str().unwrap()
                ),
                Value::Null,
            )
            .await;
        let leases = leases(store.clone());
        let lease = leases.acquire(id.as_str().unwrap(), LONG).await.unwrap();
        assert!(take(&*store, fixed(9)).await, "the limiter works beside it");
        lease.renew().await.unwrap();
        let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].key.as_str(), id.as_str().unwrap());
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn hostile_limiters_are_judged_alike() {
    for engine in BOTH {
        // The scripts are the same on both engines, so a short run tries a part of the documents on the second.
        let every = match engine {
            Engine::OpenSearch if !long() => 7,
            _ => 1,
        };
        let fixture = Fixture::prepared(engine).await;
        let store: Arc<dyn Store> = Arc::new(fixture.store());
        for kind in limiters::kinds() {
            let made = kind.request();
            store.permit(&made).await.unwrap();
            let stored = documents(&fixture).await;
            let mut ids = stored
                .iter()
                .filter(|it| it["_source"]["kind"] == kind.word);
            let id = ids.next().unwrap()["_id"].as_str().unwrap().to_owned();
            let path = format!("{}/_doc/{id}", fixture.alias);
            let put = async |document: &Value| {
                let now = chrono::Utc::now().timestamp_millis();
                let document = with_times(document, &|seconds| json!(now + seconds * 1_000));
                let stored = fixture.ask(Put, &path, document).await;
                // The mapping refuses some documents.
                stored["error"].is_null()
            };
            let get = async || {
                let mut found = fixture.ask(Get, &path, Value::Null).await;
                found["found"].as_bool()?.then(|| found.take())
            };
            let mut shapes = kind.shapes();
            let mut other = kind.used(3);
            other["key"] = json!("other");
            shapes.push((limiters::Verdict::NoLimiter, other));
            let shapes: Vec<_> = shapes.into_iter().step_by(every).collect();
            let taken = limiters::are_judged_alike(&store, kind, &shapes, put, get).await;
            let (least, all) = (40_usize.div_ceil(every), shapes.len());
            assert!(taken >= least, "the mapping took {taken} of {all}");
        }
    }
}

//! Servers that answer nonsense, as HTTP and as JSON, to both stores.

use std::{cell::Cell, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use leasehold::{
    ElasticsearchStore, Error, Fence, IndexStore, Key, OpenSearchStore, Store,
    fencing::GuardedIndex,
    store::{LeaseId, ReleaseAnswer, ReleaseRequest},
};
use leasehold_tests::{
    every,
    liar::{Liar, Lie, Reply, always},
    long,
};
use serde_json::{Value, json};

use super::{
    BOTH, Engine, builder, elasticsearch, leases, least_mapping, opensearch, told::is_told,
};

/// The time limit of a call of the handle, where no answer comes.
const CALL: Duration = Duration::from_millis(300);
/// For how long the handle retries, where every answer is nonsense.
pub const WAIT: Duration = Duration::from_millis(30);
/// How many lies are tried at the same time.
pub const AT_ONCE: usize = 4;

/// The beginnings of the requests that ask where the locks, or guarded documents, behind the alias `locks` are.
const WHERE: [&[u8]; 2] = [b"GET /locks,locks%2Dwrite?", b"GET /locks?"];
/// The index in the answer to it.
pub const INDEX: &str = "locks-v1";

/// The same lie in answer to all requests but the one that asks where the locks are.
pub fn located(lie: Lie) -> Lie {
    let index = json!({
        "aliases": { "locks": {}, "locks-write": {} },
        "mappings": least_mapping(),
        "settings": { "index": {} },
    });
    let index = json!({ INDEX: index }).to_string();
    Arc::new(move |asked: &[u8]| {
        if WHERE.iter().any(|it| asked.starts_with(it)) {
            Reply::Says(http("200 OK", index.as_bytes()))
        } else {
            lie(asked)
        }
    })
}

/// The engines whose stores get the next lie: in a short run one of the two, in turn for each thread. Their stores differ
/// in the client alone.
fn engines() -> Vec<Engine> {
    thread_local! {
        static TURN: Cell<usize> = const { Cell::new(0) };
    }
    let turn = TURN.replace(TURN.get() + 1);
    let in_turn = BOTH.into_iter().cycle().skip(turn % BOTH.len());
    in_turn.take(engines_of_a_lie()).collect()
}

/// How many engines get each lie.
pub fn engines_of_a_lie() -> usize {
    if long() { BOTH.len() } else { 1 }
}

fn store_at(url: &str, engine: Engine) -> Arc<dyn Store> {
    match engine {
        Engine::OpenSearch => Arc::new(OpenSearchStore::new(opensearch(url), "locks")),
        _ => Arc::new(ElasticsearchStore::new(elasticsearch(url), "locks")),
    }
}

/// A store for each of these [`engines`]. It finds its index, and gets this lie in answer to all its other requests.
pub async fn stores(lie: Lie) -> Vec<Arc<dyn Store>> {
    let url = url(&Liar::saying(located(lie)).await);
    let engines = engines().into_iter();
    engines.map(|engine| store_at(&url, engine)).collect()
}

/// As [`stores`], on Elasticsearch.
pub async fn store(lie: Lie) -> Arc<dyn Store> {
    let url = url(&Liar::saying(located(lie)).await);
    store_at(&url, Engine::Elasticsearch)
}

fn url(liar: &Liar) -> String {
    format!("http://{}", liar.address)
}

/// An answer of a cluster.
pub fn http(status: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn saying(status: &str, body: &[u8]) -> Lie {
    always(Reply::Says(http(status, body)))
}

/// A lie that gives this answer to an update, and to each update of a bulk.
pub fn each(update: Value) -> Lie {
    Arc::new(move |asked: &[u8]| Reply::Says(http("200 OK", of_each(&update, asked).as_bytes())))
}

/// The answer of [`each`] to this request.
pub fn of_each(update: &Value, asked: &[u8]) -> String {
    let told = |id: &String| {
        let mut told = update.clone();
        for (field, value) in [
            ("_index", json!(INDEX)),
            ("_id", json!(id)),
            ("status", json!(200)),
        ] {
            if told.get(field).is_none() {
                told[field] = value;
            }
        }
        told
    };
    let answers: Vec<_> = ids(asked).iter().map(told).collect();
    let mut answer = answers.first().unwrap_or(update).clone();
    let items = answers.iter().map(|update| json!({ "update": update }));
    answer["items"] = items.collect();
    answer["errors"] = json!(update.get("error").is_some());
    answer["docs"] = json!(answers);
    answer.to_string()
}

/// The ids of the documents that a request changes or reads: a bulk has a line for each, and a get has a list.
pub fn ids(asked: &[u8]) -> Vec<String> {
    let asked = String::from_utf8_lossy(asked);
    if asked.contains("/_bulk?") {
        let lines = asked.split(r#"{"update":{"_id":""#).skip(1);
        let ids = lines.filter_map(|line| line.split('"').next());
        return ids.map(str::to_owned).collect();
    }
    if let Some((_, list)) = asked.split_once(r#"{"ids":["#) {
        let list = list.split(']').next().unwrap_or_default();
        return list
            .split(',')
            .map(|id| id.trim_matches('"').to_owned())
            .collect();
    }
    Vec::new()
}

/// The error of an operation.
pub struct Told {
    pub name: &'static str,
    pub error: Error,
}

/// Checks that everything fails, with a message that is one short sentence: the operations of a handle, those of a
/// holder, `prepare`, `check` and guarded documents. Each is asked of stores on these [`engines`]: of stores that have
/// found their index before, and of stores that get the lie also in answer to where their index is.
pub async fn all_fail(what: &str, lie: Lie) -> Vec<Told> {
    let (mut all, engines) = (Vec::new(), engines());
    for is_located in [true, false] {
        let lie = if is_located {
            located(lie.clone())
        } else {
            lie.clone()
        };
        let liar = Liar::saying(lie).await;
        // This is a macro because the trait that both clients implement has no public name.
        macro_rules! outcomes {
            ($client:ident) => {{
                let client = $client(&url(&liar));
                let store = IndexStore::new(client.clone(), "locks");
                let mut outcomes = every::of_a_handle(&leases(store.clone()), WAIT).await;
                outcomes.extend(every::of_a_holder(&store).await);
                outcomes.push(("prepare", store.prepare().await));
                if !is_located {
                    outcomes.push(("check", store.check().await));
                }
                let guard = GuardedIndex::new(client, "locks", Fence::new(7));
                let document = json!({ "total": 1 });
                outcomes.push(("claim", guard.claim::<Value>("key").await.map(drop)));
                outcomes.push(("index", guard.index("key", &document).await));
                outcomes.push(("update", guard.update("key", &document).await.map(drop)));
                outcomes.push(("delete", guard.delete("key").await.map(drop)));
                (store.name(), outcomes)
            }};
        }
        for engine in &engines {
            let (store, outcomes) = match engine {
                Engine::OpenSearch => outcomes!(opensearch),
                _ => outcomes!(elasticsearch),
            };
            for (name, outcome) in outcomes {
                let Err(error) = outcome else {
                    panic!("{store}: {name} takes {what} for an answer");
                };
                is_told(&error, &liar.address.to_string());
                all.push(Told { name, error });
            }
        }
    }
    all
}

#[tokio::test]
async fn what_is_not_http_or_not_json_is_an_error_of_every_operation() {
    let deep = "[".repeat(100_000);
    let mut random = vec![0; 4_096];
    fastrand::Rng::with_seed(5).fill(&mut random);
    let short = b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n{\"result\":".to_vec();
    let endless_head = b"HTTP/1.1 200 OK\r\nx: y".repeat(100);
    let itself = "HTTP/1.1 307 Temporary Redirect\r\nlocation: /\r\ncontent-length: 0\r\n\r\n";
    for (what, lie) in [
        ("random bytes", always(Reply::SaysAndGoes(random.clone()))),
        (
            "nothing before the end",
            always(Reply::SaysAndGoes(Vec::new())),
        ),
        ("half an answer", always(Reply::SaysAndGoes(short))),
        ("a strange head", always(Reply::SaysAndGoes(endless_head))),
        ("a circle", always(Reply::Says(itself.into()))),
        ("no body", saying("200 OK", b"")),
        ("a page", saying("200 OK", b"<html>please log in</html>")),
        ("random text", saying("200 OK", &random)),
        ("a deep list", saying("200 OK", deep.as_bytes())),
        ("a number without end", saying("200 OK", b"1e999999")),
        (
            "half a surrogate",
            saying("200 OK", br#"{"result":"\ud800"}"#),
        ),
        (
            "a page that was not found",
            saying("404 Not Found", b"<html></html>"),
        ),
        ("a status of nobody", saying("999 Hm", b"{}")),
    ] {
        for Told { error, .. } in all_fail(what, lie).await {
            assert!(
                !matches!(error, Error::NotALock { .. }),
                "{what}: {error:?}"
            );
        }
    }
}

/// The caller gets an error in time. The request ends by itself, later.
#[tokio::test]
async fn an_answer_that_never_ends_is_given_up_in_time() {
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n";
    for reply in [
        Reply::Nothing,
        Reply::SaysSlowly(head.to_vec()),
        Reply::SaysSlowly(b"HTTP/1.1 200 OK\r\nx:".to_vec()),
    ] {
        for store in stores(always(reply.clone())).await {
            let leases = builder(store).call_timeout(CALL).build();
            for (name, outcome) in every::of_a_handle(&leases, CALL).await {
                let error = outcome.unwrap_err();
                let told = matches!(error, Error::TimedOut { .. });
                assert!(told && error.is_ambiguous(), "{name}, {reply:?}: {error:?}");
            }
        }
    }
}

#[tokio::test]
async fn json_of_another_shape_is_an_error_of_every_operation() {
    let bodies = [
        json!({}),
        json!([]),
        json!(null),
        json!(7),
        json!("text"),
        json!({ "result": 7, "get": 7, "items": 7, "hits": 7, "deleted": "7", "acknowledged": 1 }),
        json!({ "result": {}, "get": [], "items": {}, "hits": [], "deleted": -7 }),
        json!({ "items": [], "hits": { "hits": {} }, "deleted": 1.5 }),
        json!({ "items": [7], "hits": { "hits": 7 }, "deleted": null }),
        json!({ "items": [{}, {}], "hits": { "hits": [7] } }),
        json!({ "items": [{ "update": {} }, { "update": 7 }], "hits": { "hits": [{}] } }),
        json!({ "items": [{ "update": { "status": 1e300, "result": [] } }] }),
        json!({ "error": 7, "acknowledged": "true" }),
        json!({ "error": { "root_cause": [], "type": 7, "reason": {} }, "acknowledged": false }),
    ];
    let fails = async |body: Value| {
        let text = body.to_string();
        all_fail(&text, saying("200 OK", text.as_bytes())).await;
    };
    stream::iter(bodies)
        .for_each_concurrent(AT_ONCE, fails)
        .await;
}

/// Operations that need more than the word that the change was made return an error.
#[tokio::test]
async fn an_answer_without_its_document_or_its_time_is_an_error() {
    for (result, source) in [
        ("updated", Value::Null),
        ("noop", json!({ "schema": "leasehold.lock.2" })),
        (
            "noop",
            json!({ "schema": leasehold::store::SCHEMA, "fence": "x", "expires_at": 1 }),
        ),
        (
            "noop",
            json!({ "schema": leasehold::store::SCHEMA, "fence": 1, "holders": [{}], "expires_at": 9, "now": 5 }),
        ),
        ("created", timeless_lock()),
        // It is not known whether anybody holds the key.
        ("noop", timeless_lock()),
    ] {
        let text = json!({ "result": result, "get": { "_source": source } });
        for store in stores(each(text.clone())).await {
            let mut outcomes = every::of_a_handle(&leases(store.clone()), WAIT).await;
            outcomes.extend(every::of_a_holder(&*store).await);
            for (name, outcome) in outcomes {
                let needs_none = match name {
                    "release" | "release holding" | "remove_expired" => true,
                    // An eviction needs the names of the evicted leases, and no time.
                    "evict" => source == timeless_lock(),
                    _ => false,
                };
                assert!(
                    needs_none || outcome.is_err(),
                    "{}: {name} takes {text} for an answer",
                    store.name()
                );
            }
        }
    }
}

/// A client that sends one change gets one item. With any other number it does not know whether the change was made.
#[tokio::test]
async fn a_bulk_of_one_is_answered_by_one_item() {
    let update = json!({ "status": 200, "result": "updated", "_index": INDEX, "_id": "key" });
    let items =
        |number| json!({ "errors": false, "items": vec![json!({ "update": update }); number] });
    let release = ReleaseRequest::new(Key::new("key").unwrap(), LeaseId::random());
    for (answer, is_one) in [
        (items(1), true),
        (items(0), false),
        (items(2), false),
        (update.clone(), false),
    ] {
        let text = answer.to_string();
        for store in stores(saying("200 OK", text.as_bytes())).await {
            match store.release(&release).await {
                Ok(released) => assert!(is_one && released == ReleaseAnswer::Released, "{text}"),
                Err(error) => assert!(!is_one && error.is_ambiguous(), "{text}: {error:?}"),
            }
        }
    }
}

/// The refusal is that of an answer with an error status.
#[tokio::test]
async fn a_refusal_of_another_shape_is_an_error_of_every_operation() {
    let mut chain = json!({ "reason": "at last" });
    for _ in 0..60 {
        chain = json!({ "caused_by": chain });
    }
    let errors = [
        json!(7),
        json!([]),
        json!(null),
        json!("text"),
        json!({ "root_cause": 7, "type": [], "reason": 7, "caused_by": 7 }),
        json!({ "root_cause": [7], "caused_by": { "caused_by": [] } }),
        json!({ "root_cause": [{ "type": {}, "reason": null }] }),
        chain,
    ];
    let mut lies = Vec::new();
    for error in &errors {
        for status in [
            "400 Bad Request",
            "409 Conflict",
            "413 Too Large",
            "500 Failed",
        ] {
            let text = json!({ "error": error, "status": "?" }).to_string();
            lies.push((text.clone(), saying(status, text.as_bytes())));
        }
        for status in [400, 409, 413, 500] {
            let update = json!({ "error": error, "status": status });
            lies.push((update.to_string(), each(update)));
        }
    }
    let fails = async |(what, lie): (String, Lie)| drop(all_fail(&what, lie).await);
    stream::iter(lies).for_each_concurrent(AT_ONCE, fails).await;
}

pub fn lock() -> Value {
    json!({
        "key": "key", "schema": leasehold::store::SCHEMA, "fence": 7, "expires_at": 9, "written_at": 4, "now": 5,
        "holders": [{
            "lease": "00000000-0000-4000-8000-000000000000", "owner": "me", "mode": "shared",
            "permits": 3, "fence": 7, "acquired_at": 1, "expires_at": 9, "note": "nightly",
        }],
        "evicted": [],
    })
}

fn timeless_lock() -> Value {
    let mut lock = lock();
    lock["now"] = Value::Null;
    lock["written_at"] = Value::Null;
    lock
}

/// The answer that an update changed nothing in this document. A search finds the document too.
pub fn noop(source: &Value) -> Value {
    let hit = json!({ "_index": INDEX, "_id": "key", "sort": ["key", 0, ""], "_source": source, "fields": { "now": [5] } });
    json!({
        "status": 200, "result": "noop", "get": { "_source": source }, "timed_out": false,
        "hits": { "total": { "value": 1, "relation": "eq" }, "hits": [hit] },
        "_shards": { "total": 1, "successful": 1, "failed": 0 },
    })
}

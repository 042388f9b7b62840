//! Clusters that cannot be reached, that refuse or are overloaded, and servers that are no clusters.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use elasticsearch::http::Method::Put;
use futures::future::{join, join_all};
use leasehold::{
    ElasticsearchStore, Error, Filter, Key, Leases, Store,
    store::{AcquireRequest, LeaseId, ListRequest, RenewRequest},
};
use leasehold_tests::{
    liar::{Liar, Lie, Reply, always},
    proxy::Proxy,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
};

use super::{
    BOTH, Engine, Fixture, LONG, elasticsearch, leases, least_mapping,
    nonsense::{INDEX, http, located},
    patience::{answered_error, until_answered, with_short_waits},
    refusals,
    told::is_told,
};

/// Everything of an error that a person or a log may get to see.
pub fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn an_unreachable_cluster_is_named_as_such() {
    // The port is taken, so no other program uses it meanwhile, and nobody listens on it.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let store = fixture.store_at(&format!("http://somebody:hunter2@{address}"));
        let leases = leases(store);
        let errors = [
            leases.try_acquire("key", LONG).await.map(drop).unwrap_err(),
            leases.inspect("key").await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
            assert!(!everything(&error).contains("hunter2"), "{error:?}");
            is_told(&error, &address.to_string());
        }
        assert!(!format!("{leases:?}").contains("hunter2"));
    }
}

/// With the lease id a retry is harmless, whether the request or its answer was lost.
#[tokio::test]
async fn a_connection_that_drops_before_or_after_the_request_is_ambiguous() {
    for engine in BOTH {
        for lost in [Proxy::lose_the_answer_to, Proxy::lose_the_request] {
            let fixture = Fixture::prepared(engine).await;
            let proxy = Proxy::to(fixture.host()).await;
            let store = fixture.store_at(&format!("http://{}", proxy.address));
            let leases = leases(store.clone());

            lost(&proxy, "_bulk");
            let key = Key::new("bare").unwrap();
            let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
            let error = store.acquire(&request).await.unwrap_err();
            assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
            assert!(error.is_retryable() && error.is_ambiguous());

            lost(&proxy, "_bulk");
            let lease = leases.acquire("key", LONG).await.unwrap();
            let state = leases.inspect("key").await.unwrap().unwrap();
            let holders: Vec<_> = state.holders.iter().map(|it| it.lease).collect();
            assert_eq!(holders, [lease.id()]);
            lost(&proxy, "_bulk");
            lease.renew().await.unwrap();
            lost(&proxy, "_bulk");
            lease.release().await.unwrap();
            assert_eq!(proxy.cuts(), 4);
            assert!(leases.inspect("key").await.unwrap().unwrap().is_free());
        }
    }
}

/// Leases on a server that gives this answer to every request.
async fn answering(status: &'static str, kind: &'static str, body: &'static str) -> Leases {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 1 << 16];
                while let Ok(1..) = connection.read(&mut request).await {
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n\
                         content-length: {length}\r\n\r\n{body}"
                    );
                    if connection.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    leases(ElasticsearchStore::new(elasticsearch(&url), "locks"))
}

/// The answer of a node that has no such index, or of one that does not know it yet because it is starting.
pub fn of_no_index(request: &[u8], starts: bool) -> Reply {
    let request = String::from_utf8_lossy(request);
    let (status, body) = match request.contains("_search") && starts {
        true => (
            "503 Service Unavailable",
            r#"{"status":503,"error":{"type":"cluster_block_exception","reason":"state not recovered"}}"#,
        ),
        false if request.contains("_bulk") => (
            "200 OK",
            r#"{"errors":true,"items":[{"update":{"status":404,"error":{"type":"index_not_found_exception","reason":"no such index"}}}]}"#,
        ),
        false => (
            "404 Not Found",
            r#"{"status":404,"error":{"type":"index_not_found_exception","reason":"no such index"}}"#,
        ),
    };
    Reply::Says(http(status, body.as_bytes()))
}

/// If a second index got the aliases, no process could use the first one any more.
#[tokio::test]
async fn nothing_is_created_on_the_word_of_a_starting_node() {
    for starts in [true, false] {
        let created = Arc::new(AtomicUsize::new(0));
        let count = created.clone();
        let liar = Liar::saying(Arc::new(move |request: &[u8]| {
            if request.starts_with(b"PUT ") {
                count.fetch_add(1, SeqCst);
            }
            of_no_index(request, starts)
        }));
        let url = format!("http://{}", liar.await.address);
        let store = ElasticsearchStore::new(elasticsearch(&url), "locks");
        let error = store.prepare().await.unwrap_err();
        assert_eq!(error.is_retryable(), starts, "{error:?}");
        assert_eq!(created.load(SeqCst), usize::from(!starts));
    }
}

/// A conflict makes the store check the index. Meanwhile, and if the check is not answered, the index counts as before.
#[tokio::test]
async fn after_a_conflict_the_index_is_known_until_the_cluster_says_otherwise() {
    let index = |pipeline: &str| {
        let index = json!({
            "aliases": { "locks": {}, "locks-write": {} },
            "mappings": least_mapping(),
            "settings": { "index": { "default_pipeline": pipeline } },
        });
        Reply::Says(http(
            "200 OK",
            json!({ INDEX: index }).to_string().as_bytes(),
        ))
    };
    let conflict =
        json!({ "error": { "type": "version_conflict_engine_exception", "reason": "" } });
    let conflict = Reply::Says(http("409 Conflict", conflict.to_string().as_bytes()));
    for (checked, is_known) in [
        (Reply::Nothing, true),
        (index("_none"), true),
        (index("p"), false),
    ] {
        let [lookups, changes] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let counts = [lookups.clone(), changes.clone()];
        let (first, conflict) = (index("_none"), conflict.clone());
        let liar = Liar::saying(Arc::new(move |request: &[u8]| {
            if request.starts_with(b"GET ") {
                match counts[0].fetch_add(1, SeqCst) {
                    0 => first.clone(),
                    _ => checked.clone(),
                }
            } else if counts[1].fetch_add(1, SeqCst) == 0 {
                conflict.clone()
            } else {
                Reply::Says(http("200 OK", b"{}"))
            }
        }));
        let url = format!("http://{}", liar.await.address);
        let store = ElasticsearchStore::new(elasticsearch(&url), "locks");
        let key = Key::new("key").unwrap();
        let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        let error = store.acquire(&request).await.unwrap_err();
        assert!(matches!(error, Error::Contention { .. }), "{error:?}");
        assert_eq!(lookups.load(SeqCst), 2, "the index is not checked");
        let renewal = [RenewRequest::new(key, request.lease, LONG)];
        let renewed = store.renew(&renewal).await;
        // The first change was the acquire.
        assert_eq!(
            changes.load(SeqCst),
            1 + usize::from(is_known),
            "{renewed:?}"
        );
        let unprepared = matches!(renewed, Err(Error::NotPrepared { .. }));
        assert_eq!(unprepared, !is_known, "{renewed:?}");
    }
}

/// Nothing was sent to a lock, so nothing was carried out.
#[tokio::test]
async fn a_lookup_without_an_answer_is_not_ambiguous() {
    let liar = Liar::saying(always(Reply::Nothing)).await;
    let store =
        ElasticsearchStore::new(elasticsearch(&format!("http://{}", liar.address)), "locks");
    let key = Key::new("key").unwrap();
    let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
    let error = store.acquire(&request).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.is_retryable() && !error.is_ambiguous());
    is_told(&error, &liar.address.to_string());
}

/// A list that leaves out the locks of a shard would look complete.
#[tokio::test]
async fn a_search_of_a_part_of_the_index_is_no_list() {
    for (timed_out, failed) in [(false, 0), (true, 0), (false, 1)] {
        let found = json!({
            "timed_out": timed_out, "_shards": { "total": 2, "successful": 2 - failed, "failed": failed },
            "hits": { "total": { "value": 0, "relation": "eq" }, "hits": [] },
        });
        let lie: Lie =
            Arc::new(move |_: &[u8]| Reply::Says(http("200 OK", found.to_string().as_bytes())));
        let liar = Liar::saying(located(lie)).await;
        let store =
            ElasticsearchStore::new(elasticsearch(&format!("http://{}", liar.address)), "locks");
        let listed = store.list(&ListRequest::new(Filter::new(), None, 10)).await;
        assert_eq!(listed.is_ok(), !timed_out && failed == 0, "{listed:?}");
    }
}

/// For a while a node that starts knows of no index. It answers an update with that, and not with an error about its
/// start. The fault laboratory found this: it restarts the node under its clients.
#[tokio::test]
async fn an_index_that_a_starting_node_does_not_know_yet_is_no_missing_one() {
    for (starts, is_known) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut lie: Lie = Arc::new(move |request| of_no_index(request, starts));
        if is_known {
            // The client knows the index, because it has used it before.
            lie = located(lie);
        }
        let liar = Liar::saying(lie);
        let url = format!("http://{}", liar.await.address);
        let store = ElasticsearchStore::new(elasticsearch(&url), "locks");
        let request = AcquireRequest::exclusive(
            Key::new("key").unwrap(),
            LeaseId::random(),
            "me".into(),
            LONG,
        );
        for request in [request.clone(), request.shared()] {
            let error = store.acquire(&request).await.unwrap_err();
            assert_eq!(error.is_retryable(), starts, "{error:?}");
            assert_eq!(
                matches!(error, Error::NotPrepared { .. }),
                !starts,
                "{error:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_a_proxy_says_is_no_answer_of_the_cluster() {
    for status in [
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ] {
        let page = b"<html>no upstream</html>";
        for is_located in [false, true] {
            let mut lie = always(Reply::Says(http(status, page)));
            if is_located {
                lie = located(lie);
            }
            let url = format!("http://{}", Liar::saying(lie).await.address);
            let leases = leases(ElasticsearchStore::new(elasticsearch(&url), "locks"));
            let error = leases.try_acquire("key", LONG).await.map(drop).unwrap_err();
            assert!(error.is_retryable(), "{status}: {error:?}");
            is_told(&error, "127.0.0.1:");
            // Without an index, no change was sent.
            assert_eq!(error.is_ambiguous(), is_located, "{status}: {error:?}");
        }
    }
    // The answer is a page, as a login portal gives it.
    let leases = answering("200 OK", "text/html", "<html>please log in</html>").await;
    let error = leases.try_acquire("key", LONG).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(everything(&error).contains("not JSON"), "{error:?}");
    let leases = answering("405 Method Not Allowed", "text/html", "<html></html>").await;
    let error = leases.try_acquire("key", LONG).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

/// Leases on a server that refuses each change, in its item or the bulk as a whole.
async fn refusing(status: &'static str, kind: &str, in_the_item: bool) -> Leases {
    let code: u16 = status[..3].parse().unwrap();
    let error = json!({ "type": kind, "reason": "because" });
    let item = json!({ "update": { "_id": "key", "status": code, "error": error } });
    let in_item = json!({ "errors": true, "items": [item] }).to_string();
    let error = json!({ "root_cause": [error], "type": kind, "reason": "because" });
    let whole = json!({ "status": code, "error": error }).to_string();
    let lie = Liar::saying(located(Arc::new(move |request: &[u8]| {
        assert!(String::from_utf8_lossy(request).contains("/_bulk"));
        Reply::Says(if in_the_item {
            http("200 OK", in_item.as_bytes())
        } else {
            http(status, whole.as_bytes())
        })
    })));
    let url = format!("http://{}", lie.await.address);
    leases(ElasticsearchStore::new(elasticsearch(&url), "locks"))
}

#[tokio::test]
async fn an_overloaded_cluster_is_named_as_such() {
    for in_the_item in [true, false] {
        let kind = "es_rejected_execution_exception";
        let cluster = refusing("429 Too Many Requests", kind, in_the_item);
        for error in refusals(&cluster.await).await {
            assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
        }
    }
}

#[tokio::test]
async fn conflicts_that_never_end_are_contention() {
    for in_the_item in [true, false] {
        let cluster = refusing(
            "409 Conflict",
            "version_conflict_engine_exception",
            in_the_item,
        );
        for error in refusals(&cluster.await).await {
            assert!(matches!(error, Error::Contention { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
        }
    }
}

/// No node may have the only shard of the index.
#[tokio::test]
async fn a_primary_that_is_not_there_is_ambiguous() {
    join_all(BOTH.map(is_ambiguous_without_a_primary)).await;
}

async fn is_ambiguous_without_a_primary(engine: Engine) {
    let fixture = Fixture::new(engine);
    let nowhere = json!({
        "settings": { "index.routing.allocation.require._name": "nobody" },
        "mappings": least_mapping(),
        "aliases": { &fixture.alias: {}, fixture.write_alias(): {} },
    });
    let path = format!("{}?wait_for_active_shards=0", fixture.index());
    fixture.ask(Put, &path, nowhere).await;
    let key = Key::new("key").unwrap();
    let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
    let address = with_short_waits(fixture.host()).await;
    let store = fixture.store_at(&format!("http://{address}"));
    let shared = request.clone().shared();
    let (alone, shared) = join(
        answered_error(&*store, &request),
        answered_error(&*store, &shared),
    )
    .await;
    for error in [alone, shared] {
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        assert!(everything(&error).contains("503"), "{error:?}");
        is_told(&error, &address.to_string());
        assert!(
            everything(&error).contains("primary shard is not active"),
            "{error:?}"
        );
    }
}

/// The time limit of the call ends it, because it is shorter than all other limits.
#[tokio::test]
async fn a_cluster_that_does_not_answer_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let store = ElasticsearchStore::new(elasticsearch(&url), "locks");
    let call = Duration::from_millis(100);
    let leases = Leases::builder(store).call_timeout(call).build();
    let error = leases.acquire("key", LONG).await.map(drop).unwrap_err();
    assert!(
        matches!(error, Error::TimedOut { limit, .. } if limit == call),
        "{error:?}"
    );
    is_told(&error, "Elasticsearch (locks)");
}

/// The host is known, because it has answered before.
#[tokio::test]
async fn a_cluster_that_ceases_to_answer_is_named() {
    let liar = Liar::saying(located(always(Reply::Nothing))).await;
    let host = liar.address.to_string();
    let store = ElasticsearchStore::new(elasticsearch(&format!("http://{host}")), "locks");
    until_answered(async || store.check().await).await.unwrap();
    let call = Duration::from_millis(100);
    let leases = Leases::builder(store).call_timeout(call).build();
    let key = "k".repeat(512);
    let failed = join(
        leases.acquire(&*key, LONG).into_future(),
        leases.inspect(&*key),
    )
    .await;
    for error in [
        failed.0.map(drop).unwrap_err(),
        failed.1.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        is_told(&error, &host);
        assert!(error.to_string().contains(&host), "{error}");
    }
}

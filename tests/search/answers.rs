//! Answers of proxies and of wrong servers, to every operation. None of them is taken for an answer of the cluster: not
//! for a grant, and not for "nothing is held".

use futures::{StreamExt, stream};
use leasehold::{Error, Store};
use leasehold_tests::{
    every,
    liar::{Lie, Reply, always},
};
use serde_json::{Value, json};

use super::{
    ask, leases,
    nonsense::{
        AT_ONCE, INDEX, Told, WAIT, all_fail, each, engines_of_a_lie, http, lock, noop, stores,
    },
};

fn said(status: &str, headers: &str, body: &[u8]) -> Lie {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n");
    always(Reply::Says([head.as_bytes(), body].concat()))
}

fn json_of(status: &str, body: &Value) -> Lie {
    let body = body.to_string();
    said(
        status,
        "content-type: application/json\r\n",
        body.as_bytes(),
    )
}

/// The empty object, compressed.
const GZIP: &[u8] = &[
    0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 3, 0xab, 0xae, 0x05, 0, 0x43, 0xbf, 0xa6, 0xa3, 2, 0, 0, 0,
];

/// The answer of a search that has found nothing, complete in itself.
fn nothing() -> Value {
    json!({
        "took": 1, "timed_out": false, "_shards": { "total": 1, "successful": 1, "skipped": 0, "failed": 0 },
        "hits": { "total": { "value": 0, "relation": "eq" }, "max_score": null, "hits": [] },
    })
}

/// Whatever is asked, this is the answer.
fn of_something_else() -> Vec<(String, Lie)> {
    let html = "content-type: text/html\r\n";
    let page = b"<html><title>Log in</title></html>";
    let mut all = vec![
        ("a login page".to_owned(), said("200 OK", html, page)),
        (
            "no content".to_owned(),
            always(Reply::Says(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())),
        ),
        ("an empty body".to_owned(), said("200 OK", "", b"")),
        ("accepted".to_owned(), said("202 Accepted", "", b"")),
        ("gzip".to_owned(), said("200 OK", "", GZIP)),
        (
            "gzip of {}".to_owned(),
            said("200 OK", "content-encoding: gzip\r\n", GZIP),
        ),
        (
            "broken gzip".to_owned(),
            said("200 OK", "content-encoding: gzip\r\n", b"{}"),
        ),
        (
            "half of an object".to_owned(),
            said("200 OK", "", br#"{"errors":false,"items":[{"upd"#),
        ),
        (
            "half of a search".to_owned(),
            said("200 OK", "", br#"{"took":1,"hits":{"hits":["#),
        ),
        (
            "another service".to_owned(),
            json_of("200 OK", &json!({ "status": "ok" })),
        ),
        (
            "the root of a cluster".to_owned(),
            json_of(
                "200 OK",
                &json!({ "name": "a", "cluster_name": "b", "version": {} }),
            ),
        ),
    ];
    for status in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        // The client goes there, and gets the same answer again.
        for place in ["/login?next=locks", "/"] {
            let headers = format!("location: {place}\r\n{html}");
            let body = format!("<html>see {place}</html>");
            all.push((
                format!("{status} to {place}"),
                said(status, &headers, body.as_bytes()),
            ));
        }
        all.push((format!("{status} to nowhere"), said(status, html, page)));
    }
    for status in [
        "404 Not Found",
        "410 Gone",
        "400 Bad Request",
        "405 Not Allowed",
        "500 Failed",
        "502 Bad Gateway",
    ] {
        all.push((format!("{status} as a page"), said(status, html, page)));
        let code: u64 = status[..3].parse().unwrap();
        let missing =
            json!({ "type": "document_missing_exception", "reason": "[key]: document missing" });
        let no_index = json!({ "type": "index_not_found_exception", "reason": "no such index" });
        for body in [
            json!({}),
            json!({ "message": "no Route matched with those values" }),
            json!({ "found": false }),
            json!({ "_id": "key", "found": false }),
            json!({ "_index": INDEX, "_id": "key", "found": false }),
            json!({ "error": "not found" }),
            json!({ "error": "not found", "status": code }),
            json!({ "error": missing, "status": code }),
            json!({ "error": no_index }),
        ] {
            all.push((format!("{status} with {body}"), json_of(status, &body)));
        }
    }
    all
}

#[tokio::test]
async fn an_answer_of_something_else_is_an_error_of_every_operation() {
    let fails = async |(what, lie): (String, Lie)| {
        let told = all_fail(&what, lie).await;
        let of_one_engine = told.len() / engines_of_a_lie();
        assert!(of_one_engine > 50, "{of_one_engine}");
        for Told { name, error, .. } in told {
            let is_foreign = !matches!(error, leasehold::Error::NotALock { .. });
            assert!(is_foreign, "{name}, {what}: {error:?}");
        }
    };
    stream::iter(of_something_else())
        .for_each_concurrent(AT_ONCE, fails)
        .await;
}

/// The answers look like those of a cluster, and lack something that every such answer has.
#[tokio::test]
async fn an_answer_that_lacks_what_was_asked_for_is_an_error_of_every_operation() {
    let missing =
        json!({ "type": "document_missing_exception", "reason": "[key]: document missing" });
    let of = |change: Value| {
        let mut update = noop(&lock());
        for (name, value) in change.as_object().unwrap() {
            update[name] = value.clone();
        }
        update
    };
    // An answer about a missing document that does not say which one, or in which index.
    let absent = |more: Value| {
        let mut update =
            of(json!({ "result": null, "status": 404, "error": missing, "found": false }));
        update["get"] = Value::Null;
        update["hits"] = json!({ "hits": [] });
        for (name, value) in more.as_object().unwrap() {
            update[name] = value.clone();
        }
        update
    };
    let answers = [
        absent(json!({ "_id": null })),
        absent(json!({ "_index": null })),
        absent(json!({ "_id": "other" })),
        absent(json!({ "_index": "other" })),
        absent(json!({ "status": null, "found": null })),
        absent(json!({ "status": 200, "found": "no" })),
        absent(json!({ "error": { "reason": "document missing" }, "found": null })),
    ];
    for answer in answers {
        let what = answer.to_string();
        for Told { name, error, .. } in all_fail(&what, each(answer)).await {
            assert!(
                !matches!(error, leasehold::Error::NotALock { .. }),
                "{name}, {what}: {error:?}"
            );
        }
    }
}

/// A search with a part of what it has to say. Only the operations that search get to see it.
#[tokio::test]
async fn a_search_that_lacks_what_was_asked_for_is_an_error() {
    let found = noop(&lock());
    let changed = |whole: &Value, pointer: &str, value: Option<Value>| {
        let mut answer = whole.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = answer.pointer_mut(parent).unwrap();
        match value {
            Some(value) => parent[field] = value,
            None => drop(parent.as_object_mut().unwrap().remove(field)),
        }
        answer
    };
    let mut odd = Vec::new();
    for pointer in [
        "/timed_out",
        "/_shards",
        "/_shards/total",
        "/_shards/failed",
        "/_shards/successful",
        "/hits",
        "/hits/total",
        "/hits/total/value",
        "/hits/hits",
    ] {
        odd.push(changed(&nothing(), pointer, None));
    }
    for (pointer, value) in [
        ("/hits/total", json!(0)),
        ("/hits/total/value", json!(3)),
        ("/_shards/total", json!(0)),
        ("/_shards/total", json!(2)),
    ] {
        odd.push(changed(&nothing(), pointer, Some(value)));
    }
    odd.push(changed(&found, "/hits/total/value", Some(json!(0))));
    for field in ["_index", "_id", "sort"] {
        odd.push(changed(&found, &format!("/hits/hits/0/{field}"), None));
    }
    let for_all = odd.len();
    for field in ["_source", "fields"] {
        odd.push(changed(&found, &format!("/hits/hits/0/{field}"), None));
    }
    odd.push(changed(&found, "/hits/hits/0/_source", Some(json!(null))));
    for (number, answer) in odd.into_iter().enumerate() {
        let text = answer.to_string();
        for store in stores(each(answer)).await {
            let leases = leases(store.clone());
            for (name, outcome) in every::of_a_handle(&leases, WAIT).await {
                let needs = match name {
                    "list" | "release_owner" => true,
                    // It does not ask for the documents.
                    "purge" => number < for_all,
                    _ => false,
                };
                assert!(
                    !needs || outcome.is_err(),
                    "{}: {name} takes {text} for an answer",
                    store.name()
                );
            }
        }
    }
    // The control: complete answers are taken.
    for store in stores(each(found)).await {
        for (name, outcome) in every::of_a_handle(&leases(store), WAIT).await {
            assert!(name != "list" || outcome.is_ok(), "{name}: {outcome:?}");
        }
    }
    let body = http("200 OK", nothing().to_string().as_bytes());
    for store in stores(always(Reply::Says(body))).await {
        for (name, outcome) in every::of_a_handle(&leases(store), WAIT).await {
            let searches = ["list", "purge", "release_owner"].contains(&name);
            assert_eq!(outcome.is_ok(), searches, "{name}: {outcome:?}");
        }
    }
}

/// Both engines answer so to an upsert whose script creates no document. The script does that if the clock of the node
/// has no fence for it.
#[tokio::test]
async fn an_acquire_that_creates_no_document_says_that_the_clock_may_be_wrong() {
    let update = json!({
        "_index": INDEX, "_id": "key", "_version": -1, "result": "noop", "get": { "found": false }, "status": 200,
    });
    let answer = json!({ "errors": false, "took": 1, "items": [{ "update": update }] });
    for store in stores(json_of("200 OK", &answer)).await {
        for request in [ask(), ask().fresh(), ask().shared()] {
            let error = store.acquire(&request).await.unwrap_err();
            assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
            assert!(error.to_string().contains("clock"), "{error}");
        }
    }
}

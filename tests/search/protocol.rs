//! A program that knows nothing but `docs/protocol/elasticsearch.md` takes part in the locks.

use elasticsearch::http::Method;
use leasehold::{Attempt, Error, Key, LossReason};
use leasehold_tests::{
    protocol::{a_waiter_was_killed, statements},
    python_client::{PythonClient, both_take_turns, they_exclude_each_other},
};
use serde_json::Value;

use super::{BOTH, Fixture, LONG, leases};

const DOCUMENT: &str = include_str!("../../docs/protocol/elasticsearch.md");

/// Sends the requests of the document to the index of a fixture.
struct Stranger(Fixture);

impl Stranger {
    async fn send(&self, name: &str) -> Value {
        let (_, text) = requests().into_iter().find(|(it, _)| it == name).unwrap();
        let (line, body) = text.split_once("\n\n").unwrap_or((&text, ""));
        let (method, rest) = line.split_once(" /").unwrap();
        let path = rest.lines().next().unwrap();
        let method = match method {
            "GET" => Method::Get,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            other => panic!("{other}"),
        };
        let path = path.replace("app%2Dlocks", &self.0.alias);
        let mut body = body.replace("app-locks", &self.0.alias);
        for (script, source) in scripts() {
            let source = Value::from(source).to_string();
            body = body.replace(&format!("\"<SCRIPT_{script}>\""), &source);
        }
        if !path.contains("_bulk") {
            let body = if body.is_empty() {
                Value::Null
            } else {
                serde_json::from_str(&body).unwrap()
            };
            return self.0.ask(method, &path, body).await;
        }
        self.0.ask_lines(&path, format!("{body}\n")).await
    }

    async fn result(&self, name: &str) -> String {
        let mut answer = self.send(name).await;
        // The answer to a bulk of one change has one item.
        if let Some(item) = answer.pointer_mut("/items/0/update") {
            answer = item.take();
        }
        let result = answer["result"].as_str();
        result
            .unwrap_or_else(|| panic!("{name}: {answer}"))
            .to_owned()
    }
}

/// The scripts by name, each with its functions, from the end of the document.
fn scripts() -> Vec<(String, String)> {
    let texts = statements(DOCUMENT, "script");
    let text = |name: &Value| {
        let (_, text) = texts.iter().find(|(it, _)| name == it).unwrap();
        text.as_str()
    };
    let (_, parts) = statements(DOCUMENT, "scripts").remove(0);
    let parts: Value = serde_json::from_str(&parts).unwrap();
    let scripts = parts.as_object().unwrap().iter();
    let scripts = scripts.map(|(name, parts)| {
        let parts: Vec<_> = parts.as_array().unwrap().iter().map(text).collect();
        (name.to_uppercase(), parts.join("\n"))
    });
    scripts.collect()
}

fn requests() -> Vec<(String, String)> {
    statements(DOCUMENT, "request")
}

#[tokio::test]
async fn a_stranger_who_follows_the_document_takes_part() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let stranger = Stranger(fixture.clone());
        let created = stranger.send("create").await;
        assert_eq!(created["acknowledged"], true, "{created}");
        let leases = leases(fixture.store());

        assert_eq!(stranger.result("acquire").await, "created");
        let Attempt::Held(held) = leases.try_acquire("report:42", LONG).await.unwrap() else {
            panic!("granted twice");
        };
        let theirs = &held.holders()[0];
        assert_eq!(
            (held.owner(), theirs.note.as_deref()),
            ("worker-3", Some("nightly run"))
        );
        assert_eq!(stranger.result("renew").await, "updated");
        assert_eq!(stranger.result("release").await, "updated");

        let lease = leases.acquire("report:42", LONG).await.unwrap();
        assert!(lease.fence() > theirs.fence);
        let refused = stranger.send("acquire").await;
        let refused = &refused["items"][0]["update"];
        assert_eq!(refused["result"], "noop", "{refused}");
        assert_eq!(refused["get"]["_source"]["owner"], leases.owner());
        assert_eq!(stranger.result("release").await, "noop");
        assert_eq!(stranger.result("acquire in turn").await, "updated");
        let state = leases.inspect("report:42").await.unwrap().unwrap();
        assert_eq!(&*state.waiters[0].owner, "worker-3");
        assert_eq!(stranger.result("leave").await, "updated");
        assert_eq!(stranger.result("leave").await, "noop");
        lease.renew().await.unwrap();
        assert_eq!(stranger.result("evict").await, "updated");
        let lost = lease.renew().await;
        let evicted = |lost: &Error| {
            matches!(
                lost,
                Error::Lost {
                    reason: LossReason::TakenOver,
                    ..
                }
            )
        };
        assert!(lost.as_ref().is_err_and(evicted), "{lost:?}");
    }
}

#[tokio::test]
async fn a_client_in_python_takes_part() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let mut python = PythonClient::on_search(&fixture.url, &fixture.alias);
        let leases = leases(fixture.store());
        they_exclude_each_other(&mut python, &*fixture.store(), &leases).await;
        both_take_turns(&mut python, &leases).await;
    }
}

/// The place that a killed process has left must not keep a free key from a client that knows only acquire, renew and
/// release.
#[tokio::test]
async fn a_stranger_is_granted_a_free_key_after_a_waiter_was_killed() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let key = Key::new("report:42").unwrap();
        a_waiter_was_killed(&*fixture.store(), &key).await;
        let granted = Stranger(fixture).send("acquire").await;
        let document = &granted["items"][0]["update"]["get"]["_source"];
        assert_eq!(document["owner"], "worker-3", "{granted}");
        assert!(document.get("waiters").is_none(), "{granted}");
    }
}

#[tokio::test]
async fn each_request_of_the_document_is_one_that_the_engine_takes() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let stranger = Stranger(fixture);
        for (name, _) in requests() {
            if name == "create" {
                // The index exists already.
                continue;
            }
            let answer = stranger.send(&name).await;
            let items = answer["items"].as_array();
            let answers = items.map_or_else(
                || vec![&answer],
                |items| items.iter().map(|item| &item["update"]).collect(),
            );
            assert!(!answers.is_empty(), "{name}: {answer}");
            // The locks that this bulk renews all exist.
            let in_bulk = name == "renew many";
            assert!(!in_bulk || answer["errors"] == false, "{name}: {answer}");
            for answer in answers {
                let error = &answer["error"];
                let missing = error["type"] == "document_missing_exception";
                let said = !answer.is_null() && error.is_null();
                assert!(missing || said, "{name}: {answer}");
            }
        }
    }
}

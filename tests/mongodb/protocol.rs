//! A program that knows nothing but `docs/protocol/mongodb.md` takes part in the locks.

mod classic;

use leasehold::{Attempt, Error, Key, Leases, LossReason, MongoStore};
use leasehold_tests::{
    patient,
    protocol::{a_waiter_was_killed, statements},
    python_client::{PythonClient, both_take_turns, they_exclude_each_other},
};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
};
use serde_json::Value;

use super::{DATABASE, Engine, Fixture, LONG};

const DOCUMENT: &str = include_str!("../../docs/protocol/mongodb.md");

/// Sends the statements of the document to a collection, as the shell would.
struct Stranger(Collection<Document>);

impl Stranger {
    /// The answers to a statement. There may be two.
    async fn send(&self, name: &str) -> Vec<Document> {
        let found = statements(DOCUMENT, "mongodb");
        let (_, text) = found.iter().find(|(it, _)| it == name).unwrap();
        let text = with_constants(text, &found);
        let database = self.0.client().database(&self.0.namespace().db);
        let mut answers = Vec::new();
        for call in text.split("\n\n") {
            let command = command(&calls(call), self.0.name());
            let answer = database.run_command(command).await;
            answers.push(answer.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
        answers
    }

    /// The owner of the lock, by the answer of a `findAndModify`.
    async fn owner(&self, name: &str) -> String {
        let answer = self.send(name).await.remove(0);
        let shown = answer.get_document("value").unwrap();
        assert!(shown.get_datetime("now").is_ok(), "{shown}");
        let document = shown.get_document("document").unwrap();
        document.get_str("owner").unwrap().to_owned()
    }

    async fn changed(&self, name: &str) -> i32 {
        self.send(name).await[0].get_i32("nModified").unwrap()
    }
}

/// The text with each constant of the page in the place of its name.
fn with_constants(text: &str, statements: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    // A constant uses only constants that come before it.
    for (name, defined) in statements.iter().rev() {
        let Some(name) = name.strip_prefix("const ") else {
            continue;
        };
        let value = defined.split_once(" = ").unwrap().1;
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_$.\"".contains(letter);
        let (mut replaced, mut rest) = (String::new(), text.as_str());
        while let Some(at) = rest.find(name) {
            let behind = &rest[at + name.len()..];
            let whole = !rest[..at].ends_with(is_part)
                && !behind.starts_with(|letter| is_part(letter) || letter == ':');
            replaced.push_str(&rest[..at]);
            replaced.push_str(if whole { value } else { name });
            rest = behind;
        }
        text = replaced + rest;
    }
    text
}

/// The calls of a chain, with their arguments: `db.locks.find(…).limit(…)` has two.
fn calls(text: &str) -> Vec<(String, Vec<Bson>)> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some((name, behind)) = rest.split_once('(') {
        let (mut depth, mut within, mut end) = (1, false, 0);
        for (at, letter) in behind.char_indices() {
            match letter {
                '"' => within = !within,
                '(' if !within => depth += 1,
                ')' if !within => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                end = at;
                break;
            }
        }
        let arguments: Value = serde_json::from_str(&json(&behind[..end])).unwrap();
        let Bson::Array(arguments) = Bson::try_from(arguments).unwrap() else {
            panic!("{behind}");
        };
        let name = name.rsplit('.').next().unwrap();
        calls.push((name.to_owned(), arguments));
        rest = &behind[end + 1..];
    }
    calls
}

/// The arguments of a call of the shell, as extended JSON. No string here has a quote in it.
fn json(arguments: &str) -> String {
    let arguments = arguments.replace("new Date(", "Date(");
    let mut json = String::new();
    for (number, part) in arguments.split('"').enumerate() {
        if number % 2 == 1 {
            json.push_str(&format!("\"{part}\""));
            continue;
        }
        for word in part.split_inclusive([' ', '\n', '[', '{', ')', ',']) {
            match word.trim().strip_suffix(':') {
                Some(name) if !name.is_empty() => json.push_str(&format!("\"{name}\": ")),
                _ => json.push_str(word),
            }
        }
    }
    let long = |part: &str| {
        let (number, rest) = part.split_once(')').unwrap();
        let number = number.trim_matches('"');
        format!("{{\"$numberLong\": \"{number}\"}}{rest}")
    };
    let mut parts = json.split("NumberLong(");
    let first = parts.next().unwrap().to_owned();
    let json = parts.map(long).fold(first, |json, part| json + &part);
    let json = json.replace("MinKey()", "{\"$minKey\": 1}");
    let json = json.replace("NaN]", "{\"$numberDouble\": \"NaN\"}]");
    let date = |part: &str| {
        let (number, rest) = part.split_once(')').unwrap();
        format!("{{\"$date\": {{\"$numberLong\": \"{number}\"}}}}{rest}")
    };
    let mut parts = json.split("Date(");
    let first = parts.next().unwrap().to_owned();
    format!(
        "[{}]",
        parts.map(date).fold(first, |json, part| json + &part)
    )
}

fn command(calls: &[(String, Vec<Bson>)], collection: &str) -> Document {
    let (name, arguments) = &calls[0];
    let argument = |at: usize| arguments[at].as_document().unwrap().clone();
    let mut command = match name.as_str() {
        "findAndModify" => doc! { "findAndModify": collection },
        "updateOne" => doc! {
            "update": collection,
            "updates": [{ "q": argument(0), "u": arguments[1].clone() }],
        },
        "deleteOne" | "deleteMany" => doc! {
            "delete": collection,
            "deletes": [{ "q": argument(0), "limit": i32::from(name == "deleteOne") }],
        },
        "find" | "findOne" => {
            doc! { "find": collection, "filter": argument(0), "projection": argument(1) }
        }
        "runCommand" => argument(0),
        "createIndex" => {
            let mut index = doc! { "key": argument(0) };
            index.extend(argument(1));
            doc! { "createIndexes": collection, "indexes": [index] }
        }
        other => panic!("{other}"),
    };
    match name.as_str() {
        "findAndModify" => command.extend(argument(0)),
        "updateOne" => command.extend(argument(2)),
        "deleteOne" | "deleteMany" => command.extend(argument(1)),
        "runCommand" => drop(command.insert("update", collection)),
        _ => {}
    }
    for (name, arguments) in &calls[1..] {
        command.insert(name, arguments[0].clone());
    }
    command
}

#[tokio::test]
async fn a_stranger_who_follows_the_document_takes_part() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let collection = Fixture::new(engine).collection().await;
        let stranger = Stranger(collection.clone());
        stranger.send("prepare").await;
        let store = MongoStore::new(&collection);
        // The store finds the same indexes. If they differed, this would fail with a conflict.
        store.prepare().await.unwrap();
        let leases = Leases::new(store);

        assert_eq!(stranger.owner("acquire").await, "worker-3");
        let Attempt::Held(held) = leases.try_acquire("report:42", LONG).await.unwrap() else {
            panic!("granted twice");
        };
        let theirs = &held.holders()[0];
        assert_eq!(
            (held.owner(), theirs.note.as_deref()),
            ("worker-3", Some("nightly run"))
        );
        assert_eq!(stranger.owner("renew").await, "worker-3");
        assert_eq!(stranger.changed("release alone").await, 1);

        let lease = leases.acquire("report:42", LONG).await.unwrap();
        assert!(lease.fence() > theirs.fence);
        assert_eq!(stranger.owner("acquire").await, leases.owner());
        assert_eq!(stranger.changed("release").await, 0);
        lease.renew().await.unwrap();
        stranger.send("evict").await;
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
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    store.prepare().await.unwrap();
    let mut python = PythonClient::on_mongodb(&fixture.uri, DATABASE, &fixture.name);
    let leases = patient(store.clone());
    they_exclude_each_other(&mut python, &store, &leases).await;
    both_take_turns(&mut python, &leases).await;
}

/// The place that a killed process has left must not keep a free key from a client that knows only acquire, renew and
/// release.
#[tokio::test]
async fn a_stranger_is_granted_a_free_key_after_a_waiter_was_killed() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let collection = Fixture::new(engine).collection().await;
        let store = MongoStore::new(&collection);
        let key = Key::new("report:42").unwrap();
        a_waiter_was_killed(&store, &key).await;
        let stranger = Stranger(collection);
        let granted = stranger.send("acquire").await.remove(0);
        let granted = granted.get_document("value").unwrap();
        let granted = granted.get_document("document").unwrap();
        assert_eq!(granted.get_str("owner"), Ok("worker-3"), "{granted}");
        assert!(!granted.contains_key("waiters"), "{granted}");
    }
}

#[tokio::test]
async fn each_statement_of_the_document_is_one_that_the_server_takes() {
    let stranger = Stranger(Fixture::new(Engine::MongoDb).collection().await);
    let sent = statements(DOCUMENT, "mongodb").into_iter();
    for (name, _) in sent.filter(|(name, _)| !name.starts_with("const ")) {
        for answer in stranger.send(&name).await {
            // This statement says by an error that the lease is not there.
            let refused = answer.contains_key("writeErrors");
            assert!(name == "release many" || !refused, "{name}: {answer}");
        }
    }
}

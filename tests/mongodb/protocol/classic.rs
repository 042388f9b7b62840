//! A program that fills in the templates of `docs/protocol/mongodb-classic.md`.

use leasehold::{Attempt, Leases, MongoStore};
use leasehold_tests::protocol::statements;
use mongodb::{
    Collection,
    bson::{Document, oid::ObjectId},
};
use serde_json::{Value, json};

use super::super::{Engine, Fixture, LONG};

const PAGE: &str = include_str!("../../../docs/protocol/mongodb-classic.md");

struct Stranger(Collection<Document>);

impl Stranger {
    /// The answer to a command, with these values for its holes.
    async fn send(&self, name: &str, values: &[(&str, Value)]) -> Document {
        let templates = statements(PAGE, "template");
        let (_, text) = templates.iter().find(|(it, _)| it == name).unwrap();
        let known = [
            ("COLLECTION", json!(self.0.name())),
            ("KEY", json!("report:42")),
            ("LEASE", json!("11111111-1111-4111-8111-111111111111")),
            ("OWNER", json!("worker-3")),
            ("NOTE", Value::Null),
            ("TTL_MS", long(LONG.as_millis() as i64)),
            ("NEW_VERSION", json!({ "$oid": ObjectId::new().to_hex() })),
        ];
        let fill = |text: String, (hole, value): &(&str, Value)| {
            text.replace(&format!("\"<{hole}>\""), &value.to_string())
        };
        let text = known.iter().chain(values).fold(text.clone(), fill);
        let command: Document = serde_json::from_str(&text).unwrap();
        let database = self.0.client().database(&self.0.namespace().db);
        database.run_command(command).await.unwrap()
    }

    /// The document as a look shows it, and the time of the look.
    async fn look(&self, name: &str) -> (Document, i64) {
        let seen = self.send(name, &[]).await;
        let document = seen.get_document("value").unwrap().clone();
        let at = document.get_datetime("asked_at").unwrap();
        let at = at.timestamp_millis();
        (document, at)
    }
}

fn long(number: i64) -> Value {
    json!({ "$numberLong": number.to_string() })
}

fn date(millis: i64) -> Value {
    json!({ "$date": long(millis) })
}

fn version(seen: &Document) -> Value {
    json!({ "$oid": seen.get_object_id("version").unwrap().to_hex() })
}

#[tokio::test]
async fn a_stranger_who_fills_in_the_templates_takes_part() {
    let collection = Fixture::new(Engine::MongoDb).collection().await;
    let leases = Leases::new(MongoStore::new(&collection).without_pipelines());
    let stranger = Stranger(collection);
    let held_by_them = async || match leases.try_acquire("report:42", LONG).await.unwrap() {
        Attempt::Held(held) => held.owner() == "worker-3",
        Attempt::Acquired(lease) => panic!("granted twice: {lease:?}"),
    };

    // A new document becomes free, once.
    let (seen, at) = stranger.look("look").await;
    let decision = [
        ("SEEN_VERSION", version(&seen)),
        ("DECIDED_FENCE", long(at * 1_024)),
        ("DECIDED_AT", date(at)),
    ];
    for changed in [1, 0] {
        let written = stranger.send("write free", &decision).await;
        assert_eq!(written.get_i32("nModified"), Ok(changed), "{written}");
    }

    let granted = stranger.send("acquire free", &[]).await;
    let granted = granted.get_document("value").unwrap();
    assert_eq!(granted.get_i64("fence"), Ok(at * 1_024 + 1));
    assert!(held_by_them().await);
    let released = stranger.send("release alone", &[]).await;
    assert_eq!(released.get_i32("nModified"), Ok(1), "{released}");
    let lease = leases.acquire("report:42", LONG).await.unwrap();
    assert!(lease.fence().get() > at * 1_024 + 1);
    let refused = stranger.send("acquire free", &[]).await;
    assert!(refused.get_document("value").is_err(), "{refused}");
    lease.release().await.unwrap();

    // Any other decision is written as a state.
    let (seen, at) = stranger.look("look again").await;
    let fence = (at * 1_024).max(seen.get_i64("fence").unwrap() + 1);
    let until = at + LONG.as_millis() as i64;
    let holder = json!({
        "lease": "11111111-1111-4111-8111-111111111111", "owner": "worker-3", "mode": "exclusive",
        "permits": long(1), "fence": long(fence), "acquired_at": date(at), "expires_at": date(until),
    });
    let state = json!({
        "schema": "leasehold.lock.1", "fence": long(fence), "expires_at": date(until),
        "holders": [holder],
    });
    let decision = [
        ("SEEN_VERSION", version(&seen)),
        ("DECIDED_FENCE", long(fence)),
        ("STATE", state),
    ];
    let written = stranger.send("write", &decision).await;
    assert_eq!(written.get_i32("nModified"), Ok(1), "{written}");
    assert!(held_by_them().await);
    let state = leases.inspect("report:42").await.unwrap().unwrap();
    assert_eq!(state.fence.get(), fence);
    let expires_at = state.holders[0].expires_at.timestamp_millis();
    assert_eq!(expires_at, until);
}

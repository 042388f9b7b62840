//! What is stored, and what else may be in the file.

use std::{path::Path, time::Duration};

use chrono::Utc;
use futures::TryStreamExt;
use leasehold::{Error, Filter, Key, Leases, store::SCHEMA};
use leasehold_tests::carried::is_carried_along;
use leasehold_tests::clock_ahead;
use leasehold_tests::hostile::limiters;
use leasehold_tests::hostile::{
    KEY, are_judged_alike, are_not_purged, queue_shapes, shapes, tick_shapes, twin_places,
    untyped_shapes, with_times,
};
use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use super::{LONG, path, store_at};

/// The documents of a file, without the store.
struct Rows {
    connection: Connection,
    table: &'static str,
}

impl Rows {
    fn new(path: &Path, table: &'static str) -> Self {
        let connection = Connection::open(path).unwrap();
        Self { connection, table }
    }

    fn get(&self, name: &str) -> Option<Value> {
        let read = format!("SELECT document FROM {} WHERE name = ?", self.table);
        let found = self.connection.query_row(&read, [name], |row| row.get(0));
        let found: Option<String> = found.optional().unwrap();
        found.map(|text| serde_json::from_str(&text).unwrap())
    }

    fn put(&self, name: &str, document: &Value) {
        let put = format!(
            "INSERT OR REPLACE INTO {} (name, document) VALUES (?, ?)",
            self.table
        );
        self.connection
            .execute(&put, [name, &document.to_string()])
            .unwrap();
    }

    /// Writes a shape with its times.
    fn put_shape(&self, name: &str, document: &Value) {
        let now = Utc::now().timestamp_millis();
        self.put(
            name,
            &with_times(document, &|seconds| json!(now + seconds * 1_000)),
        );
    }
}

#[tokio::test]
async fn a_holder_of_a_clock_that_was_ahead_is_named() {
    let path = path();
    let store = store_at(&path).await;
    Rows::new(&path, "locks").put_shape(KEY, &clock_ahead::shape());
    clock_ahead::is_named(store).await;
}

/// SQLite does not check that a text is UTF-8.
#[tokio::test]
async fn a_row_that_is_no_text_stops_nothing() {
    let path = path();
    let leases = Leases::new(store_at(&path).await);
    let lease = leases.acquire("lock", LONG).await.unwrap();
    let rows = Rows::new(&path, "locks");
    for row in [
        "('another', CAST(x'ff' AS TEXT))",
        "(CAST(x'6bff' AS TEXT), '{}')",
    ] {
        let put = format!("INSERT INTO locks (name, document) VALUES {row}");
        rows.connection.execute(&put, []).unwrap();
    }
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    let keys: Vec<_> = listed.iter().map(|lock| lock.key.as_str()).collect();
    assert_eq!(keys, ["lock"]);
    let error = leases.inspect("another").await.unwrap_err();
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    assert_eq!(leases.purge(Duration::ZERO).await.unwrap(), 0);
    lease.release().await.unwrap();
}

/// A list and a purge read pages of 500 rows at most.
#[tokio::test]
async fn pages_that_end_with_a_row_that_is_no_text_go_on() {
    let path = path();
    let leases = Leases::new(store_at(&path).await);
    let lease = leases.acquire("\u{10ffff}", LONG).await.unwrap();
    let rows = Rows::new(&path, "locks");
    rows.connection.execute_batch("BEGIN").unwrap();
    for number in 0..1_200 {
        let name = format!("X'6b{number:04x}ff'");
        let put =
            format!("INSERT INTO locks (name, document) VALUES (CAST({name} AS TEXT), '{{}}')");
        rows.connection.execute(&put, []).unwrap();
    }
    rows.connection.execute_batch("COMMIT").unwrap();
    let listed: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    let purge = tokio::time::timeout(Duration::from_secs(180), leases.purge(Duration::ZERO));
    assert_eq!(purge.await.unwrap().unwrap(), 0);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn the_document_has_its_final_shape() {
    let path = path();
    let leases = Leases::builder(store_at(&path).await)
        .owner("pod-3")
        .build();
    let lease = leases
        .acquire("report:42", LONG)
        .note("nightly")
        .await
        .unwrap();
    let rows = Rows::new(&path, "locks");
    let stored = || rows.get("report:42").unwrap();
    let acquired_at = lease.acquired_at().timestamp_millis();
    // The last of the fences that the lease has taken.
    let fence = lease.fence().get() + 1_023;
    let document = json!({
        "schema": SCHEMA,
        "fence": fence,
        "lease": lease.id().to_string(),
        "owner": "pod-3",
        "acquired_at": acquired_at,
        "expires_at": acquired_at + LONG.as_millis() as i64,
        "note": "nightly",
    });
    assert_eq!(stored(), document);
    lease.release().await.unwrap();
    let released_at = stored()["released_at"].as_i64().unwrap();
    assert!(released_at >= acquired_at);
    let document = json!({ "schema": SCHEMA, "fence": fence, "released_at": released_at });
    assert_eq!(stored(), document);

    let lease = leases
        .acquire("report:42", LONG)
        .permits(2, 4)
        .await
        .unwrap();
    let acquired_at = lease.acquired_at().timestamp_millis();
    let expires_at = acquired_at + LONG.as_millis() as i64;
    let holder = json!({
        "lease": lease.id().to_string(),
        "owner": "pod-3",
        "mode": "permits",
        "permits": 2,
        "fence": lease.fence().get(),
        "acquired_at": acquired_at,
        "expires_at": expires_at,
    });
    let document = json!({
        "schema": SCHEMA,
        "fence": lease.fence().get(),
        "expires_at": expires_at,
        "holders": [holder],
    });
    assert_eq!(stored(), document);

    let eviction = leases.evict("report:42").await.unwrap().unwrap();
    let document = json!({
        "schema": SCHEMA,
        "fence": eviction.fence.get(),
        "released_at": stored()["released_at"].as_i64().unwrap(),
        "evicted": [holder],
    });
    assert_eq!(stored(), document);
    lease.detach().unwrap();
}

#[tokio::test]
async fn hostile_documents_are_judged_alike_by_every_operation() {
    let path = path();
    let store = store_at(&path).await;
    let rows = Rows::new(&path, "locks");
    let put = async |document: &Value| {
        rows.put_shape(KEY, document);
        true
    };
    let get = async || rows.get(KEY);
    let mut all = shapes();
    all.extend(untyped_shapes());
    all.extend(queue_shapes());
    all.extend(tick_shapes());
    let taken = are_judged_alike(&store, &all, put, get).await;
    assert_eq!(taken, all.len());
    are_not_purged(&store, &all, put, get).await;
}

#[tokio::test]
async fn a_place_that_stands_twice_is_judged_as_the_rules_say() {
    let path = path();
    let store = store_at(&path).await;
    let rows = Rows::new(&path, "locks");
    let put = async |document: &Value| rows.put_shape(KEY, document);
    twin_places::are_judged_as_the_rules_say(&*store, put).await;
}

#[tokio::test]
async fn what_is_done_is_carried_along() {
    let path = path();
    let store = store_at(&path).await;
    let rows = Rows::new(&path, "locks");
    let set = async |key: &Key, fields: &Value| {
        let now = chrono::Utc::now().timestamp_millis();
        let fields = with_times(fields, &|seconds| json!(now + seconds * 1_000));
        let mut document = rows.get(key.as_str()).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            document[name] = value.clone();
        }
        rows.put(key.as_str(), &document);
    };
    let get = async |key: &Key| rows.get(key.as_str()).unwrap();
    is_carried_along(&*store, set, get).await;
}

#[tokio::test]
async fn hostile_limiters_are_judged_alike() {
    let path = path();
    let store = store_at(&path).await;
    let rows = Rows::new(&path, "limiters");
    for kind in limiters::kinds() {
        let name = format!("{}:{}:{KEY}", kind.word, kind.window);
        let put = async |document: &Value| {
            rows.put_shape(&name, document);
            true
        };
        let mut shapes = kind.shapes();
        let mut other = kind.used(3);
        other["key"] = json!("other");
        shapes.push((limiters::Verdict::NoLimiter, other));
        let taken =
            limiters::are_judged_alike(&store, kind, &shapes, put, async || rows.get(&name)).await;
        assert_eq!(taken, shapes.len());
    }
}

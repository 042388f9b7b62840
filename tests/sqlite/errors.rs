//! Files that cannot be used, and the errors that say why.

use std::{error::Error as _, fs, path::Path};

use futures::TryStreamExt;
use leasehold::{
    Error, Filter, Key, Leases, SqliteStore, Store,
    store::{LeaseId, RenewAnswer, RenewRequest},
};
use leasehold_tests::{every, sentence::LONGEST};
use rusqlite::Connection;

use super::{LONG, path, store_at};

pub async fn refused(path: &Path) -> String {
    refusal(SqliteStore::open(path).await, path)
}

pub fn refusal(opened: Result<SqliteStore, Error>, path: &Path) -> String {
    match opened {
        Err(error @ Error::File { .. }) => {
            assert!(!error.is_retryable() && !error.is_ambiguous());
            // The message contains its cause. Of a long path it has the beginning.
            let (text, path) = (error.to_string(), path.to_str().unwrap());
            let shown: String = path.chars().take(40).collect();
            assert!(text.contains(&shown), "{text}");
            assert!(text.chars().count() <= LONGEST, "{text}");
            assert!(!text.contains('\n'), "{text}");
            assert!(text.contains("check its folder"), "{text}");
            text
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_no_file_of_locks_is_refused_and_left_alone() {
    let text = path();
    fs::write(&text, "not a database, and long enough to be sure of it").unwrap();
    assert!(refused(&text).await.contains("not a database"));
    assert!(fs::read_to_string(&text).unwrap().starts_with("not a"));

    let foreign = path();
    let tables = "CREATE TABLE accounts (id INTEGER); INSERT INTO accounts VALUES (7);";
    Connection::open(&foreign)
        .unwrap()
        .execute_batch(tables)
        .unwrap();
    let before = fs::read(&foreign).unwrap();
    assert!(
        refused(&foreign)
            .await
            .contains("database of another program")
    );
    assert_eq!(fs::read(&foreign).unwrap(), before);
    assert!(!foreign.with_extension("db-lock").exists());

    // It may have no tables yet.
    for mark in [
        "user_version = 7",
        "user_version = -1",
        "application_id = 7",
    ] {
        let foreign = path();
        let mark = format!("PRAGMA {mark}");
        Connection::open(&foreign)
            .unwrap()
            .execute_batch(&mark)
            .unwrap();
        let before = fs::read(&foreign).unwrap();
        let text = refused(&foreign).await;
        assert!(
            text.contains("database of another program"),
            "{mark}: {text}"
        );
        assert_eq!(fs::read(&foreign).unwrap(), before);
        assert!(!foreign.with_extension("db-lock").exists());
    }

    let folder = path();
    fs::create_dir(&folder).unwrap();
    refused(&folder).await;
    refused(&folder.join("no such folder").join("locks.db")).await;
}

#[tokio::test]
async fn who_only_looks_makes_no_file() {
    let missing = path();
    let opened = SqliteStore::open_existing(&missing).await;
    let text = refusal(opened, &missing);
    assert!(
        text.contains("not there: SqliteStore::open makes it"),
        "{text}"
    );
    assert!(!missing.exists());

    let empty = path();
    fs::write(&empty, "").unwrap();
    let opened = SqliteStore::open_existing(&empty).await;
    let text = refusal(opened, &empty);
    assert!(
        text.contains("empty: SqliteStore::open makes its"),
        "{text}"
    );
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);

    let made = Leases::new(store_at(&empty).await);
    let lease = made.acquire("key", LONG).await.unwrap();
    let looks = Leases::new(SqliteStore::open_existing(&empty).await.unwrap());
    assert!(!looks.inspect("key").await.unwrap().unwrap().is_free());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn the_file_of_a_later_version_is_refused() {
    let path = path();
    drop(store_at(&path).await);
    let connection = Connection::open(&path).unwrap();
    for (version, text) in [
        (2, "upgrade leasehold here"),
        (i32::MAX, "upgrade leasehold here"),
        (0, "no version of leasehold"),
        (-1, "no version of leasehold"),
    ] {
        let set = connection.pragma_update(None, "user_version", version);
        set.unwrap();
        let refused = refused(&path).await;
        assert!(refused.contains(text), "{version}: {refused}");
    }
}

/// Another process has locked the file.
#[tokio::test]
async fn who_finds_the_file_locked_may_try_again() {
    let path = path();
    let store = store_at(&path).await;
    let mut other = Connection::open(&path).unwrap();
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let writes = other.transaction_with_behavior(behavior).unwrap();
    let key = Key::new("key").unwrap();
    let error = store.evict(&key).await.unwrap_err();
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    assert!(error.is_retryable() && !error.is_ambiguous());
    // A read does not wait.
    assert_eq!(store.inspect(&key).await.unwrap(), None);
    drop(writes);
    assert_eq!(store.evict(&key).await.unwrap(), None);
}

/// A row that is not JSON is no lock.
#[tokio::test]
async fn a_broken_row_is_named_and_left_alone() {
    let path = path();
    let leases = Leases::new(store_at(&path).await);
    leases
        .acquire("good", LONG)
        .await
        .unwrap()
        .detach()
        .unwrap();
    let connection = Connection::open(&path).unwrap();
    let insert = "INSERT INTO locks (name, document) VALUES ('broken', '{\"fence\": 7')";
    connection.execute(insert, []).unwrap();
    let error = leases.try_acquire("broken", LONG).await.unwrap_err();
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    leases.purge(std::time::Duration::ZERO).await.unwrap();
    let locks: Vec<_> = leases.list(Filter::new()).try_collect().await.unwrap();
    assert_eq!(locks.len(), 1);
    let count = "SELECT count(*) FROM locks";
    let rows: i64 = connection.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2);
}

#[tokio::test]
async fn a_file_that_is_gone_fails_every_operation() {
    let path = path();
    let store = store_at(&path).await;
    fs::remove_file(&path).unwrap();
    let outcomes = every::of_a_holder(&*store).await;
    let handle = Leases::new(store.clone());
    let outcomes = outcomes.into_iter();
    for (name, outcome) in outcomes.chain(every::of_a_handle(&handle, LONG / 600).await) {
        assert!(
            matches!(outcome, Err(Error::File { .. })),
            "{name}: {outcome:?}"
        );
    }
}

/// SQLite undoes a batch in the middle when the disk is full or fails.
#[tokio::test]
async fn of_a_batch_that_is_undone_in_the_middle_nothing_is_done() {
    let path = path();
    let store = store_at(&path).await;
    let leases = Leases::new(store.clone());
    let mut requests = Vec::new();
    for key in ["a", "b", "c"] {
        let lease = leases.acquire(key, LONG).await.unwrap();
        requests.push(RenewRequest::new(lease.key().clone(), lease.id(), 2 * LONG));
        lease.detach().unwrap();
    }
    let connection = Connection::open(&path).unwrap();
    let all = || -> Vec<String> {
        let mut all = connection.prepare("SELECT document FROM locks").unwrap();
        let rows = all.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let before = all();
    let fails = "CREATE TRIGGER fails BEFORE INSERT ON locks WHEN NEW.name = 'b'
        BEGIN SELECT RAISE(ROLLBACK, 'no room'); END";
    connection.execute_batch(fails).unwrap();

    let error = store.renew(&requests).await.unwrap_err();
    assert!(error.source().unwrap().to_string().contains("no room"));
    assert_eq!(all(), before);

    connection.execute_batch("DROP TRIGGER fails").unwrap();
    for answer in store.renew(&requests).await.unwrap() {
        assert!(matches!(answer, Ok(RenewAnswer::Renewed { .. })));
    }
    assert_ne!(all(), before);
}

#[test]
fn outside_of_a_runtime_there_is_an_error() {
    let opened = futures::executor::block_on(SqliteStore::open(path()));
    assert!(matches!(opened, Err(Error::NoRuntime)), "{opened:?}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(store_at(&path()));
    let key = Key::new(LeaseId::random().to_string()).unwrap();
    let looked = futures::executor::block_on(store.inspect(&key));
    assert!(matches!(looked, Err(Error::NoRuntime)), "{looked:?}");
}

//! Operations that wait for the file at the same time: they share a transaction, and each has an outcome of its own.

use std::{error::Error as _, fs, path::Path, sync::Arc};

use futures::future::{BoxFuture, join_all, poll_immediate};
use leasehold::{
    Error, Key, SqliteStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId},
};
use rusqlite::Connection;

use super::{LONG, path, store_at};

type Outcome = Result<AcquireAnswer, Error>;

/// How many transactions are in the log. In the header of a frame, the second number is not zero if the frame ends a
/// transaction (<https://sqlite.org/fileformat2.html#walformat>).
fn commits(path: &Path) -> usize {
    let log = fs::read(format!("{}-wal", path.display())).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let page = number(8) as usize;
    let frames = (32..log.len()).step_by(24 + page);
    frames.filter(|at| number(at + 4) != 0).count()
}

fn acquire(store: &Arc<dyn Store>, key: impl ToString) -> BoxFuture<'static, Outcome> {
    let (store, key) = (store.clone(), Key::new(key.to_string()).unwrap());
    Box::pin(async move {
        let request = AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
        store.acquire(&request).await
    })
}

/// Sends these acquires while another connection writes, so that all of them wait when that ends. Those with these
/// indexes are dropped before.
async fn together(
    path: &Path,
    mut acquires: Vec<BoxFuture<'static, Outcome>>,
    dropped: &[usize],
) -> Vec<Outcome> {
    let other = Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for it in &mut acquires {
        assert!(poll_immediate(it).await.is_none());
    }
    for index in dropped {
        drop(acquires.remove(*index));
    }
    other.execute_batch("COMMIT").unwrap();
    join_all(acquires).await
}

fn is_granted(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(AcquireAnswer::Granted(_)))
}

#[tokio::test]
async fn what_waits_for_the_file_is_committed_together() {
    let path = path();
    let store = store_at(&path).await;
    let before = commits(&path);
    for key in 0..8 {
        assert!(is_granted(&acquire(&store, format!("alone {key}")).await));
    }
    assert_eq!(commits(&path) - before, 8, "the control");
    let all = (0..64).map(|key| acquire(&store, key));
    let all = together(&path, all.collect(), &[]).await;
    assert!(all.iter().all(is_granted), "{all:?}");
    assert_eq!(commits(&path) - before, 9);
    // Others see what was acknowledged.
    let other = SqliteStore::open(&path).await.unwrap();
    for key in 0..64 {
        let key = Key::new(key.to_string()).unwrap();
        assert_eq!(other.inspect(&key).await.unwrap().unwrap().holders.len(), 1);
    }
}

#[tokio::test]
async fn one_that_is_refused_or_fails_does_not_stop_the_others() {
    let path = path();
    let store = store_at(&path).await;
    assert!(is_granted(&acquire(&store, "held").await));
    let broken = "INSERT INTO locks (name, document) VALUES ('broken', '{')";
    Connection::open(&path)
        .unwrap()
        .execute(broken, [])
        .unwrap();
    let keys = ["a", "broken", "held", "b", "b"];
    let all = keys.map(|key| acquire(&store, key)).into_iter().collect();
    let all = together(&path, all, &[]).await;
    assert!(is_granted(&all[0]) && is_granted(&all[3]), "{all:?}");
    assert!(matches!(all[1], Err(Error::NotALock { .. })), "{all:?}");
    for held in [&all[2], &all[4]] {
        assert!(matches!(held, Ok(AcquireAnswer::Held(_))), "{all:?}");
    }
}

/// SQLite undoes a transaction in the middle when the disk is full or fails.
#[tokio::test]
async fn what_is_undone_in_the_middle_is_granted_to_nobody() {
    let path = path();
    let store = store_at(&path).await;
    let fails = "CREATE TRIGGER fails BEFORE INSERT ON locks WHEN NEW.name = 'b'
        BEGIN SELECT RAISE(ROLLBACK, 'no room'); END";
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(fails).unwrap();
    let all = ["a", "b", "c"].map(|key| acquire(&store, key));
    let all = together(&path, all.into_iter().collect(), &[]).await;
    for outcome in &all[..2] {
        let cause = outcome.as_ref().unwrap_err().source().unwrap();
        assert!(cause.to_string().contains("no room"), "{outcome:?}");
    }
    // The one after them is in the next transaction.
    assert!(is_granted(&all[2]), "{all:?}");
    let names = connection.query_row("SELECT group_concat(name) FROM locks", [], |row| row.get(0));
    assert_eq!(names, Ok("c".to_owned()));
}

#[tokio::test]
async fn one_that_nobody_waits_for_is_not_carried_out() {
    let path = path();
    let store = store_at(&path).await;
    let keys = ["first", "dropped", "last"];
    let all = keys.map(|key| acquire(&store, key)).into_iter().collect();
    let all = together(&path, all, &[1]).await;
    assert!(all.len() == 2 && all.iter().all(is_granted), "{all:?}");
    let dropped = Key::new("dropped").unwrap();
    assert_eq!(store.inspect(&dropped).await.unwrap(), None);
}

//! The file has one name, and stays where it is as long as it is open.

use std::{env, fs, os::unix::fs::symlink, path::Path};

use leasehold::{Attempt, Error, Leases, SqliteStore};
use leasehold_tests::project;

use super::{LONG, errors::refused, path, store_at};

#[tokio::test]
async fn a_file_that_is_removed_or_replaced_grants_nothing_more() {
    let path = path();
    let old = Leases::new(store_at(&path).await);
    let lease = old.acquire("key", LONG).await.unwrap();
    for file in ["", "-wal", "-shm", "-lock"] {
        fs::remove_file(format!("{}{file}", path.display())).unwrap();
    }
    let refused = old.try_acquire("other", LONG).await;
    assert!(matches!(refused, Err(Error::File { .. })), "{refused:?}");

    let new = Leases::new(store_at(&path).await);
    new.acquire("key", LONG).await.unwrap().detach().unwrap();
    let error = lease.release().await.unwrap_err();
    assert!(error.to_string().contains("replaced by another"), "{error}");
    assert!(!new.inspect("key").await.unwrap().unwrap().is_free());
}

/// Processes hear of each other by the files beside the file as much as by the file itself.
#[tokio::test]
async fn what_is_removed_beside_the_file_grants_nothing_more() {
    for end in ["-wal", "-shm", "-lock"] {
        let path = path();
        let leases = Leases::new(store_at(&path).await);
        leases.acquire("key", LONG).await.unwrap().detach().unwrap();
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
        let refused = leases.try_acquire("other", LONG).await;
        let Err(error @ Error::File { .. }) = refused else {
            panic!("{end}: {refused:?}");
        };
        assert!(error.to_string().contains(end), "{error}");
        assert!(leases.inspect("key").await.is_err());
    }
}

/// The tables are only in the log by then.
#[tokio::test]
async fn a_lock_file_that_was_removed_is_made_anew_by_a_look() {
    let path = path();
    let leases = Leases::new(store_at(&path).await);
    leases.acquire("key", LONG).await.unwrap().detach().unwrap();
    fs::remove_file(format!("{}-lock", path.display())).unwrap();
    let looks = Leases::new(SqliteStore::open_existing(&path).await.unwrap());
    assert!(!looks.inspect("key").await.unwrap().unwrap().is_free());
    let error = leases.inspect("key").await.unwrap_err();
    assert!(error.to_string().contains("replaced by another"), "{error}");
}

/// The file would have a log of its own for each name.
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let (path, other) = (path(), path());
    let leases = Leases::new(store_at(&path).await);
    let lease = leases.acquire("key", LONG).await.unwrap();
    fs::hard_link(&path, &other).unwrap();

    let text = refused(&other).await;
    assert!(text.contains("another name"), "{text}");
    assert!(!other.with_extension("db-wal").exists());
    let error = leases.try_acquire("other", LONG).await.unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error:?}");

    fs::remove_file(&other).unwrap();
    lease.release().await.unwrap();
}

/// SQLite uses the name that the link leads to.
#[tokio::test]
async fn a_symbolic_link_is_the_file_that_it_leads_to() {
    let (path, other) = (path(), path());
    symlink(&path, &other).unwrap();
    let there = Leases::new(store_at(&other).await);
    there.acquire("key", LONG).await.unwrap().detach().unwrap();
    let here = Leases::new(store_at(&path).await);
    let attempt = here.try_acquire("key", LONG).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
}

/// The path is made absolute, so that a change of the program's working directory does not matter. A test that changed
/// the directory would disturb others.
#[tokio::test]
async fn a_relative_path_is_one_from_the_root_on() {
    let path = path();
    let folder = env::current_dir().unwrap();
    // `cargo test` runs a test in the folder of its package, and `scripts/test` in that of the project.
    let relative = match path.strip_prefix(&folder) {
        Ok(below) => below.to_owned(),
        Err(_) => Path::new("..").join(path.strip_prefix(project()).unwrap()),
    };
    let store = SqliteStore::open(&relative).await.unwrap();
    assert_eq!(store.path(), folder.join(relative));
    assert_eq!(store.path().canonicalize().unwrap(), path);
}

#[tokio::test]
async fn without_a_path_there_is_an_error() {
    let opened = SqliteStore::open(Path::new("")).await;
    assert!(matches!(opened, Err(Error::File { .. })), "{opened:?}");
}

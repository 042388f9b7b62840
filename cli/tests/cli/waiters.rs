//! What `leasehold ls` and `leasehold inspect` show of the processes that wait for a key.

use std::time::Duration;

use leasehold::{
    Key, SqliteStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseRequest, Turn},
};

use super::{Place, run};

const TTL: Duration = Duration::from_secs(3_600);

/// The store of a file.
pub(super) async fn store(place: &Place) -> SqliteStore {
    let path = place.0.strip_prefix("file:").unwrap();
    SqliteStore::open(path).await.unwrap()
}

/// One process holds the key, and two others wait for it.
pub(super) async fn wait_for(store: &SqliteStore, key: &Key) -> LeaseId {
    let holder = LeaseId::random();
    let request =
        |owner: &str| AcquireRequest::exclusive(key.clone(), LeaseId::random(), owner.into(), TTL);
    let turn = || Turn::in_turn(LeaseId::random(), Duration::from_secs(60));
    let held = AcquireRequest::exclusive(key.clone(), holder, "holder".into(), TTL);
    let answer = store.acquire(&held).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    for request in [
        request("writer").turn(turn()),
        request("reader").shared().turn(turn()),
    ] {
        let answer = store.acquire(&request).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
    }
    holder
}

#[tokio::test]
async fn processes_that_wait_are_shown_in_their_order() {
    let place = Place::file();
    let store = store(&place).await;
    let key = Key::new("job").unwrap();
    let holder = wait_for(&store, &key).await;
    let lines = |words: &[&str], code| {
        let table = run(place.command(words));
        let lines = table.with(code).lines().skip(1).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    for words in [["ls", "--prefix", "job"].as_slice(), &["inspect", "job"]] {
        let [held, writer, reader] = &lines(words, 0)[..] else {
            panic!("{words:?} shows too much or too little");
        };
        assert!(held.contains("holder"), "{held}");
        assert!(
            writer.contains("1 of 2 waiting: exclusive") && writer.contains("writer"),
            "{writer}"
        );
        assert!(
            reader.contains("2 of 2 waiting: shared") && reader.contains("reader"),
            "{reader}"
        );
    }
    let lock = place.json(["inspect", "job", "--json"]);
    let waiters = lock["waiters"].as_array().unwrap();
    let owners: Vec<_> = waiters.iter().map(|waiter| &waiter["owner"]).collect();
    assert_eq!(owners, ["writer", "reader"]);
    assert!(
        waiters
            .iter()
            .all(|waiter| waiter["waits_ms"].as_u64().is_some()),
        "{lock}"
    );
    // The key is free, and kept for them.
    store
        .release(&ReleaseRequest::new(key, holder))
        .await
        .unwrap();
    let [free, _, _] = &lines(&["inspect", "job"], 1)[..] else {
        panic!("it does not show who waits");
    };
    assert!(free.contains("free"), "{free}");
}

/// The key is free, and kept for others that wait.
#[tokio::test]
async fn a_free_key_that_is_kept_for_others_is_not_called_held() {
    let place = Place::file();
    let store = store(&place).await;
    // On a slow machine the time for which the key is kept may be over before the command asks.
    let mut number = 0;
    let refused = loop {
        number += 1;
        let key = Key::new(format!("job {number}")).unwrap();
        let holder = wait_for(&store, &key).await;
        let release = ReleaseRequest::new(key.clone(), holder);
        store.release(&release).await.unwrap();
        let ended = place.leasehold(["run", key.as_str(), "--", "true"]);
        if ended.code != 0 {
            break ended;
        }
        assert!(number < 50, "the command is never refused");
    };
    let said = refused.saying(75);
    assert!(
        said.contains("is free, but kept for 2 that wait, for ") && said.contains(" or less"),
        "{said}"
    );
}

#[tokio::test]
async fn a_command_that_waits_says_whom_it_waits_for() {
    let place = Place::file();
    let store = store(&place).await;
    let key = Key::new("job").unwrap();
    let holder = wait_for(&store, &key).await;
    let words = ["run", "job", "--wait", "5s", "--", "true"];
    let waits = run(place.command(words));
    let said = "leasehold: job waits: holder holds it, and 2 processes come first";
    assert_eq!(waits.saying(75).matches(said).count(), 1, "{}", waits.err);
    let mut quiet = words.to_vec();
    quiet.insert(2, "--quiet");
    assert_eq!(run(place.command(&quiet)).saying(75), "");
    store
        .release(&ReleaseRequest::new(key, holder))
        .await
        .unwrap();
    let tick = ["run", "other", "--quiet", "--tick", "7", "--", "true"];
    for _ in 0..2 {
        assert_eq!(run(place.command(tick)).saying(0), "");
    }
}

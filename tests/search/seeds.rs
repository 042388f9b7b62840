//! The Elasticsearch locks of the seed documents, as these tell of them, on both engines.

use std::time::Duration;

use elasticsearch::http::Method::{Delete, Put};
use futures::TryStreamExt;
use leasehold::{Attempt, Error, Filter};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, builder, leases};

/// "Global lock": one key for a whole index, `_create`d by the first process. The second process is
/// refused, and retries until the first has released the key.
#[tokio::test]
async fn the_global_lock_is_held_until_its_release() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (one, two) = (leases(fixture.store()), leases(fixture.store()));

        let first = one.acquire("files/global", LONG).await.unwrap();
        let refused = two.try_acquire("files/global", LONG).await.unwrap();
        assert!(matches!(refused, Attempt::Held(_)));
        let waiting = two.acquire("files/global", LONG).wait_for(LONG);
        let waiting = tokio::spawn(waiting.into_future());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished());

        first.release().await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        second.release().await.unwrap();
    }
}

/// The source names the flaw itself: everybody knows the id, so a delete by any process frees the
/// lock. Here a release names its lease.
#[tokio::test]
async fn nobody_but_its_holder_releases_the_global_lock() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (one, two) = (leases(fixture.store()), leases(fixture.store()));
        let first = one.acquire("files/global", LONG).await.unwrap();
        let slow = two.acquire("other", LONG).await.unwrap();
        let request = leasehold::store::ReleaseRequest::new(first.key().clone(), slow.id());
        let answer = fixture.store().release(&request).await.unwrap();
        assert_eq!(answer, leasehold::store::ReleaseAnswer::NotHeld);
        let held = two.try_acquire("files/global", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)));

        // The control: the lock of the source is a `_create` and a delete by id, and there any
        // process can delete it.
        let lock = format!("{}-source/_doc/global", fixture.alias);
        let create = format!("{}-source/_create/global", fixture.alias);
        assert_eq!(
            fixture.ask(Put, &create, json!({})).await["result"],
            "created"
        );
        assert_eq!(fixture.ask(Put, &create, json!({})).await["status"], 409);
        assert_eq!(
            fixture.ask(Delete, &lock, Value::Null).await["result"],
            "deleted"
        );
        assert_eq!(
            fixture.ask(Put, &create, json!({})).await["result"],
            "created"
        );
    }
}

/// "Document lock": a lock for each document. Other processes go on with other documents. A process
/// that asks for the same one gets the holder as an answer, and not by a script that throws.
#[tokio::test]
async fn a_document_lock_locks_its_document_and_tells_who_holds_it() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let process = |owner: &str| builder(fixture.store()).owner(owner).build();
        let (one, two) = (process("process 123"), process("process 234"));

        let first = one.acquire("fs/1", LONG).await.unwrap();
        let other = two.acquire("fs/2", LONG).await.unwrap();
        let Attempt::Held(held) = two.try_acquire("fs/1", LONG).await.unwrap() else {
            panic!("two processes have the lock of one document");
        };
        assert_eq!(held.owner(), "process 123");
        assert!(held.expires_in() <= LONG && held.expires_in() > LONG / 2);
        let state = two.inspect("fs/1").await.unwrap().unwrap();
        assert_eq!(state.owner(), Some("process 123"));
        assert!(state.fence >= first.fence());

        first.release().await.unwrap();
        let next = two.acquire("fs/1", LONG).await.unwrap();
        assert!(next.fence() > state.fence);
        next.release().await.unwrap();
        other.release().await.unwrap();
    }
}

/// "Find the locks of a process by a search, and release them in bulk": for a process that died, or
/// that has finished with all of its documents.
#[tokio::test]
async fn the_locks_of_a_process_are_found_and_released() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let process = |owner: &str| builder(fixture.store()).owner(owner).build();
        let (one, two) = (process("process 123"), process("process 234"));
        let mut held = Vec::new();
        for document in 0..20 {
            held.push(
                one.acquire(format!("fs/{document:02}"), LONG)
                    .await
                    .unwrap(),
            );
        }
        let other = two.acquire("fs/99", LONG).await.unwrap();

        let found: Vec<_> = two
            .list(Filter::new().owner("process 123"))
            .map_ok(|lock| lock.key.to_string())
            .try_collect()
            .await
            .unwrap();
        let expected: Vec<_> = (0..20)
            .map(|document| format!("fs/{document:02}"))
            .collect();
        assert_eq!(found, expected);

        assert_eq!(two.release_owner("process 123").await.unwrap(), 20);
        let next = two
            .acquire("fs/07", LONG)
            .wait_for(Duration::ZERO)
            .await
            .unwrap();
        let late = held.swap_remove(7).release().await;
        assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
        next.release().await.unwrap();
        other.release().await.unwrap();
    }
}

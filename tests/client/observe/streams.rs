//! What is reported of the streams of a store.

use async_trait::async_trait;
use futures::{StreamExt, stream};
use leasehold::{
    Error, Leases, MemoryStore, Store,
    store::{AwaitedKeys, Cause},
};
use leasehold_tests::layer::{Layer, Layered};
use tokio::time::sleep;

use super::journal::{Journal, event, events};
use crate::{MOMENT, TTL};

/// Its stream of keys for which processes begin to wait breaks at once.
#[derive(Debug)]
struct BreaksOff(MemoryStore);

#[async_trait]
impl Layer for BreaksOff {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        let error = Error::Interrupted {
            store: "a store",
            source: Cause::text("the stream breaks"),
        };
        Ok(Some(stream::iter([Err(error)]).boxed()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_keys_that_are_waited_for() {
    let journal = Journal::new();
    let leases = Leases::new(Layered(BreaksOff(MemoryStore::new())));
    let lease = leases.acquire("key", TTL).sticky(TTL).await.unwrap();
    lease.release().await.unwrap();
    let mut entries = Vec::new();
    while events(&entries, "no recalls from the store").is_empty() {
        sleep(MOMENT / 2).await;
        entries.extend(journal.entries());
    }
    let opened = event(&entries, "the store tells of processes that begin to wait");
    assert_eq!(opened["level"], "DEBUG");
    let failed = event(&entries, "a call to the store failed");
    assert_eq!(failed["fields"]["operation"], "awaited");
    let told = event(&entries, "no recalls from the store");
    assert_eq!(told["level"], "WARN");
    assert!(told["fields"]["error"].is_string());
    assert!(events(&entries, "the store tells of keys").is_empty());
    assert!(events(&entries, "no wake-ups").is_empty());
}

/// A memory store has neither stream.
#[tokio::test(start_paused = true)]
async fn a_store_without_the_stream() {
    let journal = Journal::new();
    let leases = Leases::new(MemoryStore::new());
    let lease = leases.acquire("key", TTL).sticky(TTL).await.unwrap();
    lease.release().await.unwrap();
    sleep(TTL / 2).await;
    let entries = journal.entries();
    let told = event(&entries, "the store tells nothing of processes that wait");
    assert_eq!(told["level"], "DEBUG");
    assert!(events(&entries, "the store tells nothing of free keys").is_empty());
}

//! The stream of keys for which processes begin to wait, on the complete server.

use std::time::Duration;

use futures::StreamExt;
use leasehold::{
    Attempt, Error, Key, Leases, MongoStore, Store,
    store::{
        AcquireAnswer, AcquireRequest, AwaitedKeys, InTurn, LeaseId, LookAnswer, LookRequest, Turn,
    },
};
use leasehold_tests::layer::{Layer, Layered};
use tokio::time::{sleep, timeout};

use super::{Engine, Fixture, LONG, PATIENCE};

/// How long a place stays, which is longer than the test.
const STAYS: Duration = Duration::from_secs(50);
/// After this time a place is written again, and one of a millisecond is dead.
const LATER: Duration = Duration::from_secs(1);

fn ask(key: &str) -> AcquireRequest {
    let key = Key::new(key).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

fn wait(key: &str, waiter: LeaseId) -> AcquireRequest {
    ask(key).turn(Turn::in_turn(waiter, STAYS))
}

async fn refused(store: &MongoStore, request: AcquireRequest) {
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
}

async fn next(awaited: &mut AwaitedKeys) -> Vec<String> {
    let keys = async {
        loop {
            let keys = awaited.next().await.unwrap().unwrap();
            if !keys.is_empty() {
                return keys.iter().map(Key::to_string).collect();
            }
        }
    };
    timeout(PATIENCE, keys).await.unwrap()
}

#[tokio::test]
async fn each_place_is_told_when_it_is_taken_and_nothing_else_is() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    let mut awaited = store.awaited().await.unwrap().unwrap();
    let leases = Leases::new(store.clone());
    for key in ["one", "two"] {
        leases.acquire(key, LONG).await.unwrap().detach().unwrap();
    }
    let [first, second] = [LeaseId::random(), LeaseId::random()];
    refused(&store, wait("one", first)).await;
    assert_eq!(next(&mut awaited).await, ["one"]);
    // The same process asks again, late enough for its place to be written again.
    sleep(LATER).await;
    refused(&store, wait("one", first)).await;
    // An attempt without a place, a renewal, a release and an eviction.
    let attempt = leases.try_acquire("one", LONG).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));
    let other = leases.acquire("other", LONG).await.unwrap();
    other.renew().await.unwrap();
    other.release().await.unwrap();
    leases.evict("other").await.unwrap();

    refused(&store, wait("two", first)).await;
    assert_eq!(next(&mut awaited).await, ["two"]);
    refused(&store, wait("one", second)).await;
    assert_eq!(next(&mut awaited).await, ["one"], "a second place");
}

/// The new place stands in the list where the old one was.
#[tokio::test]
async fn a_place_that_comes_after_a_dead_one_is_told() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    let mut awaited = store.awaited().await.unwrap().unwrap();
    let leases = Leases::new(store.clone());
    leases.acquire("key", LONG).await.unwrap().detach().unwrap();
    let dies = InTurn::new(LeaseId::random(), Duration::from_millis(1));
    refused(&store, ask("key").turn(Turn::InTurn(dies))).await;
    assert_eq!(next(&mut awaited).await, ["key"]);
    sleep(LATER).await;
    refused(&store, wait("key", LeaseId::random())).await;
    assert_eq!(next(&mut awaited).await, ["key"]);
}

/// A store whose looks tell that nobody waits, so that only the stream can tell.
#[derive(Clone, Debug)]
struct Unasked(MongoStore);

#[async_trait::async_trait]
impl Layer for Unasked {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        Ok(vec![LookAnswer::new(true, false); leases.len()])
    }
}

#[tokio::test]
async fn a_lease_that_stays_goes_to_a_process_that_the_stream_tells_of() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    let leases = Leases::new(Layered(Unasked(store.clone())));
    let other = Leases::new(store.clone());
    // Far longer than the test may take.
    let idle = PATIENCE * 10;
    let mut fence = None;
    for key in ["one", "two", "three"] {
        let lease = leases.acquire(key, LONG).sticky(idle).await.unwrap();
        fence = fence.max(Some(lease.fence()));
        lease.release().await.unwrap();
        let attempt = other.try_acquire(key, LONG).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)), "the control: it stays");
        // The stream may not be open yet when the process begins to wait for the first key. Each later wait takes a
        // place of its own.
        let got = async {
            loop {
                let wait = Duration::from_secs(5);
                match other.acquire(key, LONG).wait_for(wait).await {
                    Err(Error::WaitTimedOut { .. }) => {}
                    got => return got.unwrap(),
                }
            }
        };
        let lease = timeout(PATIENCE, got).await.unwrap();
        assert!(Some(lease.fence()) > fence);
        lease.release().await.unwrap();
    }
}

//! A holder that was evicted does not hold up the next request.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold::{
    Key, Store,
    store::{Access, AcquireAnswer, AcquireRequest, LeaseId},
};
use tokio::time::Instant;

use super::{PATIENCE, cancel::Setting, proxy::Proxy};

const TTL: Duration = Duration::from_secs(600);
/// How late an answer comes. It is the only one from which the client knows the server's time. The test shows something
/// only if all requests after it take less time than that, which is measured, and if the client still remembers the
/// answer by then: it forgets it after ten seconds.
const LATE: Duration = Duration::from_secs(5);

fn ask(key: &str) -> AcquireRequest {
    let key = Key::new(key).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), TTL)
}

/// The client takes the server's time from an answer that came late, so it takes the time for earlier than it is. It
/// evicts a holder, and asks for the key. The evicted holder must not be in the way.
pub async fn is_not_in_the_way(setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>) {
    let start = Instant::now();
    for access in [Access::Shared, Access::Exclusive] {
        loop {
            let took = time_of_eviction(setting, access).await;
            println!("the client is {LATE:?} behind, and its requests took {took:?}");
            if took < LATE {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "each time they took too long");
        }
    }
}

/// How long the client took from the late answer to the last one.
async fn time_of_eviction(
    setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
    access: Access,
) -> Duration {
    let proxy = Proxy::to(setting.host.clone()).await;
    let store = (setting.connect)(proxy.address).await;
    let gate = proxy.hold_the_answer_to(setting.words.acquire);
    gate.open_after(LATE);
    let other = ask(&format!("another key {}", LeaseId::random()));
    store.acquire(&other).await.unwrap();
    let start = Instant::now();

    setting.direct.acquire(&ask("key")).await.unwrap();
    let key = Key::new("key").unwrap();
    let evicted = store.evict(&key).await.unwrap();
    assert_eq!(evicted.unwrap().evicted.len(), 1);
    let mut request = ask("key").fresh();
    request.access = access;
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    let took = start.elapsed();
    store.evict(&key).await.unwrap();
    took
}

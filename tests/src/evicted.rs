//! Who was evicted, in the eyes of who asks next.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold::{AcquireAnswer, AcquireRequest, Key, LeaseId, Mode, Store};
use tokio::time::Instant;

use super::{cancel::Setting, proxy::Proxy};

const TTL: Duration = Duration::from_secs(600);
/// How late the only answer is by which the client knows the server's time. The test shows something where that
/// is longer than the requests take, which is measured; on a slow machine it is tried again with the next.
const LATE: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(40),
];

fn ask(key: &str) -> AcquireRequest {
    let key = Key::new(key).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), TTL)
}

/// A client takes the server's time from an answer that came late, and so for earlier than it is. It evicts a
/// holder, and asks in a way that is refused: the holder is not in the way any more.
pub async fn is_not_in_the_way(setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>) {
    for late in LATE {
        let took = is_not_in_the_way_after(setting, late).await;
        println!("the requests took {took:?}, the client is {late:?} behind");
        if took < late {
            return;
        }
    }
    panic!("the requests took longer than the client is behind");
}

/// How long the longer eviction took, with the question after it.
async fn is_not_in_the_way_after(
    setting: &Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>>,
    late: Duration,
) -> Duration {
    let proxy = Proxy::to(setting.host.clone()).await;
    let store = (setting.connect)(proxy.address).await;
    let gate = proxy.hold_the_answer_to(setting.words.acquire);
    gate.open_after(late);
    store
        .acquire(&ask(&format!("another key {late:?}")))
        .await
        .unwrap();

    // MongoDB tells the time when the first of these is exclusive.
    let mut longest = Duration::ZERO;
    for mode in [Mode::Shared, Mode::Exclusive] {
        setting.direct.acquire(&ask("key")).await.unwrap();
        let start = Instant::now();
        let evicted = store.evict(&Key::new("key").unwrap()).await.unwrap();
        assert_eq!(evicted.unwrap().evicted.len(), 1);
        let mut request = ask("key").in_place_of(LeaseId::random()).fresh();
        request.mode = mode;
        let AcquireAnswer::Held(held) = store.acquire(&request).await.unwrap() else {
            panic!("granted in the place of nobody");
        };
        longest = longest.max(start.elapsed());
        assert_eq!(held.holders(), [], "{mode:?}");
    }
    longest
}

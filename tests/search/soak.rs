//! Work behind a bad network, for a while.

use leasehold_tests::{proxy::Proxy, soak::soak};
use std::time::Duration;

use futures::future::join_all;

use super::{BOTH, Engine, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_without_a_tenth_of_the_answers_loses_no_lease_and_leaks_no_lock() {
    join_all(BOTH.map(bad_minute)).await;
}

async fn bad_minute(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let proxy = Proxy::to(fixture.host()).await;
    let url = format!("http://{}", proxy.address);
    let clients = vec![fixture.store_at(&url), fixture.store_at(&url)];
    proxy.lose_share_of_answers(0.1, 1, &["_update", "_bulk"]);
    let minute = Duration::from_secs(60);
    let tally = soak(clients, fixture.store(), minute, || proxy.behave()).await;
    println!("{engine:?}: {} answers were lost; {tally:?}", proxy.lost());
    tally.unwrap();
    assert!(proxy.lost() >= 20, "{} answers were lost", proxy.lost());
}

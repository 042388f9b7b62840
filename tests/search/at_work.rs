//! Ordinary work behind a bad network, until enough has happened.

use leasehold_tests::{
    long,
    proxy::Proxy,
    soak::{Tally, soak},
};

use futures::future::join_all;

use super::{BOTH, Engine, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_without_a_tenth_of_the_answers_loses_no_lease_and_leaks_no_lock() {
    join_all(BOTH.map(work)).await;
}

async fn work(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let proxy = Proxy::to(fixture.host()).await;
    let url = format!("http://{}", proxy.address);
    let clients = vec![fixture.store_at(&url), fixture.store_at(&url)];
    proxy.lose_share_of_answers(0.1, 1, &["_update", "_bulk"]);
    let times = if long() { 200 } else { 20 };
    let enough = |tally: &Tally| tally.has_all(times) && proxy.lost() >= times;
    let tally = soak(clients, fixture.store(), enough, || proxy.behave()).await;
    println!("{engine:?}: {} answers were lost; {tally:?}", proxy.lost());
    tally.unwrap();
}

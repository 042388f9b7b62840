//! Ordinary work behind a bad network, until enough has happened.

use std::sync::Arc;

use leasehold::{MongoStore, Store};
use leasehold_tests::{
    long,
    proxy::Proxy,
    soak::{Tally, soak},
};
use mongodb::bson::Document;

use super::{Engine, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_without_a_tenth_of_the_answers_loses_no_lease_and_leaks_no_lock() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let server: Arc<dyn Store> = Arc::new(fixture.store().await);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    // The driver waits endlessly for an answer that was swallowed, and each such wait uses up a
    // connection.
    let mut clients: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..2 {
        let options = fixture.options_at(proxy.address, "&maxPoolSize=1000");
        let options = options.await;
        let locks = fixture.collection_with(options);
        clients.push(Arc::new(MongoStore::new::<Document>(&locks)));
    }
    proxy.lose_share_of_answers(0.1, 1, &["findAndModify", "update"]);
    let times = if long() { 200 } else { 20 };
    let enough = |tally: &Tally| tally.has_all(times / 2) && proxy.lost() >= times;
    let tally = soak(clients, server, enough, || proxy.behave()).await;
    println!("{} answers were lost; {tally:?}", proxy.lost());
    tally.unwrap();
}

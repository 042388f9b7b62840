//! Work behind a bad network, for a while.

use std::{sync::Arc, time::Duration};

use leasehold::{MongoStore, Store};
use leasehold_tests::{proxy::Proxy, soak::soak};
use mongodb::{bson::Document, options::ClientOptions};

use super::{Engine, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_without_a_tenth_of_the_answers_loses_no_lease_and_leaks_no_lock() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let server: Arc<dyn Store> = Arc::new(fixture.store().await);
    let proxy = Proxy::to(fixture.options().await.hosts[0].to_string()).await;
    // The driver waits for ever for an answer that was swallowed, and with it goes a connection.
    let uri = format!(
        "mongodb://{}/?directConnection=true&maxPoolSize=1000",
        proxy.address
    );
    let mut clients: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..2 {
        let options = ClientOptions::parse(&uri).await.unwrap();
        let locks = fixture.collection_with(options);
        clients.push(Arc::new(MongoStore::new::<Document>(&locks)));
    }
    proxy.lose_share_of_answers(0.1, 1, &["findAndModify", "update"]);
    let minute = Duration::from_secs(60);
    let tally = soak(clients, server, minute, || proxy.behave()).await;
    println!("{} answers were lost; {tally:?}", proxy.lost());
    tally.unwrap();
    assert!(proxy.lost() >= 20, "{} answers were lost", proxy.lost());
}

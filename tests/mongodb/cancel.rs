//! Operations that are dropped leave no lock behind, on the complete server.

use std::{net::SocketAddr, sync::Arc};

use leasehold::{MongoStore, Store};
use leasehold_tests::{
    cancel::{
        Setting, Words,
        faults::{CUTS, FAULTS},
        leaves_no_lock_behind, one_that_abandons_its_request_is_caught,
    },
    evicted,
};
use mongodb::bson::Document;

use super::{Engine, Fixture, PATIENCE};

static WORDS: Words = Words {
    acquire: "findAndModify",
    renew: "findAndModify",
    // These bytes are the name of the command. A `findAndModify` has a field of that name too, but
    // of another type.
    release: "\x02update\0",
};

/// Clients whose driver sends a write again when its answer was lost, or clients whose driver does
/// not.
async fn setting(retries: bool) -> Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>> {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let store = fixture.store().await;
    store.prepare().await.unwrap();
    Setting {
        host: fixture.options().await.hosts[0].to_string(),
        direct: Arc::new(store),
        connect: async move |address| {
            let retries = format!("&retryWrites={retries}");
            let options = fixture.options_at(address, &retries).await;
            let locks = fixture.collection_with(options);
            Arc::new(MongoStore::new::<Document>(&locks)) as Arc<dyn Store>
        },
        words: &WORDS,
        // The driver never gives a request up.
        bound: PATIENCE,
    }
}

#[tokio::test]
async fn what_is_given_up_leaves_no_lock_behind() {
    leaves_no_lock_behind(&setting(true).await, &FAULTS).await;
}

#[tokio::test]
async fn what_is_given_up_without_the_drivers_retries_leaves_no_lock_behind() {
    leaves_no_lock_behind(&setting(false).await, &CUTS).await;
}

#[tokio::test]
async fn a_client_that_abandons_its_request_leaves_a_lock_behind() {
    one_that_abandons_its_request_is_caught(&setting(true).await).await;
}

#[tokio::test]
async fn who_was_evicted_is_not_in_the_way() {
    evicted::is_not_in_the_way(&setting(true).await).await;
}

//! Several operating-system processes on one engine.

use std::sync::Arc;

use leasehold::MongoStore;
use mongodb::{Client, bson::Document};

use super::{
    DATABASE, Engine, Fixture,
    common::processes::{self, Place},
};

/// Not a test of its own: what a started process does. Without a task there is nothing to do.
#[tokio::test]
async fn the_work_of_a_process() {
    if let Some((task, _, address, name)) = processes::task() {
        let client = Client::with_uri_str(address).await.unwrap();
        let locks = client.database(DATABASE).collection::<Document>(&name);
        processes::work(&task, Arc::new(MongoStore::new(&locks))).await;
    }
}

fn place(engine: Engine) -> Place {
    let fixture = Fixture::new(engine);
    Place {
        kind: "mongodb",
        address: fixture.uri,
        name: fixture.name,
    }
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        processes::takeover_from_a_killed_process(&place(engine)).await;
    }
}

#[tokio::test]
async fn of_processes_that_race_for_a_key_one_wins() {
    processes::race_of_processes(&place(Engine::MongoDb)).await;
}

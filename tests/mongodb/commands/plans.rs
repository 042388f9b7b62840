//! Which execution path the server takes for a command.

use leasehold::{Attempt, Leases, MongoStore};
use mongodb::bson::{Bson, Document, doc};

use super::{WITH_SEVERAL_HOLDERS, run_with_several_holders};
use crate::{DATABASE, Engine, Fixture, LONG};

/// The stages of the server's plan for a command that was sent.
async fn stages(fixture: &Fixture, mut command: Document) -> Vec<String> {
    // These fields belong to the connection and not to the command.
    for field in [
        "lsid",
        "$db",
        "txnNumber",
        "$clusterTime",
        "writeConcern",
        "readConcern",
    ] {
        command.remove(field);
    }
    let explained = fixture
        .collection()
        .await
        .client()
        .database(DATABASE)
        .run_command(doc! { "explain": command, "verbosity": "queryPlanner" })
        .await
        .unwrap();
    let mut stages = Vec::new();
    let planner = explained.get_document("queryPlanner").unwrap();
    collect_stages(planner.get("winningPlan").unwrap(), &mut stages);
    stages
}

fn collect_stages(plan: &Bson, stages: &mut Vec<String>) {
    match plan {
        Bson::Document(plan) => {
            stages.extend(plan.get_str("stage").ok().map(str::to_owned));
            plan.values()
                .for_each(|value| collect_stages(value, stages));
        }
        Bson::Array(plans) => plans.iter().for_each(|plan| collect_stages(plan, stages)),
        _ => {}
    }
}

#[tokio::test]
async fn the_server_finds_the_document_on_its_shortest_path() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let (collection, commands) = fixture.watched().await;
        let store = MongoStore::new(&collection);
        store.prepare().await.unwrap();
        let other = Leases::new(store.clone());
        let leases = Leases::new(store);
        let lease = leases.acquire("key", LONG).await.unwrap();
        commands.take();

        let held = other.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)));
        lease.renew().await.unwrap();
        leases.inspect("key").await.unwrap();
        lease.release().await.unwrap();
        leases.evict("key").await.unwrap();

        run_with_several_holders(&MongoStore::new(&collection)).await;

        let sent = commands.take();
        assert_eq!(sent.len(), 5 + WITH_SEVERAL_HOLDERS.len());
        for command in sent {
            let name = command.keys().next().cloned();
            let stages = stages(&fixture, command).await;
            // Servers from 8.0 on call the short path EXPRESS, and older ones call it IDHACK.
            let short = stages
                .iter()
                .any(|stage| stage.starts_with("EXPRESS") || stage == "IDHACK");
            let long = stages
                .iter()
                .any(|stage| ["FETCH", "IXSCAN", "COLLSCAN"].contains(&stage.as_str()));
            assert!(short && !long, "{engine:?}: {name:?} runs as {stages:?}");
        }
    }
}

/// The control of the test above: a condition in the filter makes the server leave the short path,
/// and the test sees that.
#[tokio::test]
async fn a_condition_in_the_filter_would_lose_the_path() {
    let fixture = Fixture::new(Engine::MongoDb);
    fixture.store().await.prepare().await.unwrap();
    let command = doc! {
        "update": &fixture.name,
        "updates": [{ "q": { "_id": "key", "schema": 1 }, "u": [{ "$set": { "fence": 1 } }] }],
    };
    let stages = stages(&fixture, command).await;
    assert!(stages.iter().any(|stage| stage == "FETCH"), "{stages:?}");
}

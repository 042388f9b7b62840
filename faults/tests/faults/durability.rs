//! What was acknowledged survives a kill.

use futures::future::try_join_all;
use leasehold_faults::{
    check::Violations,
    durability::{
        HEADER, SERVERS, is_caught,
        journal::{Deployment, nothing_is_acknowledged},
        survives,
    },
};

use crate::alone;

const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_standalone_server_has_acknowledged_is_there_after_a_kill() {
    let _alone = alone().await;
    println!("{HEADER}");
    let outcomes = try_join_all(SERVERS.map(|server| survives(server, 2, SEED)));
    for outcome in outcomes.await.unwrap() {
        println!("{}", outcome.row);
        assert_eq!(outcome.violations, Violations::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_acknowledges_too_early_is_caught() {
    let _alone = alone().await;
    println!("{HEADER}");
    // About two kills are enough to lose something, so it is no accident if this many kills lose nothing.
    let outcomes = try_join_all(SERVERS.map(|server| is_caught(server, 100, SEED)));
    for outcome in outcomes.await.unwrap() {
        println!("{}", outcome.row);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_journal_stands_still_nothing_is_acknowledged() {
    let _alone = alone().await;
    let deployments = [
        Deployment::Newer,
        Deployment::Standalone,
        Deployment::Set(true),
        Deployment::Set(false),
    ];
    try_join_all(deployments.map(nothing_is_acknowledged))
        .await
        .unwrap();
}

//! Tests that no violation occurs on the engines, whatever faults happen. `scripts/nightly` also runs the laboratory on
//! a replica set of one member, which has the statements of that of three and none of its elections.

use std::{path::Path, time::Duration};

use leasehold_faults::{
    HANGS,
    broken::Wrong,
    check::Violations,
    lab::Setup,
    plan::Plan,
    report::{HEADER, HEADER_OF_CONTROLS},
};

use crate::alone;

/// A plan in which each fault happens once.
const EACH_ONCE: Plan = Plan {
    lasts: Duration::ZERO,
    seed: 1,
    period: None,
    workers: 11,
    dawdles: 30,
    locks_only: false,
    wrong: Wrong::Nothing,
};

async fn start(engine: &'static str) -> Setup {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold-faults"));
    Setup::start(engine, program).await.unwrap()
}

async fn nothing_is_violated(setup: &mut Setup) {
    let report = setup.run(EACH_ONCE).await.unwrap();
    println!("{HEADER}\n{report}");
    assert_eq!(report.violations, Violations::new());
}

async fn each_once_on(engine: &'static str) {
    let _alone = alone().await;
    let mut setup = start(engine).await;
    nothing_is_violated(&mut setup).await;
    setup.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongodb() {
    each_once_on("mongodb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_elasticsearch() {
    each_once_on("elasticsearch").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_opensearch() {
    each_once_on("opensearch").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_three_nodes_of_elasticsearch() {
    each_once_on("elasticsearch-three").await;
}

/// The same servers also show that a write acknowledged by a single member is caught. This cannot be tested without
/// servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_replica_set_of_three_members() {
    let _alone = alone().await;
    let mut setup = start("mongodb-three").await;
    nothing_is_violated(&mut setup).await;
    let one_member_acknowledges = Plan {
        lasts: HANGS,
        period: Some(Duration::from_secs(10)),
        workers: 15,
        dawdles: 20,
        wrong: Wrong::OneMemberAcknowledges,
        ..EACH_ONCE
    };
    let report = setup.run(one_member_acknowledges).await.unwrap();
    println!("{HEADER_OF_CONTROLS}\n{}", report.of_control());
    assert!(report.is_caught(), "it was not caught");
    // Without a rollback, this run would not show that the error is caught.
    assert_ne!(report.rollbacks, Some(0));
    setup.stop().await;
}

/// The clock of one router is a minute ahead. The same servers also show that an error is caught: the clients ask the
/// routers for the time, as a store does that takes them for primaries, and one router is 5 s ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_sharded_cluster() {
    let _alone = alone().await;
    let mut setup = start("mongodb-sharded").await;
    let report = setup
        .run(Plan {
            locks_only: true,
            ..EACH_ONCE
        })
        .await
        .unwrap();
    println!("{HEADER}\n{report}");
    assert_eq!(report.violations, Violations::new());
    let asks_routers = Plan {
        lasts: HANGS,
        period: Some(HANGS),
        dawdles: 5,
        wrong: Wrong::AsksRouters,
        ..EACH_ONCE
    };
    let report = setup.run(asks_routers).await.unwrap();
    println!("{HEADER_OF_CONTROLS}\n{}", report.of_control());
    assert!(report.is_caught(), "it was not caught");
    setup.stop().await;
}

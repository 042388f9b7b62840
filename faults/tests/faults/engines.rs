//! Tests that no violation occurs on the engines that run without an emulator, whatever faults happen.
//! `tests/emulated.rs` has the others.

use std::path::Path;

use leasehold_faults::{check::Violations, lab::Setup, plan::Plan, report::HEADER};

use crate::alone;

async fn each_once_on(engine: &'static str) {
    let _alone = alone().await;
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold-faults"));
    let mut setup = Setup::start(engine, program).await.unwrap();
    let report = setup.run(Plan::EACH_ONCE).await.unwrap();
    println!("{HEADER}\n{report}");
    assert_eq!(report.violations, Violations::new());
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

//! The fault laboratory on the engines that run under an emulator: a replica set of one member, one of three, and a
//! sharded cluster. The tests are like those of `tests/faults/engines.rs`.
//!
//! On a slow machine each of them takes ten minutes and more, so `cargo test` leaves them out. `scripts/nightly` runs
//! them: `cargo test -p leasehold-faults --test emulated`.

use std::{path::Path, time::Duration};

use leasehold_faults::{
    HANGS,
    broken::Wrong,
    check::Violations,
    lab::Setup,
    plan::Plan,
    report::{HEADER, HEADER_OF_CONTROLS},
};
use tokio::sync::{Mutex, MutexGuard};

/// Several setups at the same time would disturb each other.
async fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

async fn start(engine: &'static str) -> Setup {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold-faults"));
    Setup::start(engine, program).await.unwrap()
}

async fn nothing_is_violated(setup: &mut Setup, plan: Plan) {
    let report = setup.run(plan).await.unwrap();
    println!("{HEADER}\n{report}");
    assert_eq!(report.violations, Violations::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_replica_set_of_one_member() {
    let _alone = alone().await;
    let mut setup = start("mongodb-replset").await;
    nothing_is_violated(&mut setup, Plan::EACH_ONCE).await;
    setup.stop().await;
}

/// The same servers also show that a write acknowledged by a single member is caught. This cannot be tested without
/// servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_replica_set_of_three_members() {
    let _alone = alone().await;
    let mut setup = start("mongodb-three").await;
    nothing_is_violated(&mut setup, Plan::EACH_ONCE).await;
    let one_member_acknowledges = Plan {
        lasts: HANGS,
        period: Some(Duration::from_secs(10)),
        workers: 15,
        dawdles: 20,
        wrong: Wrong::OneMemberAcknowledges,
        ..Plan::EACH_ONCE
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
    let locks_only = Plan {
        locks_only: true,
        ..Plan::EACH_ONCE
    };
    nothing_is_violated(&mut setup, locks_only).await;
    let asks_routers = Plan {
        lasts: HANGS,
        period: Some(HANGS),
        dawdles: 5,
        wrong: Wrong::AsksRouters,
        ..Plan::EACH_ONCE
    };
    let report = setup.run(asks_routers).await.unwrap();
    println!("{HEADER_OF_CONTROLS}\n{}", report.of_control());
    assert!(report.is_caught(), "it was not caught");
    setup.stop().await;
}

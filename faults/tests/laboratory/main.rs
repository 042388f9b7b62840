//! A fault laboratory: the safety claims, tried on real engines while things go wrong.
//!
//! ```text
//! cargo test --test faults                                          10 s on each engine
//! LEASEHOLD_FAULTS_SECONDS=1200 cargo test --release --test faults -- --nocapture nothing_is_violated
//! LEASEHOLD_FAULTS_CONTROLS=1 cargo test --release --test faults -- --nocapture found_wrong
//! LEASEHOLD_FAULTS_KILLS=100 cargo test --release --test faults -- --nocapture durability
//! ```
//!
//! `LEASEHOLD_FAULTS_ENGINE` names a single engine, `LEASEHOLD_FAULTS_SEED` another schedule, and
//! `LEASEHOLD_FAULTS_PERIOD` how often the servers suffer, in seconds.

mod broken;
mod check;
mod client;
mod cluster;
mod controls;
mod crowd;
mod durability;
mod history;
mod lab;
mod ledger;
mod network;
mod report;
mod schedule;
mod server;
mod sockets;
mod weather;
mod work;

use std::{env, time::Duration};

use broken::Wrong;
use check::{Kind, Violations};
use futures::future::join_all;
use lab::Plan;
use report::{HEADER, HEADER_OF_CONTROLS};
use tokio::sync::Mutex;

/// Those that run at the same time.
const ENGINES: [&[&str]; 3] = [
    &["mongodb-replset", "elasticsearch"],
    &["mongodb-three", "opensearch"],
    &["mongodb", "elasticsearch-three"],
];

/// What is wrong on purpose, and where. All but the first are tried in a process too, so that a run
/// without `LEASEHOLD_FAULTS_CONTROLS` leaves them out here. Each is caught within this time.
const CONTROLS: [(Wrong, &str); 8] = [
    (Wrong::OneMemberAcknowledges, "mongodb-three"),
    (Wrong::ClientClock, "mongodb"),
    (Wrong::ReleaseByKey, "mongodb"),
    (Wrong::FenceRestarts, "mongodb"),
    (Wrong::CountsFromAnswer, "mongodb"),
    (Wrong::TakesOverEarly, "mongodb"),
    (Wrong::CountsAlone, "mongodb"),
    (Wrong::LooksAtNoFence, "mongodb"),
];
const CAUGHT_WITHIN: Duration = Duration::from_secs(300);

fn number(name: &str, otherwise: u64) -> u64 {
    let given = env::var(format!("LEASEHOLD_FAULTS_{name}")).ok();
    given.map_or(otherwise, |text| text.parse().unwrap())
}

/// Two of them would be in each other's way.
static ONE_RUN: Mutex<()> = Mutex::const_new(());

/// On every engine: nothing that must not be, whatever goes wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_engines_nothing_is_violated() {
    let _alone = ONE_RUN.lock().await;
    let lasts = Duration::from_secs(number("SECONDS", 10));
    let only = env::var("LEASEHOLD_FAULTS_ENGINE").ok();
    let run = async |engine| {
        lab::run(Plan {
            engine,
            lasts,
            seed: number("SEED", 1),
            period: Duration::from_secs(number("PERIOD", 60)).min(lasts),
            workers: 12,
            dawdles: 200,
            wrong: Wrong::Nothing,
        })
        .await
        // The others are to go on.
        .map_err(|error| format!("{engine}: {error:#}"))
    };
    println!("{HEADER}");
    let mut violations = Violations::new();
    for engines in ENGINES {
        let engines = engines
            .iter()
            .filter(|engine| only.as_ref().is_none_or(|only| only == *engine));
        for run in join_all(engines.map(|engine| run(engine))).await {
            match run {
                Ok(report) => {
                    println!("{report}");
                    violations.extend(report.violations);
                }
                Err(error) => violations.push(Kind::Run.of(error)),
            }
        }
    }
    assert_eq!(violations, Violations::new());
}

/// The checkers see on real engines what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_engines_what_is_wrong_is_found_wrong() {
    let _alone = ONE_RUN.lock().await;
    println!("{HEADER_OF_CONTROLS}");
    let tried = match number("CONTROLS", 0) {
        0 => &CONTROLS[..1],
        _ => &CONTROLS[..],
    };
    for (wrong, engine) in tried.iter().copied() {
        let report = lab::run(Plan {
            engine,
            lasts: CAUGHT_WITHIN,
            seed: number("SEED", 1),
            period: Duration::from_secs(20),
            workers: 12,
            dawdles: 5,
            wrong,
        })
        .await
        .unwrap_or_else(|error| panic!("{wrong:?}: {error:?}"));
        println!("{}", report.of_control());
        assert!(wrong.is_in(&report.violations), "{wrong:?} was not caught");
        // Without one it would not have been shown to be caught.
        let rolled_back = report.rollbacks != Some(0);
        assert!(rolled_back || wrong != Wrong::OneMemberAcknowledges);
    }
}

/// Checks histories that a run has kept: the folder that `LEASEHOLD_FAULTS_HISTORIES` names, if it does.
#[test]
fn histories_that_were_kept() {
    if let Ok(folder) = env::var("LEASEHOLD_FAULTS_HISTORIES") {
        let events = history::read_all(folder.as_ref()).unwrap();
        println!("{} operations", check::operations(&events));
        assert_eq!(check::all(&events), Violations::new());
    }
}

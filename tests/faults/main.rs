//! A fault laboratory: the safety claims, tried on real engines while things go wrong.
//!
//! ```text
//! cargo test --test faults                                          20 s on each engine
//! LEASEHOLD_FAULTS_SECONDS=3600 cargo test --test faults -- --nocapture engines
//! ```

mod broken;
mod check;
mod client;
mod controls;
mod engine;
#[path = "../common/faketime.rs"]
mod faketime;
mod history;
mod lab;
mod ledger;
mod schedule;
mod weather;
mod work;

use std::{env, time::Duration};

use futures::future::join_all;
use lab::Plan;

/// Those that run at the same time.
const ENGINES: [&[&str]; 2] = [
    &["mongodb-replset", "elasticsearch"],
    &["mongodb-three", "opensearch"],
];

/// On every engine: nothing that must not be, whatever goes wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_engines_nothing_is_violated() {
    let number = |name: &str, otherwise| {
        let given = env::var(format!("LEASEHOLD_FAULTS_{name}")).ok();
        given.map_or(otherwise, |text| text.parse().unwrap())
    };
    let lasts = Duration::from_secs(number("SECONDS", 20));
    let seed = number("SEED", 1);
    let run = async |engine| {
        let period = Duration::from_secs(120).min(lasts);
        lab::run(Plan {
            engine,
            lasts,
            seed,
            period,
        })
        .await
        .unwrap_or_else(|error| panic!("{engine}: {error:?}"))
    };
    println!("{}", lab::HEADER);
    let mut violations = Vec::new();
    for engines in ENGINES {
        for report in join_all(engines.iter().map(|engine| run(engine))).await {
            println!("{report}");
            violations.extend(report.violations);
        }
    }
    assert_eq!(violations, [""; 0]);
}

//! Two apalis workers with the same schedule. Each scheduled job runs once.
//!
//! ```text
//! cargo run -p leasehold-examples --example apalis_cron
//! cargo run -p leasehold-examples --example apalis_cron -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! apalis-cron tells a worker the time for which a run is scheduled. That time is the tick of
//! [`Leases::once`](leasehold::Leases::once): it names the same run for all workers, however late they are.

use std::{collections::BTreeMap, process::ExitCode, str::FromStr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use apalis::prelude::{BoxDynError, Data, WorkerBuilder};
use apalis_cron::CronScheduler;
use chrono::DateTime;
use clap::Parser;
use cron::Schedule;
use leasehold::{
    Leases,
    jobs::{Once, OnceError, Tick},
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::sleep};

/// The context of a worker.
#[derive(Clone)]
struct Host {
    name: &'static str,
    leases: Leases,
    /// How often each tick was run.
    runs: Arc<Mutex<BTreeMap<String, u32>>>,
}

async fn report(scheduled: apalis_cron::Tick, host: Data<Host>) -> Result<(), BoxDynError> {
    let seconds = i64::try_from(scheduled.get_timestamp())?;
    let tick = Tick::from(DateTime::from_timestamp_secs(seconds).context("no such time")?);
    let Host { name, leases, runs } = &*host;
    let job = leases.once("report", tick).run(async |_lease| {
        println!("{name} writes the report of {tick}.");
        *runs.lock().entry(tick.to_string()).or_default() += 1;
        sleep(Duration::from_millis(50)).await;
        anyhow::Ok(())
    });
    match job.await.map_err(OnceError::merge)? {
        Once::Ran(()) => {}
        Once::Done(done) => println!("{name}: {done}."),
        Once::Superseded { tick, done } => println!("{name} is too late for {tick}: {done}."),
        Once::Running(held) => println!("{name}: {} is at it.", held.owner()),
    }
    Ok(())
}

#[derive(Parser)]
#[command(about = "A job of two apalis workers with the same schedule that runs once each time.")]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    let runs = Arc::default();
    let mut workers = JoinSet::new();
    for name in ["one worker", "another worker"] {
        let leases = Leases::builder(store.clone()).owner(name).build();
        let host = Host {
            name,
            leases,
            runs: Arc::clone(&runs),
        };
        let schedule = Schedule::from_str("* * * * * *")?;
        let worker = WorkerBuilder::new(name)
            .backend(CronScheduler::new(schedule))
            .data(host)
            .build(report);
        workers.spawn(async move { worker.run().await });
    }
    sleep(Duration::from_secs(4)).await;
    workers.shutdown().await;
    let runs = runs.lock();
    ensure!(!runs.is_empty(), "the job never ran");
    ensure!(
        runs.values().all(|&times| times == 1),
        "a report was written twice: {runs:?}"
    );
    println!(
        "\n{} reports, each written once. Next: docs/jobs.md.",
        runs.len()
    );
    Ok(())
}

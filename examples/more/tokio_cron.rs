//! Two hosts with the same job in their schedules of tokio-cron-scheduler. Each scheduled job runs once.
//!
//! ```text
//! cargo run -p leasehold-examples --example tokio_cron
//! cargo run -p leasehold-examples --example tokio_cron -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! Each scheduler calls the job at its time. The job asks [`Leases::once`](leasehold::Leases::once) whether it should
//! run. tokio-cron-scheduler does not say for which time it calls the job, so the current time is rounded down to the
//! period of the schedule: a second here, the date for a job that runs daily. A host takes the wrong period only if it
//! is late by a whole period.

use std::{collections::BTreeMap, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use chrono::{DurationRound, TimeDelta, Utc};
use clap::Parser;
use leasehold::{
    Leases, Store,
    jobs::{Once, Tick},
};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

/// How often each tick was run.
type Runs = Arc<Mutex<BTreeMap<String, u32>>>;

/// A host with its own schedule.
async fn host(name: &'static str, store: Arc<dyn Store>, runs: Runs) -> Result<JobScheduler> {
    let leases = Leases::builder(store).owner(name).build();
    let scheduler = JobScheduler::new().await?;
    let job = Job::new_async("* * * * * *", move |_, _| {
        let (leases, runs) = (leases.clone(), runs.clone());
        Box::pin(async move {
            if let Err(error) = once(name, &leases, &runs).await {
                eprintln!("{name}: {error}");
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

async fn once(name: &str, leases: &Leases, runs: &Runs) -> Result<()> {
    let tick = Tick::from(Utc::now().duration_trunc(TimeDelta::seconds(1))?);
    let job = leases.once("report", tick).run(async |_lease| {
        println!("{name} writes the report of {tick}.");
        *runs.lock().entry(tick.to_string()).or_default() += 1;
        sleep(Duration::from_millis(50)).await;
        anyhow::Ok(())
    });
    match job.await.map_err(leasehold::jobs::OnceError::merge)? {
        Once::Ran(()) => {}
        Once::Done(done) => println!("{name}: {done}."),
        Once::Superseded { tick, done } => println!("{name} is too late for {tick}: {done}."),
        Once::Running(held) => println!("{name}: {} is at it.", held.owner()),
    }
    Ok(())
}

#[derive(Parser)]
#[command(about = "A job in the schedules of two hosts that runs once each time.")]
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
    let runs = Runs::default();
    let mut hosts = Vec::new();
    for name in ["one host", "another host"] {
        hosts.push(host(name, store.clone(), runs.clone()).await?);
    }
    sleep(Duration::from_secs(4)).await;
    for mut host in hosts {
        host.shutdown().await?;
    }
    // Jobs that have begun end during this time.
    sleep(Duration::from_millis(500)).await;
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

//! A scheduled job that runs once, however many processes have it in their schedule.
//!
//! In memory, without a server. Five tasks of this process compete:
//!
//! ```text
//! cargo run -p leasehold-examples --example run_once
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch). Each instance is a separate process:
//!
//! ```text
//! cargo run -p leasehold-examples --example run_once -- --store mongodb://localhost/app --processes 5
//! cargo run -p leasehold-examples --example run_once -- --store http://localhost:9200/app-locks --processes 5
//! ```
//!
//! # How it works
//!
//! Every instance wakes up at every tick of the schedule, and calls [`Leases::once`](leasehold::Leases::once). The
//! first one keeps a lease alive while the job runs, and marks the tick as done when the job has ended with success. An
//! instance that comes later, however late, is told that the tick is done, or that a later one is.
//!
//! If an instance fails or dies during the job, the next instance that asks is granted the tick. An instance that is
//! only paused may continue to write after it has lost its lease: then two instances write for one tick. If that does
//! harm, send the fence with each write, and let the storage refuse a fence that is smaller than one that it has seen.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use leasehold::{
    Fence, Leases, Store,
    jobs::{Once, OnceError},
};
use tokio::{process::Command, task::JoinSet, time::sleep};

const TICKS: u32 = 3;
const EVERY: Duration = Duration::from_secs(1);
/// How much later than the others the last instance wakes up. By then the job is done.
const DELAY: Duration = Duration::from_millis(400);

/// The code of every instance.
async fn instance(name: String, store: Arc<dyn Store>, plan: Plan, late: bool) -> Result<()> {
    let leases = Leases::builder(store).owner(name.as_str()).build();
    for tick in 1..=TICKS {
        let due = plan.begin + EVERY * (tick - 1);
        sleep(due.saturating_sub(now())).await;
        if late {
            sleep(DELAY).await;
        }

        // The time for which the run is scheduled, which is the same for all instances.
        let job = leases.once("report", UNIX_EPOCH + due).run(async |lease| {
            plan.tell(tick, &format!("{name} runs the job."));
            run_job(&plan.report, tick, lease.fence()).await
        });
        let why = match job.await.map_err(OnceError::merge)? {
            Once::Ran(()) => continue,
            Once::Done(done) => format!("done by {}", done.by),
            Once::Superseded { done, .. } => format!("too late, {done}"),
            Once::Running(held) => format!("{} is at it", held.owner()),
        };
        let late = if late { ", which is late" } else { "" };
        plan.tell(tick, &format!("{name}{late}: {why}."));
    }
    Ok(())
}

/// The job. It adds a line to the report, so that the lines show how often it ran.
async fn run_job(report: &Path, tick: u32, fence: Fence) -> Result<()> {
    sleep(Duration::from_millis(100)).await;
    let mut report = OpenOptions::new().create(true).append(true).open(report)?;
    writeln!(report, "tick {tick}, fence {fence}").context("the report cannot be written")
}

/// The settings that all instances share.
#[derive(Clone)]
struct Plan {
    /// When the first tick is due, as the time since 1970.
    begin: Duration,
    report: PathBuf,
}

impl Plan {
    fn tell(&self, tick: u32, line: &str) {
        let time = now().saturating_sub(self.begin).as_secs_f32();
        println!("{time:4.1} s  tick {tick}  {line}");
    }
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[derive(Parser)]
#[command(
    about = "A scheduled job that runs once, however many processes have it in their schedule."
)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
    /// How many instances compete (in memory they are tasks of this process)
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=100))]
    processes: u32,
    /// Run as this instance. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    instance: Option<u32>,
    #[arg(long, hide = true)]
    begin: Option<u64>,
    #[arg(long, hide = true)]
    report: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    let late = |number| number == args.processes;
    if let (Some(number), Some(begin), Some(report)) = (args.instance, args.begin, args.report) {
        let begin = Duration::from_millis(begin);
        let plan = Plan { begin, report };
        return instance(format!("process {number}"), store, plan, late(number)).await;
    }

    let folder = tempfile::tempdir().context("no temporary folder for the report")?;
    let plan = Plan {
        // This leaves the instances time to start. An instance that starts later counts as a late one.
        begin: now() + Duration::from_secs(1),
        report: folder.path().join("report.txt"),
    };
    println!(
        "{} instances have the same job in their schedule: a report every second, {TICKS} times.\n",
        args.processes
    );

    let mut instances = JoinSet::new();
    for number in 1..=args.processes {
        match &args.store.store {
            None => {
                let name = format!("task {number}");
                instances.spawn(instance(name, store.clone(), plan.clone(), late(number)));
            }
            Some(address) => {
                let process = Command::new(std::env::current_exe()?)
                    .args(["--store", address])
                    .args(["--processes", &args.processes.to_string()])
                    .args(["--instance", &number.to_string()])
                    .args(["--begin", &plan.begin.as_millis().to_string()])
                    .arg("--report")
                    .arg(&plan.report)
                    .kill_on_drop(true)
                    .spawn();
                let mut process = process.context("a process cannot be started")?;
                instances.spawn(async move {
                    let status = process.wait().await?;
                    ensure!(status.success(), "an instance failed: {status}");
                    Ok(())
                });
            }
        }
    }
    while let Some(ended) = instances.join_next().await {
        ended??;
    }
    check(&plan.report)
}

/// Counts the lines in the report, which show how often the job ran.
fn check(report: &Path) -> Result<()> {
    let report = fs::read_to_string(report).context("the job never ran")?;
    let runs = (1..=TICKS).map(|tick| {
        let line = format!("tick {tick},");
        report
            .lines()
            .filter(|found| found.starts_with(&line))
            .count()
    });
    let runs: Vec<_> = runs.collect();
    println!();
    for (tick, runs) in (1..).zip(&runs) {
        let times = if *runs == 1 { "time" } else { "times" };
        println!("tick {tick}: the job ran {runs} {times}");
    }
    ensure!(
        runs.iter().all(|&runs| runs == 1),
        "the job of each tick should have run once"
    );
    println!(
        "Each tick's job ran once, also with a late instance, because the winner \
         wrote the tick as done.\nNext: README.md, and \
         examples/more/takeover.rs for what happens when a holder dies."
    );
    Ok(())
}

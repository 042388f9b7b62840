//! Migrations that run once, although every instance of a new version starts them.
//!
//! In memory, without a server. The instances are tasks of this process:
//!
//! ```text
//! cargo run -p leasehold-examples --example migrations
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch). Five processes start together, and the one that migrates
//! first is killed during its migration:
//!
//! ```text
//! cargo run -p leasehold-examples --example migrations -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example migrations -- --store http://localhost:9200/app-locks
//! ```
//!
//! # How it works
//!
//! A migration is a job with a key of its own and a tick that never repeats: the version that it leads to, which is kept
//! for ever. Every instance asks for each version in turn. One instance runs the migration under a lease that is kept
//! alive, and the others wait until it is done. If that process dies, its lease ends with its ttl, and one of the waiting
//! instances runs the migration again. So it must be possible to start each migration again.
//!
//! At the end comes an instance of the next release, in which the migration to 1.3.0 was merged after that to 2.0.0 had
//! run everywhere. It runs. With one key for all versions it would be left out (`Once::Superseded`): once a tick is done,
//! no earlier tick of its key runs.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use leasehold::{
    Leases, Store,
    jobs::{Once, OnceError, Tick},
};
use tokio::{
    process::{Child, Command},
    task::JoinSet,
    time::sleep,
};

const VERSIONS: [Tick; 3] = [
    Tick::version(1, 1, 0),
    Tick::version(1, 2, 0),
    Tick::version(2, 0, 0),
];
/// The versions of the next release.
const WITH_A_LATE_ONE: [Tick; 4] = [
    Tick::version(1, 1, 0),
    Tick::version(1, 2, 0),
    Tick::version(1, 3, 0),
    Tick::version(2, 0, 0),
];
/// How long the others wait for a migration whose process has died.
const TTL: Duration = Duration::from_secs(3);
/// How long an instance waits for the migrations before it gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// What every instance does when it starts.
async fn migrate(name: &str, store: Arc<dyn Store>, versions: &[Tick], log: &Path) -> Result<()> {
    let leases = Leases::builder(store).owner(name).build();
    for &version in versions {
        let migration = leases
            .once(format!("migrate/{version}"), version)
            .ttl(TTL)
            .wait_for(PATIENCE)
            .kept_for(Duration::MAX);
        let outcome = migration.run(async |_| run(name, version, log).await).await;
        match outcome.map_err(OnceError::merge)? {
            Once::Ran(()) | Once::Done(_) => {}
            Once::Superseded { done, .. } => bail!("another tick was done for its key: {done}"),
            Once::Running(held) => bail!("{} migrates for too long", held.owner()),
        }
    }
    println!("{name} starts to work.");
    Ok(())
}

/// Runs a migration. It writes a line when it begins and when it ends, so that the lines show how often it ran.
async fn run(name: &str, version: Tick, log: &Path) -> Result<()> {
    write(log, &format!("{version} begins in {name}"))?;
    sleep(Duration::from_millis(300)).await;
    write(log, &format!("{version} ends in {name}"))
}

fn write(log: &Path, line: &str) -> Result<()> {
    println!("{line}.");
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    writeln!(log, "{line}").context("the log cannot be written")
}

#[derive(Parser)]
#[command(about = "Migrations that run once, although every instance starts with them.")]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
    /// How many instances start together (in memory they are tasks of this process)
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=100))]
    processes: u32,
    /// Run as this instance. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    instance: Option<u32>,
    #[arg(long, hide = true)]
    log: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(start(leasehold_examples::parse_args()).await)
}

async fn start(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    if let (Some(number), Some(log)) = (args.instance, &args.log) {
        return migrate(&format!("process {number}"), store, &VERSIONS, log).await;
    }
    let folder = tempfile::tempdir().context("no temporary folder for the log")?;
    let log = folder.path().join("log.txt");
    let killed = match &args.store.store {
        None => {
            let mut tasks = JoinSet::new();
            for number in 1..=args.processes {
                let (store, log) = (store.clone(), log.clone());
                tasks.spawn(async move {
                    migrate(&format!("task {number}"), store, &VERSIONS, &log).await
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            None
        }
        Some(address) => Some(processes(args.processes, address, &log).await?),
    };
    println!("The next release, with a migration that was merged late:");
    migrate("the next release", store, &WITH_A_LATE_ONE, &log).await?;
    check(&log, killed)
}

/// Starts the processes, and kills the one that begins the first migration. Returns its number.
async fn processes(number: u32, address: &str, log: &Path) -> Result<u32> {
    let start = |number: u32| -> Result<Child> {
        let process = Command::new(std::env::current_exe()?)
            .args(["--store", address, "--instance", &number.to_string()])
            .arg("--log")
            .arg(log)
            .kill_on_drop(true)
            .spawn();
        process.context("a process cannot be started")
    };
    let mut all = (1..=number).map(start).collect::<Result<Vec<_>>>()?;
    let first = loop {
        let lines = fs::read_to_string(log).unwrap_or_default();
        let first = lines
            .split_once("process ")
            .and_then(|(_, rest)| rest.lines().next());
        if let Some(first) = first.and_then(|number| number.parse().ok()) {
            break first;
        }
        sleep(Duration::from_millis(5)).await;
    };
    let index = usize::try_from(first - 1)?;
    all.get_mut(index)
        .context("no such process")?
        .kill()
        .await?;
    println!("process {first} is killed.");
    for (number, mut process) in (1..).zip(all) {
        let status = process.wait().await?;
        ensure!(
            number == first || status.success(),
            "process {number} failed: {status}"
        );
    }
    Ok(first)
}

/// Checks the lines that the migrations have written, for how often each migration ran.
fn check(log: &Path, killed: Option<u32>) -> Result<()> {
    let lines = fs::read_to_string(log).context("no migration ran")?;
    let lines: Vec<_> = lines.lines().collect();
    println!();
    for (index, version) in WITH_A_LATE_ONE.iter().enumerate() {
        let count = |what: &str| {
            let begin = format!("{version} {what} in");
            lines.iter().filter(|line| line.starts_with(&begin)).count()
        };
        let (begun, ended) = (count("begins"), count("ends"));
        println!("{version}: begun {begun}, ended {ended}");
        let again = usize::from(index == 0 && killed.is_some());
        ensure!(
            (begun, ended) == (1 + again, 1),
            "each migration should have ended once"
        );
    }
    println!(
        "Each migration ended once, also the one that was merged late. Next: docs/jobs.md, and \
         examples/more/run_once.rs for a job that comes again."
    );
    Ok(())
}

//! A program that ends on SIGTERM or Ctrl-C, and leaves no key locked.
//!
//! In memory, without a server. The program sends itself the signal after a second:
//!
//! ```text
//! cargo run -p leasehold-examples --example graceful_shutdown
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch), until Ctrl-C or `kill`, or for a number of seconds:
//!
//! ```text
//! cargo run -p leasehold-examples --example graceful_shutdown -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example graceful_shutdown -- --store mongodb://localhost/app --seconds 3
//! ```
//!
//! # How it works
//!
//! 1. The workers start no new jobs: they check a token between two jobs.
//! 2. The jobs that are running have some time to finish, and release their leases as always.
//! 3. [`Leases::close`](leasehold::Leases::close) ends the remaining jobs. Such a job gets
//!    [`LossReason::Closed`](leasehold::LossReason::Closed), which stops its body, and its key is free at once. The
//!    close has its own time limit, in case the store does not answer. The ttl then frees the keys.
//!
//! The sum of both time limits must be shorter than the time after which the orchestrator kills the program: 30 s for
//! Kubernetes, 90 s for systemd, 10 s for Docker.

use std::{
    future::pending,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;
use futures::TryStreamExt;
use leasehold::{Error, Filter, Leases, LossReason, WithError};
use rustix::process::{Signal, getpid, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const WORKERS: u32 = 3;
const TTL: Duration = Duration::from_secs(30);
/// How long a normal job takes.
const JOB: Duration = Duration::from_millis(300);
/// The time limit for the running jobs.
const FOR_WORK: Duration = Duration::from_secs(2);
/// The time limit for the releases.
const FOR_CLOSE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Count {
    begun: AtomicU32,
    /// How many jobs of the last worker have begun. They do not end by themselves.
    endless: AtomicU32,
    done: AtomicU32,
    stopped: AtomicU32,
}

/// Runs one job after the other, each under a lease, until it is asked to stop.
async fn worker(
    number: u32,
    leases: Leases,
    stop: CancellationToken,
    count: Arc<Count>,
) -> Result<()> {
    while !stop.is_cancelled() {
        let key = format!("shutdown: job of worker {number}");
        let outcome = leases
            .acquire(key, TTL)
            .with(async |_| {
                count.begun.fetch_add(1, Relaxed);
                count
                    .endless
                    .fetch_add(u32::from(number == WORKERS), Relaxed);
                job(number).await
            })
            .await;
        match outcome {
            Ok(()) => count.done.fetch_add(1, Relaxed),
            Err(WithError::Lost { reason, .. }) if matches!(reason, LossReason::Closed) => {
                println!("Worker {number}: the job is stopped, as {reason}.");
                count.stopped.fetch_add(1, Relaxed)
            }
            Err(WithError::NotAcquired(Error::Closed)) => return Ok(()),
            Err(error) => return Err(error.merge()),
        };
    }
    Ok(())
}

/// A job. The last worker's job does not end by itself.
async fn job(number: u32) -> Result<()> {
    match number {
        WORKERS => pending().await,
        _ => sleep(JOB).await,
    }
    Ok(())
}

/// A program that ends on SIGTERM, and leaves no key locked.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// Send SIGTERM to itself after this time; without a store after a second
    #[arg(long)]
    seconds: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    // This comes before the first lease, because from here on the signals no longer kill the program.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let store = args.store.open().await?;
    let leases = Leases::new(store.clone());
    let (stop, count) = (CancellationToken::new(), Arc::new(Count::default()));
    let mut workers = JoinSet::new();
    for number in 1..=WORKERS {
        workers.spawn(worker(number, leases.clone(), stop.clone(), count.clone()));
    }
    let in_memory = args.store.store.is_none();
    if let Some(seconds) = args.seconds.or(in_memory.then_some(1)) {
        let count = count.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(seconds)).await;
            // In this example, a job that does not end must have started before the shutdown.
            while count.endless.load(Relaxed) == 0 {
                sleep(JOB / 10).await;
            }
            kill_process(getpid(), Signal::TERM)
        });
    }

    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        Some(ended) = workers.join_next() => return ended?,
    };
    println!("{name}: no new work is taken.");
    stop.cancel();
    if timeout(FOR_WORK, drained(&mut workers)).await.is_err() {
        println!("Work still goes on after {FOR_WORK:?}: its lease is released.");
    }
    let closed = timeout(FOR_CLOSE, leases.close()).await;
    ensure!(
        closed.is_ok(),
        "the store does not answer; the ttl will free the keys"
    );
    drained(&mut workers).await?;

    let (begun, done) = (count.begun.load(Relaxed), count.done.load(Relaxed));
    let stopped = count.stopped.load(Relaxed);
    println!("{begun} jobs were begun, {done} done, {stopped} stopped.");
    ensure!(
        done + stopped == begun && stopped > 0,
        "a job was lost on the way"
    );
    let mine = Filter::new().owner(leases.owner());
    let left: Vec<_> = Leases::new(store).list(mine).try_collect().await?;
    ensure!(left.is_empty(), "left locked: {left:?}");
    println!("Nothing is left locked.");
    Ok(())
}

async fn drained(workers: &mut JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

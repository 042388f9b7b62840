//! Several instances with one leader, which steps down on SIGTERM.
//!
//! In memory, without a server. The instances are tasks of this process, which sends itself the signal after a moment:
//!
//! ```text
//! cargo run -p leasehold-examples --example leader
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch). Start it in several terminals, and stop the leader with
//! Ctrl-C or `kill`:
//!
//! ```text
//! cargo run -p leasehold-examples --example leader -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! [`Leader::run`](leasehold::jobs::Leader::run) campaigns, keeps the lease alive while its process leads, stops the
//! work when the lease is lost, and campaigns again. At the end [`Leases::close`](leasehold::Leases::close) releases
//! the lease, so that the next leader does not have to wait for the ttl.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use leasehold::{Attempt, Error, Leases, Store, jobs::Term};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{sleep, timeout},
};

const KEY: &str = "leader";
/// How long there is no leader if the leader dies without releasing its lease.
const TTL: Duration = Duration::from_secs(10);
/// Shorter than the time that an orchestrator gives a program to end: Kubernetes gives 30 s.
const GRACE: Duration = Duration::from_secs(25);

/// Campaigns and leads until the leases are closed.
async fn instance(name: String, leases: Leases) -> Result<(), Error> {
    let leader = leases.leader(KEY, TTL).owner(name);
    leader.run(async |term: &Term| lead(term).await).await
}

/// The work that only one instance at a time may do. After an error, this instance or another one tries again.
async fn lead(term: &Term) -> Result<()> {
    println!("{} leads, with fence {}.", term.owner(), term.fence());
    loop {
        sleep(Duration::from_millis(500)).await;
        println!("{} does its work.", term.owner());
    }
}

/// Prints who leads, until the leases are closed.
async fn follow(leases: Leases) {
    let mut leading = leases.leader(KEY, TTL).watch();
    while leading.changed().await.is_ok() {
        match &*leading.borrow_and_update() {
            Some(leader) => println!("A follower hears: {} leads.", leader.owner),
            None => println!("A follower hears: nobody leads."),
        }
    }
}

/// Waits for the first signal that asks the program to end.
async fn asked_to_stop() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

#[derive(Parser)]
#[command(about = "One leader among several, which steps down on SIGTERM.")]
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
    let leases = Leases::new(store.clone());
    let mut instances = JoinSet::new();
    let names: &[&str] = match args.store.store {
        None => &["Ada", "Ben"],
        Some(_) => &["This process"],
    };
    for name in names {
        let (name, leases) = ((*name).to_owned(), leases.clone());
        instances.spawn(async move { Ok(instance(name, leases).await?) });
    }
    tokio::spawn(follow(leases.clone()));
    if args.store.store.is_none() {
        instances.spawn(terminate_myself());
    }

    let signal = tokio::select! {
        signal = asked_to_stop() => signal?,
        Some(ended) = next_failure(&mut instances) => return ended,
    };
    println!("{signal}: releasing what is held.");
    // A lease that is not released in time ends with its ttl.
    if timeout(GRACE, leases.close()).await.is_err() {
        println!("The store does not answer; the ttl will free the key.");
    }
    while let Some(ended) = instances.join_next().await {
        ended??;
    }
    if args.store.store.is_none() {
        check(store).await?;
    }
    Ok(())
}

/// Returns the first failure of a task. A task that ends without an error is no failure.
async fn next_failure(instances: &mut JoinSet<Result<()>>) -> Option<Result<()>> {
    loop {
        match instances.join_next().await? {
            Ok(Ok(())) => {}
            Ok(failure) => return Some(failure),
            Err(panic) => return Some(Err(panic.into())),
        }
    }
}

/// Sends this process the signal that an orchestrator would send.
async fn terminate_myself() -> Result<()> {
    sleep(Duration::from_secs(2)).await;
    let myself = std::process::id().to_string();
    let kill = Command::new("kill").args(["-TERM", &myself]).status().await;
    ensure!(
        kill.context("no `kill`")?.success(),
        "the signal was not sent"
    );
    Ok(())
}

/// Checks that the next leader can acquire the key at once, although the ttl is long.
async fn check(store: Arc<dyn Store>) -> Result<()> {
    let next = Leases::new(store);
    match next.try_acquire(KEY, TTL).await? {
        Attempt::Acquired(lease) => lease.release().await?,
        Attempt::Held(held) => bail!("still held for {:?}", held.expires_in()),
    }
    println!("The key was free at once, and not only after {TTL:?}.");
    Ok(())
}

//! A lock on a whole index, and locks on its documents, which exclude each other.
//!
//! In memory, without a server:
//!
//! ```text
//! cargo run -p leasehold-examples --example global_lock
//! ```
//!
//! On a real server: `cargo run -p leasehold-examples --example global_lock -- --store http://localhost:9200/app-locks`
//!
//! # How it works
//!
//! A task that writes one document acquires two locks: the lock of the index, shared, and the lock of the document,
//! exclusive. A task that changes the whole index, for example in a migration, acquires the lock of the index,
//! exclusive. So any number of documents are written at the same time, but none during a migration. Every task acquires
//! the lock of the index first, so there is no deadlock.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;
use leasehold::{Leases, WithError};
use tokio::{task::JoinSet, time::sleep};

const TTL: Duration = Duration::from_secs(30);
const WORK: Duration = Duration::from_millis(50);

/// Writes one document of the index.
async fn write_document(leases: &Leases, index: &str, id: usize, at_work: &AtWork) -> Result<()> {
    let document = leases.acquire(format!("{index}/{id}"), TTL);
    leases
        .acquire(index, TTL)
        .shared()
        .with(async |_| {
            let work = document.with(async |_| at_work.on_a_document(id).await);
            work.await.map_err(WithError::merge)
        })
        .await
        .map_err(WithError::merge)
}

/// Changes all documents of the index.
async fn migrate(leases: &Leases, index: &str, at_work: &AtWork) -> Result<()> {
    let lease = leases.acquire(index, TTL).note("migration");
    let work = lease.with(async |_| at_work.on_the_index().await);
    work.await.map_err(WithError::merge)
}

/// The tasks that work at this moment: writers of documents count up, and a migration counts down.
#[derive(Default)]
struct AtWork {
    now: AtomicI32,
    most: AtomicI32,
}

impl AtWork {
    async fn on_a_document(&self, id: usize) -> Result<()> {
        let writers = self.now.fetch_add(1, SeqCst) + 1;
        ensure!(writers > 0, "document {id} is written during a migration");
        self.most.fetch_max(writers, SeqCst);
        sleep(WORK).await;
        self.now.fetch_sub(1, SeqCst);
        Ok(())
    }

    async fn on_the_index(&self) -> Result<()> {
        let others = self.now.fetch_sub(1_000, SeqCst);
        ensure!(
            others == 0,
            "{others} documents are written as a migration begins"
        );
        println!("The index is migrated, and nobody writes.");
        sleep(WORK * 4).await;
        self.now.fetch_add(1_000, SeqCst);
        Ok(())
    }
}

#[derive(Parser)]
#[command(about = "A lock on a whole index, and locks on its documents, that mind each other.")]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let leases = Leases::new(args.store.open().await?);
    // Each run has its own index name, so that several runs on one server do not wait for each other.
    let index = format!("products {}", std::process::id());
    let at_work = Arc::new(AtWork::default());
    let mut tasks = JoinSet::new();
    for number in 0..21 {
        let (leases, index, at_work) = (leases.clone(), index.clone(), at_work.clone());
        tasks.spawn(async move {
            match number % 10 {
                5 => migrate(&leases, &index, &at_work).await,
                _ => write_document(&leases, &index, number % 7, &at_work).await,
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    leases.close().await;
    println!(
        "19 writes and 2 migrations are done; up to {} documents were written side by side.",
        at_work.most.load(SeqCst)
    );
    Ok(())
}

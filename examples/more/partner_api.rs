//! Calls to a partner's API that must not be more than ten a second, summed over all processes.
//!
//! In memory, without a server. Twenty tasks of this process make fifty calls:
//!
//! ```text
//! cargo run -p leasehold-examples --example partner_api
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch). Run it in several terminals at the same time: together they
//! keep to the limit:
//!
//! ```text
//! cargo run -p leasehold-examples --example partner_api -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example partner_api -- --store http://localhost:9200/app-locks
//! ```
//!
//! # How it works
//!
//! Each call needs a permit of one limiter. The database counts the permits in each second of its own clock, so the
//! clocks of the processes do not matter. A task that finds a second full waits for the next one. The tasks of one
//! process wait in a queue, which sends one request a second.
//!
//! # When to use it
//!
//! For a limit that the partner counts by the second, with some tolerance: a call with a permit from the end of one
//! second may arrive in the next second. With `--smooth` there is a permit every tenth of a second instead. Use that
//! for a partner that must not get ten calls at once.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Parser;
use leasehold::{Leases, Limiter, Permit, PermitAttempt};
use tokio::task::JoinSet;

const TASKS: usize = 20;
const CALLS: usize = 50;
const LIMIT: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Makes fifty calls, at most ten a second.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// Make one call after the other, instead of up to ten when the second begins
    #[arg(long)]
    smooth: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let leases = Leases::new(args.store.open().await?);
    let mut limiter = leases.limiter("partner-api", LIMIT, WINDOW);
    if args.smooth {
        limiter = limiter.smooth(2);
    }

    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut calls = Vec::new();
            for _ in (task..CALLS).step_by(TASKS) {
                let permit = limiter.permit().await?;
                call_partner(&permit).await;
                calls.push(permit.granted_at().timestamp());
            }
            anyhow::Ok(calls)
        });
    }

    let mut seconds = BTreeMap::<i64, u32>::new();
    while let Some(done) = tasks.join_next().await {
        for second in done?? {
            *seconds.entry(second).or_default() += 1;
        }
    }
    println!("calls  in the second of the database's clock");
    for (second, calls) in &seconds {
        println!("{calls:5}  {second}");
    }
    println!("{CALLS} calls took {:.1?}", start.elapsed());
    let most = seconds.values().max().copied().unwrap_or_default();
    // A smooth limiter may begin with a burst.
    let allowed = if args.smooth { LIMIT + 1 } else { LIMIT };
    ensure!(most <= allowed, "{most} calls in a second");

    only_if_there_is_room(&limiter).await?;
    leases.close().await;
    Ok(())
}

async fn call_partner(_permit: &Permit) {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// An optional call is not worth a wait.
async fn only_if_there_is_room(limiter: &Limiter) -> Result<()> {
    match limiter.try_permit().await? {
        PermitAttempt::Granted(permit) => {
            call_partner(&permit).await;
            println!("there was room for one more");
        }
        PermitAttempt::Full { retry_in, .. } => {
            println!("no room for one more, there is in {retry_in:.0?}");
        }
    }
    Ok(())
}

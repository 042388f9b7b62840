//! What an application sees of its leases: a log of `tracing`, and metrics that Prometheus reads.
//!
//! In memory, without a server; a few workers contend for two keys, for five seconds:
//!
//! ```text
//! cargo run -p leasehold-examples --example observability
//! RUST_LOG=leasehold=trace cargo run -p leasehold-examples --example observability -- --seconds 1
//! ```
//!
//! Where it says that it listens, `curl` gets the metrics meanwhile; at the end it prints them. On a real
//! server (MongoDB, Elasticsearch, OpenSearch):
//!
//! ```text
//! cargo run -p leasehold-examples --example observability -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! The application installs a subscriber and a recorder, of its own choice, and calls
//! `leasehold::describe_metrics`. `docs/observability.md` lists what there is to see, and what to alert on.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{Router, routing::get};
use clap::Parser;
use leasehold::{Error, Leases};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing_subscriber::EnvFilter;

const WORKERS: usize = 6;
const KEYS: [&str; 2] = ["report:1", "report:2"];
const TTL: Duration = Duration::from_secs(30);
/// What a holder has that does not renew, and works for too long.
const CARELESS: Duration = Duration::from_millis(500);
/// How long a piece of work takes.
const WORK: Duration = Duration::from_millis(150);
/// How long a worker waits for a key: not always long enough.
const PATIENCE: Duration = Duration::from_millis(250);

/// Lets workers contend, with a log and metrics.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// Where the metrics are served, under /metrics; port 0 takes one that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// How long the workers work
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let filter = EnvFilter::builder().with_default_directive("leasehold=info".parse()?);
    tracing_subscriber::fmt()
        .with_env_filter(filter.from_env()?)
        .with_writer(std::io::stderr)
        .init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    leasehold::describe_metrics();
    serve(args.listen, metrics.clone()).await?;

    let leases = Leases::new(args.store.open().await?);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        workers.spawn(work(leases.clone(), worker, end));
    }
    // A loss, of which the log warns; or a grant that comes too late to be of use.
    match leases.acquire("careless", CARELESS).await {
        Ok(_careless) => sleep(CARELESS * 2).await,
        Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => {}
        Err(error) => return Err(error.into()),
    }

    while let Some(done) = workers.join_next().await {
        done??;
    }
    leases.close().await;

    let text = metrics.render();
    print!("{text}");
    ensure!(
        text.contains("leasehold_acquires_total{outcome=\"granted\",mode=\"exclusive\"}"),
        "no acquire was counted"
    );
    Ok(())
}

/// Takes one key after the other until the time is over.
async fn work(leases: Leases, worker: usize, end: Instant) -> Result<()> {
    let owner = format!("worker {worker}");
    for key in KEYS.into_iter().cycle().skip(worker) {
        if Instant::now() >= end {
            break;
        }
        let acquire = leases.acquire(key, TTL).owner(owner.as_str());
        match acquire.wait_for(PATIENCE).keep_alive().await {
            Ok(lease) => {
                sleep(WORK).await;
                lease.release().await?;
            }
            // Another worker has it. The log says who. Or there was no answer yet.
            Err(Error::WaitTimedOut { .. } | Error::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Serves what Prometheus reads, for as long as the program runs.
async fn serve(address: SocketAddr, metrics: PrometheusHandle) -> Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("{address} cannot be listened on"))?;
    eprintln!("metrics on http://{}/metrics", listener.local_addr()?);
    let render = move || {
        let metrics = metrics.clone();
        async move { metrics.render() }
    };
    let router = Router::new().route("/metrics", get(render));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

//! What an application can observe of its leases: the log of `tracing`, and metrics for Prometheus.
//!
//! In memory, without a server. A few workers contend for two keys for five seconds:
//!
//! ```text
//! cargo run -p leasehold-examples --example observability
//! RUST_LOG=leasehold=trace cargo run -p leasehold-examples --example observability -- --seconds 1
//! ```
//!
//! While it runs, `curl` gets the metrics from the address that it prints; at the end it prints them itself. On a real
//! server (MongoDB, Elasticsearch, OpenSearch):
//!
//! ```text
//! cargo run -p leasehold-examples --example observability -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! The application installs a subscriber and a recorder of its own choice, and calls `leasehold::describe_metrics`.
//! `docs/observability.md` lists all spans, events and metrics, and what to alert on.

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
/// The ttl of a holder that does not renew its lease, and works for too long.
const CARELESS: Duration = Duration::from_millis(500);
/// How long a piece of work takes.
const WORK: Duration = Duration::from_millis(150);
/// How long a worker waits for a key. This is sometimes too short.
const PATIENCE: Duration = Duration::from_millis(250);

/// Workers that contend for keys, with a log and metrics.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// The address of the metrics, which are under /metrics; port 0 takes a free port
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
    // This lease is lost, which the log warns of, or its grant comes too late to be useful.
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

/// Acquires one key after the other until the time is over.
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
            // Another worker holds the key, and the log says which one. Or there was no answer in time.
            Err(Error::WaitTimedOut { .. } | Error::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Serves the metrics for Prometheus until the program ends.
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

//! An HTTP service with several instances, one of which leads: only the leader does the work that must not be done
//! twice.
//!
//! With three instances in this process, each on its own port. The leader is stopped, and another instance takes over:
//!
//! ```text
//! cargo run -p leasehold-examples --example axum_leader
//! cargo run -p leasehold-examples --example axum_leader -- --store mongodb://localhost/app
//! ```
//!
//! With one instance, until Ctrl-C or SIGTERM. Start it in several terminals, each with its own port:
//!
//! ```text
//! cargo run -p leasehold-examples --example axum_leader -- --store mongodb://localhost/app --listen 127.0.0.1:8001
//! curl http://127.0.0.1:8001/leader
//! ```
//!
//! # How it works
//!
//! Every instance serves requests, and campaigns at the same time: [`Leader::run`](leasehold::jobs::Leader::run) runs
//! [`lead`] while this instance leads. `/leader` says whether this instance leads, by the token of its term. It also
//! says which instance leads, by [`Leader::watch`](leasehold::jobs::Leader::watch). At a shutdown,
//! [`Leases::close`](leasehold::Leases::close) first releases the lease of the leader, so that another instance leads
//! while this one answers its last requests.

use std::{
    convert::Infallible, future::pending, net::SocketAddr, process::ExitCode, sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use axum::{Json, Router, extract::State, routing::get};
use clap::Parser;
use leasehold::{
    Attempt, Fence, Leases, Store,
    jobs::{Leader, Leading, Term},
};
use leasehold_examples::http;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const KEY: &str = "leader of the HTTP service";
/// How long there is no leader if the leader dies without releasing its lease.
const TTL: Duration = Duration::from_secs(10);
/// How long an instance may take to shut down.
const GRACE: Duration = Duration::from_secs(25);
/// An upper bound for every wait in this example.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the service knows about the leader.
#[derive(Clone)]
struct Lead {
    /// The last term of this instance. Its token is cancelled when the term ends.
    mine: Arc<Mutex<Option<(Fence, CancellationToken)>>>,
    leading: watch::Receiver<Option<Leading>>,
}

/// Runs one instance until it is asked to stop.
async fn instance(
    store: Arc<dyn Store>,
    listener: TcpListener,
    stop: CancellationToken,
) -> Result<()> {
    let name = listener.local_addr()?.to_string();
    let leases = Leases::builder(store).owner(name).build();
    let candidate = leases.leader(KEY, TTL);
    let state = Lead {
        mine: Arc::default(),
        leading: candidate.watch(),
    };
    let app = Router::new()
        .route("/health", get(async || "ok"))
        .route("/leader", get(leader))
        .with_state(state.clone());
    let stopped = async move {
        stop.cancelled().await;
        // A lease that is not released in time ends with its ttl.
        let _ = timeout(GRACE, leases.close()).await;
    };
    let server = async move {
        axum::serve(listener, app)
            .with_graceful_shutdown(stopped)
            .await?;
        anyhow::Ok(())
    };
    tokio::try_join!(server, campaign(candidate, state))?;
    Ok(())
}

/// Campaigns and leads until the leases are closed.
async fn campaign(candidate: Leader, state: Lead) -> Result<()> {
    let work = async move |term: &Term| {
        *state.mine.lock() = Some((term.fence(), term.cancellation_token()));
        lead(term).await
    };
    Ok(candidate.run(work).await?)
}

/// The work that only one instance at a time may do. Each of its writes should show the fence: docs/fencing.md.
async fn lead(_term: &Term) -> Result<(), Infallible> {
    pending().await
}

/// Whether this instance leads, and which instance leads as far as this one knows.
async fn leader(State(state): State<Lead>) -> Json<Value> {
    let term = state.mine.lock().clone();
    let term = term.filter(|(_, over)| !over.is_cancelled());
    let fence = term.map(|(fence, _)| fence);
    let leading = state.leading.borrow();
    let owner = leading.as_ref().map(|leading| &*leading.owner);
    Json(json!({ "leads": fence.is_some(), "fence": fence, "leader": owner }))
}

/// An HTTP service with one leading instance.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// Run one instance at this address, until Ctrl-C or SIGTERM
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    let Some(address) = args.listen else {
        return three_instances(store).await;
    };
    let listener = TcpListener::bind(address).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stopping.cancel();
    });
    instance(store, listener, stop).await
}

/// Runs the example: the leader is stopped, and another instance takes over.
async fn three_instances(store: Arc<dyn Store>) -> Result<()> {
    let mut instances = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, stop) = (listener.local_addr()?, CancellationToken::new());
        let task = tokio::spawn(instance(store.clone(), listener, stop.clone()));
        ensure!(ask(address, "/health").await? == "ok");
        instances.push((address, stop, task));
    }
    let (first, fence) = the_leader(&instances).await?;
    let (address, stop, task) = instances.swap_remove(first);
    println!("{address} leads, with fence {fence}. It is stopped.");
    stop.cancel();
    task.await??;
    ensure!(
        TcpStream::connect(address).await.is_err(),
        "it still serves"
    );

    let (second, next) = the_leader(&instances).await?;
    println!("{} leads, with fence {next}.", instances[second].0);
    ensure!(next > fence, "the fence should rise with every leader");
    for (_, stop, task) in instances {
        stop.cancel();
        task.await??;
    }
    match Leases::new(store).try_acquire(KEY, TTL).await? {
        Attempt::Acquired(lease) => lease.release().await?,
        Attempt::Held(held) => anyhow::bail!("{} left its lock behind", held.owner()),
    }
    println!("All have ended, and the lead is free.");
    Ok(())
}

type Instance = (SocketAddr, CancellationToken, JoinHandle<Result<()>>);

/// Asks all instances, one after the other, until one says that it leads. Fails if an instance says so after another
/// one with a greater fence did.
async fn the_leader(instances: &[Instance]) -> Result<(usize, u64)> {
    let asking = async {
        let mut newest = 0;
        loop {
            let mut leaders = Vec::new();
            for (number, (address, ..)) in instances.iter().enumerate() {
                let answer: Value = serde_json::from_str(&ask(*address, "/leader").await?)?;
                let Some(fence) = answer["fence"].as_u64() else {
                    continue;
                };
                ensure!(fence >= newest, "with {newest} and with {fence} they lead");
                newest = fence;
                leaders.push((number, fence));
            }
            match leaders[..] {
                [leader] => return Ok(leader),
                // The lead is passing from one instance to the next, or there is no leader.
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(PATIENCE, asking).await.context("nobody leads")?
}

/// The body of the response.
async fn ask(address: SocketAddr, path: &str) -> Result<String> {
    let response = http::ask(address, &format!("GET {path}"), &[]).await?;
    let (_, body) = response.split_once("\r\n\r\n").context("no answer")?;
    Ok(body.to_owned())
}

//! A web handler under a lock: who asks for a report that is being made gets 409 at once, and while the database is away
//! everybody gets 503 within two seconds.
//!
//! It asks for the same report twice at the same time, and then stops the locks from being answered:
//!
//! ```text
//! cargo run -p leasehold-examples --example axum_lock
//! cargo run -p leasehold-examples --example axum_lock -- --store mongodb://localhost/app
//! ```
//!
//! Against a server that is not there, it only asks once:
//!
//! ```text
//! cargo run -p leasehold-examples --example axum_lock -- --away mongodb://localhost:9
//! ```
//!
//! # How it works
//!
//! [`TryAcquire::with`](leasehold::TryAcquire::with) asks for the lease once, and does not wait for the key. A request to
//! the store that fails is sent three times, so [`CALL_TIMEOUT`] is a little less than a third of two seconds. Renewals
//! have a limit of their own, and work that is under way survives a longer outage: docs/troubleshooting.md.

use std::{future::IntoFuture, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use clap::Parser;
use leasehold::{
    Attempt, Leases, MongoStore, Store, WithError,
    testing::{Failure, FaultyStore},
};
use leasehold_examples::http;
use mongodb::{Client, bson::Document, options::ClientOptions};
use serde_json::json;
use tokio::{net::TcpListener, sync::Notify, time::Instant};

/// How long a report stays locked after the process that makes it has died.
const TTL: Duration = Duration::from_secs(30);
/// How long one request to the store may take. Three of them and the pauses between them are less than two seconds.
const CALL_TIMEOUT: Duration = Duration::from_millis(600);
/// How long the driver looks for a server. It is less than [`CALL_TIMEOUT`], so that the error names the server.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_millis(500);

/// The locks of a service on MongoDB that answers within two seconds.
async fn leases_on_mongodb(address: &str) -> Result<Leases> {
    let mut options = ClientOptions::parse(address).await?;
    options.server_selection_timeout = Some(SERVER_SELECTION_TIMEOUT);
    let database = Client::with_options(options)?.database("app");
    let store = MongoStore::new(&database.collection::<Document>("locks"));
    Ok(leases(Arc::new(store)))
}

fn leases(store: Arc<dyn Store>) -> Leases {
    Leases::builder(store).call_timeout(CALL_TIMEOUT).build()
}

/// What the handlers share.
#[derive(Clone)]
struct Service {
    leases: Leases,
    /// The first report is made when the example says so, and it says that it has begun.
    begun: Arc<Notify>,
    may_end: Arc<Notify>,
}

/// Makes a report, unless another request, of this process or of another one, is making it.
async fn make(State(service): State<Service>, Path(id): Path<u32>) -> Response {
    let attempt = service.leases.try_acquire(format!("report:{id}"), TTL);
    let made = attempt.with(async |lease| {
        service.begun.notify_one();
        service.may_end.notified().await;
        // Each write of the work should show the fence: docs/fencing.md.
        anyhow::Ok(json!({ "report": id, "fence": lease.fence() }))
    });
    match made.await {
        Ok(Attempt::Acquired(report)) => Json(report).into_response(),
        Ok(Attempt::Held(held)) => {
            let seconds = held.expires_in().as_secs() + 1;
            let retry_after = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from(seconds))]);
            let body = format!("{} is making it", held.owner());
            (StatusCode::CONFLICT, retry_after, body).into_response()
        }
        Err(WithError::NotAcquired(error)) if error.is_retryable() => {
            // The causes name hosts, so they go to the log and not to the client.
            eprintln!("{:#}", anyhow::Error::from(error));
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
        Err(error) => {
            eprintln!("{:#}", error.merge());
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A web handler under a lock.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,

    /// Ask once, with the locks on a MongoDB that is not there
    #[arg(long, value_name = "ADDRESS")]
    away: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    if let Some(server) = args.away {
        let (address, _) = serve(leases_on_mongodb(&server).await?).await?;
        return unavailable(address).await;
    }
    let store = FaultyStore::new(args.store.open().await?);
    let faults = store.faults();
    let (address, service) = serve(leases(Arc::new(store))).await?;

    let first = tokio::spawn(ask(address));
    service.begun.notified().await;
    let second = ask(address).await?;
    println!("while the report is made: {second}");
    ensure!(second == StatusCode::CONFLICT);
    service.may_end.notify_one();
    let first = first.await??;
    println!("the report itself: {first}");
    ensure!(first == StatusCode::OK);

    faults.calls().fail_all(Failure::Unreachable);
    unavailable(address).await?;
    faults.clear();
    service.leases.close().await;
    Ok(())
}

async fn unavailable(address: SocketAddr) -> Result<()> {
    let start = Instant::now();
    let status = ask(address).await?;
    println!(
        "while the database is away: {status}, after {:?}",
        start.elapsed()
    );
    ensure!(status == StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}

/// Serves on a free port of this host, until the process ends.
async fn serve(leases: Leases) -> Result<(SocketAddr, Service)> {
    let service = Service {
        leases,
        begun: Arc::default(),
        may_end: Arc::default(),
    };
    let app = Router::new().route("/reports/{id}", post(make));
    let app = app.with_state(service.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok((address, service))
}

/// Asks for the report 42, and returns the status of the answer.
async fn ask(address: SocketAddr) -> Result<StatusCode> {
    let response = http::ask(address, "POST /reports/42", &[]).await?;
    let status = response.split(' ').nth(1).context("no answer")?;
    Ok(status.parse()?)
}

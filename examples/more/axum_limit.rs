//! An HTTP service with several instances, which answers each client so many requests in a window, over all instances.
//!
//! Two instances in this process, each on its own port:
//!
//! ```text
//! cargo run -p leasehold-examples --example axum_limit
//! cargo run -p leasehold-examples --example axum_limit -- --store mongodb://localhost/app
//! ```
//!
//! # How it works
//!
//! A middleware takes a permit of the client's limiter for each request, without waiting. Without a permit it answers
//! 429 with `Retry-After`. Each response says what is left: in the fields `RateLimit` and `RateLimit-Policy` of the IETF
//! draft ([draft-ietf-httpapi-ratelimit-headers], since its version 8), and in `X-RateLimit-*`, which most clients read
//! today. The times are in seconds, rounded up, so that a client that keeps to them does not come too early. By the draft,
//! `Retry-After` is no earlier than the end of the time `t` in `RateLimit`, so a refusal has the same time in both.
//!
//! If the store does not answer, this service answers 503. Another one may answer without a permit.
//!
//! [draft-ietf-httpapi-ratelimit-headers]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Parser;
use leasehold::{Leases, PermitAttempt, PermitsLeft, Store};
use leasehold_examples::http;
use tokio::net::TcpListener;

/// How many requests of a client are answered in an hour, and how many of them at once.
const LIMIT: u32 = 60;
const BURST: u32 = 3;
const WINDOW: Duration = Duration::from_secs(3_600);

/// Takes a permit for the request, and answers it only with one.
async fn limited(State(leases): State<Leases>, request: Request, next: Next) -> Response {
    let client = request.headers().get("x-client");
    let Some(client) = client.and_then(|name| name.to_str().ok()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let limiter = leases.limiter(format!("requests of {client}"), LIMIT, WINDOW);
    let (mut response, left, until) = match limiter.smooth(BURST).try_permit().await {
        Ok(PermitAttempt::Granted(permit)) => {
            let left = permit.left();
            (next.run(request).await, left, left.reset_in)
        }
        Ok(PermitAttempt::Full { retry_in, left }) => {
            let mut refusal = StatusCode::TOO_MANY_REQUESTS.into_response();
            let seconds = HeaderValue::from(whole_seconds(retry_in));
            refusal.headers_mut().insert("retry-after", seconds);
            (refusal, left, retry_in)
        }
        Err(error) if error.is_retryable() => {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    say_what_is_left(&mut response, left, until);
    response
}

/// Adds the header fields. The client gets no more than what is left until this time has passed.
fn say_what_is_left(response: &mut Response, left: PermitsLeft, until: Duration) {
    let (remaining, reset) = (left.remaining, whole_seconds(left.reset_in));
    let (window, until) = (WINDOW.as_secs(), whole_seconds(until));
    let fields = [
        (
            "ratelimit-policy",
            format!("\"client\";q={LIMIT};w={window}"),
        ),
        ("ratelimit", format!("\"client\";r={remaining};t={until}")),
        ("x-ratelimit-limit", left.limit.to_string()),
        ("x-ratelimit-remaining", remaining.to_string()),
        ("x-ratelimit-reset", reset.to_string()),
    ];
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// An HTTP service that limits the requests of each client.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

/// Runs the example: a client makes one request more than it may, in turn to two instances.
async fn run(args: Args) -> Result<()> {
    let store = args.store.open().await?;
    let instances = [
        instance(store.clone()).await?,
        instance(store.clone()).await?,
    ];
    // A run after another one is another client.
    let client = format!("alice-{}", fastrand::u64(..));
    for number in 0..=BURST {
        let address = instances[number as usize % instances.len()];
        let answer = http::ask(address, "GET /", &[("X-Client", &client)]).await?;
        println!("{}\n", answer.trim_end());
        let status = answer.split(' ').nth(1).unwrap_or_default();
        let remaining = field(&answer, "x-ratelimit-remaining");
        let retry = field(&answer, "retry-after");
        if number < BURST {
            let left = (BURST - number - 1).to_string();
            ensure!(status == "200" && retry.is_none(), "it was refused");
            ensure!(remaining == Some(&*left), "{remaining:?}, not {left}");
        } else {
            let seconds: u64 = retry.context("it says no time")?.parse()?;
            ensure!(status == "429" && remaining == Some("0"), "{status}");
            ensure!(seconds > 0 && seconds <= WINDOW.as_secs() / u64::from(LIMIT));
            let told = field(&answer, "ratelimit").unwrap_or_default();
            ensure!(told == format!("\"client\";r=0;t={seconds}"), "{told}");
        }
    }
    let other = format!("bob-{}", fastrand::u64(..));
    let other = http::ask(instances[0], "GET /", &[("X-Client", &other)]).await?;
    ensure!(other.starts_with("HTTP/1.1 200 "), "clients share a limit");
    println!("Another client has a limit of its own.");
    Ok(())
}

/// Starts an instance of the service, which runs until the program ends.
async fn instance(store: Arc<dyn Store>) -> Result<SocketAddr> {
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(from_fn_with_state(Leases::new(store), limited));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// A header field of a response.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = answer.lines().filter_map(|line| line.split_once(": "));
    fields.find_map(|(it, value)| it.eq_ignore_ascii_case(name).then_some(value))
}

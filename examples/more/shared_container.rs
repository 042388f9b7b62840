//! Several test processes share one MongoDB in a container. A lease decides which process starts it.
//!
//! The example needs a Docker daemon, and says so if there is none:
//!
//! ```text
//! cargo run -p leasehold-examples --example shared_container
//! ```
//!
//! # How it works
//!
//! cargo-nextest runs each test in a separate process. `testcontainers` can reuse a running container, but it looks for
//! one and starts one in two steps. So two processes that do this at the same moment start one container each. Here the
//! processes take turns, with a lease in a file. The first process starts the container and waits until it is ready,
//! and the others find it. If the first process dies during the start, its lease ends with its ttl, and the next
//! process continues.
//!
//! Nothing removes a reused container when the processes end. This example removes it at its end.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::future::try_join_all;
use leasehold::{Leases, MongoStore, SqliteStore, WithError};
use mongodb::{Client, bson::Document};
use testcontainers::{
    ContainerAsync, GenericImage, ImageExt, ReuseDirective, TestcontainersError,
    core::{IntoContainerPort, WaitFor, client::ClientError},
    runners::AsyncRunner,
};
use tokio::process::Command;

const PROCESSES: u32 = 4;

/// The one MongoDB of all processes that name the same file.
async fn mongodb(locks: &Path) -> Result<ContainerAsync<GenericImage>> {
    let leases = Leases::new(SqliteStore::open(locks).await?);
    // If the process that starts the container dies, the others wait for this time.
    let ttl = Duration::from_secs(20);
    let starting = leases.acquire("mongodb", ttl);
    let container = starting.with(async |_| -> Result<_> {
        let image = GenericImage::new("mongo", "8.0.15")
            .with_exposed_port(27017.tcp())
            .with_wait_for(WaitFor::message_on_stdout("Waiting for connections"))
            .with_cmd(["mongod", "--bind_ip_all"])
            .with_label("org.example.tests", "mongodb")
            .with_reuse(ReuseDirective::Always);
        Ok(image.start().await?)
    });
    let container = container.await.map_err(WithError::merge)?;
    leases.close().await;
    Ok(container)
}

/// A store in a database of the test's own. A container that is reused still has the locks of the run before.
async fn store(container: &ContainerAsync<GenericImage>, test: &str) -> Result<MongoStore> {
    let port = container.get_host_port_ipv4(27017.tcp()).await?;
    let client = Client::with_uri_str(format!("mongodb://127.0.0.1:{port}")).await?;
    let database = client.database(test);
    database.drop().await?;
    let store = MongoStore::new(&database.collection::<Document>("locks"));
    store.prepare().await?;
    Ok(store)
}

/// A test, which runs in its own process.
async fn test(locks: &Path, number: u32) -> Result<()> {
    let start = Instant::now();
    let container = mongodb(locks).await.map_err(explained)?;
    let ready = start.elapsed();
    let store = store(&container, &format!("test_{number}")).await?;
    let leases = Leases::new(store);
    let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    println!(
        "{} process {number} has it after {:.1} s, and a lease with fence {}",
        container.id(),
        ready.as_secs_f32(),
        lease.fence()
    );
    lease.release().await?;
    Ok(())
}

fn explained(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(TestcontainersError::Client(
            ClientError::Init(_) | ClientError::ListContainers(_),
        )) => error.context(
            "there is no Docker daemon here: start one, or set DOCKER_HOST to its address",
        ),
        _ => error.context("there is no MongoDB for the test"),
    }
}

#[derive(Parser)]
#[command(about = "Several test processes that share one MongoDB in a container.")]
struct Args {
    /// Run as this process. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    process: Option<u32>,
    #[arg(long, hide = true)]
    locks: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    leasehold_examples::report(run(leasehold_examples::parse_args()).await)
}

async fn run(args: Args) -> Result<()> {
    if let (Some(number), Some(locks)) = (args.process, args.locks) {
        return test(&locks, number).await;
    }
    let folder = tempfile::tempdir().context("no temporary folder for the locks")?;
    let locks = folder.path().join("locks.db");
    println!("{PROCESSES} processes need a MongoDB at the same moment.\n");
    let tests = (1..=PROCESSES).map(|number| in_process(&locks, number));
    let lines = try_join_all(tests).await?;

    // This finds the container too, in order to remove it.
    let container = mongodb(&locks).await?;
    let id = container.id().to_owned();
    container.rm().await?;
    for line in &lines {
        println!("{}", line.replace(&id, &id[..12]));
    }
    ensure!(
        lines.iter().all(|line| line.starts_with(&id)),
        "they should have shared one container"
    );
    println!(
        "\nAll of them had the same container, {}. It is removed.",
        &id[..12]
    );
    Ok(())
}

/// Runs the test in a new process, and returns the line that it prints.
async fn in_process(locks: &Path, number: u32) -> Result<String> {
    let process = Command::new(std::env::current_exe()?)
        .args(["--process", &number.to_string()])
        .arg("--locks")
        .arg(locks)
        .kill_on_drop(true)
        .output();
    let output = process.await.context("a process cannot be started")?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "process {number}: {}",
        problem.trim_end()
    );
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

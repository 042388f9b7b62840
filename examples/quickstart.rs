//! A worker dies while it holds a lock, and another takes over.
//!
//! In memory, without a server; each worker is a thread with a tokio runtime of its own:
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! On a real server (MongoDB, Elasticsearch, OpenSearch); each worker is a process of its own:
//!
//! ```text
//! cargo run --example quickstart -- --store mongodb://localhost/app
//! cargo run --example quickstart -- --store http://localhost:9200/app-locks
//! ```
//!
//! [`work`] is what an application would write. The rest starts two workers and kills one.

#[path = "shared/mod.rs"]
mod shared;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use leasehold::{Attempt, Leases, Store};
use tokio::runtime::{Builder, Runtime};

/// How long a lock outlives a holder that dies.
const TTL: Duration = Duration::from_secs(3);
/// How long the work takes. It has to end within the ttl, as nothing here renews the lease.
const WORK: Duration = Duration::from_secs(2);
/// The pause between two events, for the reader.
const BEAT: Duration = Duration::from_millis(500);
/// Nobody in this story waits longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What every worker does.
async fn work(
    name: &str,
    key: &str,
    store: Arc<dyn Store>,
    tell: impl Fn(String) + Send,
) -> Result<()> {
    let leases = Leases::builder(store).owner(name).build();

    let lease = match leases.try_acquire(key, TTL).await? {
        Attempt::Acquired(lease) => lease,
        Attempt::Held(held) => {
            let (holder, left) = (held.owner(), held.expires_in().as_secs_f32());
            tell(format!(
                "{name} is refused: {holder} has the lock for {left:.1} s more. It waits."
            ));
            leases.acquire(key, TTL).wait_for(PATIENCE).await?
        }
    };
    let fence = lease.fence();
    tell(format!(
        "{name} gets the lock, with fence {fence}, and starts to work."
    ));

    tokio::time::sleep(WORK).await;

    lease.release().await?;
    tell(format!("{name} is done and releases the lock."));
    Ok(())
}

#[derive(Parser)]
#[command(about = "A worker dies while it holds a lock, and another takes over.")]
struct Args {
    #[command(flatten)]
    store: shared::StoreArgs,
    /// Be this worker: how the example starts its own processes.
    #[arg(long, hide = true)]
    worker: Option<String>,
    #[arg(long, hide = true, default_value_t = format!("report:{}", std::process::id()))]
    key: String,
}

fn main() -> ExitCode {
    shared::report(run(&shared::parse_args()))
}

fn run(args: &Args) -> Result<()> {
    let runtime = Runtime::new()?;
    let store = runtime.block_on(args.store.open())?;
    match &args.worker {
        Some(name) => runtime.block_on(work(name, &args.key, store, |line| println!("{line}"))),
        None => direct(args, &runtime, store),
    }
}

/// Starts the workers, kills the first, and tells what happens.
fn direct(args: &Args, runtime: &Runtime, store: Arc<dyn Store>) -> Result<()> {
    let key = &args.key;
    println!(
        "Two workers want the lock {key:?}.\nWho gets it has it until it is released, but for {} s \
         at the most (the ttl).\n",
        TTL.as_secs()
    );
    let (tell, lines) = channel();
    let begin = Instant::now();
    let say = |line: &str| println!("{:4.1} s  {line}", begin.elapsed().as_secs_f32());
    let hear = || {
        let line = lines.recv_timeout(PATIENCE);
        line.map(|line: String| say(&line))
            .context("a worker fell silent")
    };

    let first = Worker::start("worker A", args, &store, tell.clone())?;
    hear()?;
    thread::sleep(BEAT);
    let _second = Worker::start("worker B", args, &store, tell)?;
    hear()?;

    thread::sleep(BEAT);
    say(first.kill()?);
    thread::sleep(BEAT);
    let leases = Leases::new(store);
    let before = runtime.block_on(leases.inspect(key))?.context("no lock")?;
    let holder = before.holders.first().map(|holder| &*holder.owner);
    ensure!(holder == Some("worker A"), "the lock was free too soon");
    say("The lock still belongs to worker A.");

    hear()?;
    hear()?;
    let after = runtime.block_on(leases.inspect(key))?.context("no lock")?;
    ensure!(after.fence > before.fence, "the fence did not rise");
    println!(
        "\nThe lock of a dead worker was free again after its ttl, and the next worker got it with a \
         higher fence,\na number by which a database can refuse late writes of the one before.\n\
         Next: cargo run --example run_once (a scheduled job that runs once), and README.md."
    );
    Ok(())
}

/// A worker that can be killed.
enum Worker {
    Thread(Runtime),
    Process(Child),
}

impl Worker {
    /// A thread if the locks are in the memory of this process; otherwise a process.
    fn start(
        name: &'static str,
        args: &Args,
        store: &Arc<dyn Store>,
        tell: Sender<String>,
    ) -> Result<Self> {
        let Some(address) = &args.store.store else {
            let mut thread = Builder::new_multi_thread();
            let runtime = thread.worker_threads(1).enable_all().build()?;
            let (key, store) = (args.key.clone(), store.clone());
            runtime.spawn(async move {
                let tell = move |line| drop(tell.send(line));
                shared::report(work(name, &key, store, tell).await)
            });
            return Ok(Self::Thread(runtime));
        };
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--worker", name, "--key", &args.key, "--store", address])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("a worker has no output")?;
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(tell.send(line)));
        });
        Ok(Self::Process(process))
    }

    /// Ends the worker where it is, so that it can release nothing, and says how.
    fn kill(self) -> Result<&'static str> {
        match self {
            // The lease is dropped with the work, but the task that would release it in the
            // background ran here too.
            Self::Thread(runtime) => {
                runtime.shutdown_background();
                Ok("worker A dies: its runtime is shut down in the middle of the work.")
            }
            Self::Process(mut process) => {
                process.kill()?;
                process.wait()?;
                Ok("worker A dies: its process is killed in the middle of the work.")
            }
        }
    }
}

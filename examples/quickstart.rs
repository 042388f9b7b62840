//! A worker dies while it holds a lock, and another worker takes over.
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! The locks are in memory, and each worker has its own tokio runtime. To use processes, on a server or with a file:
//! `cargo run -p leasehold-examples --example takeover`.
//!
//! [`work`] is the code that an application would contain. The rest starts two workers and kills one.

use std::{
    error::Error,
    sync::mpsc::{Sender, channel},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Attempt, Leases, MemoryStore};
use tokio::runtime::{Builder, Runtime};

/// How long a lock outlives a holder that dies.
const TTL: Duration = Duration::from_secs(3);
/// How long the work takes. It must end within the ttl, because nothing here renews the lease.
const WORK: Duration = Duration::from_secs(2);
/// The pause between two events, so that a reader can follow.
const BEAT: Duration = Duration::from_millis(500);
/// An upper bound for every wait in this example.
const PATIENCE: Duration = Duration::from_secs(180);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The code of every worker.
async fn work(name: &str, store: MemoryStore, tell: impl Fn(String)) -> Result<()> {
    let leases = Leases::builder(store).owner(name).build();

    let lease = match leases.try_acquire("report:42", TTL).await? {
        Attempt::Acquired(lease) => lease,
        Attempt::Held(held) => {
            let (holder, left) = (held.owner(), held.expires_in().as_secs_f32());
            tell(format!(
                "{name} is refused: {holder} has the lock for {left:.1} s more. It waits."
            ));
            leases.acquire("report:42", TTL).wait_for(PATIENCE).await?
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

/// Starts the workers, kills the first one, and prints what happens.
fn main() -> Result<()> {
    println!(
        "Two workers want the lock \"report:42\".\nWho gets it has it until it is released, but for {} s \
         at the most (the ttl).\n",
        TTL.as_secs()
    );
    let store = MemoryStore::new();
    let (tell, lines) = channel();
    let begin = Instant::now();
    let say = |line: &str| println!("{:4.1} s  {line}", begin.elapsed().as_secs_f32());
    let hear = || lines.recv_timeout(PATIENCE).map(|line: String| say(&line));

    let first = start("worker A", &store, tell.clone())?;
    hear()?;
    let leases = Leases::new(store.clone());
    let before = first.block_on(leases.inspect("report:42"))?;
    let before = before.ok_or("there is no lock")?;
    thread::sleep(BEAT);
    let second = start("worker B", &store, tell)?;
    hear()?;

    thread::sleep(BEAT);
    // The lease is dropped together with the work. The background task that would release it ran on this runtime too,
    // so it ends as well.
    first.shutdown_background();
    say("worker A dies: its runtime is shut down in the middle of the work.");
    thread::sleep(BEAT);
    let now = second.block_on(leases.inspect("report:42"))?;
    let now = now.ok_or("there is no lock")?;
    let holder = now.holders.first().map(|holder| &*holder.owner);
    if holder == Some("worker A") {
        say("The lock still belongs to worker A.");
    }

    // This ends when no worker is left that could send an event.
    while hear().is_ok() {}
    let after = second.block_on(leases.inspect("report:42"))?;
    if after.ok_or("there is no lock")?.fence <= before.fence {
        return Err("the fence did not rise".into());
    }
    println!(
        "\nThe lock of a dead worker was free again after its ttl, and the next worker got it with a \
         higher fence,\na number by which a database can refuse late writes of the one before.\n\
         Next: cargo run -p leasehold-examples --example run_once (a scheduled job that runs once), and README.md."
    );
    Ok(())
}

/// A worker that can be killed.
fn start(name: &'static str, store: &MemoryStore, tell: Sender<String>) -> Result<Runtime> {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build()?;
    let store = store.clone();
    runtime.spawn(async move {
        let told = tell.clone();
        if let Err(error) = work(name, store, move |line| drop(told.send(line))).await {
            drop(tell.send(format!("{name} fails: {error}")));
        }
    });
    Ok(runtime)
}

//! A worker dies while it holds a lock, and another worker takes over, on a server or in a file.
//!
//! Each worker is a separate process, and the first one is killed:
//!
//! ```text
//! cargo run -p leasehold-examples --example takeover
//! cargo run -p leasehold-examples --example takeover -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example takeover -- --store http://localhost:9200/app-locks
//! ```
//!
//! Without an address the locks are in a file, which is removed at the end. [`work`] is the code that an application
//! would contain.

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
use leasehold::{Attempt, Error, Leases, Store};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// How long a lock outlives a holder that dies.
const TTL: Duration = Duration::from_secs(3);
/// How long the work takes. It must end within the ttl, because nothing here renews the lease.
const WORK: Duration = Duration::from_secs(2);
/// The pause between two events, so that a reader can follow.
const BEAT: Duration = Duration::from_millis(500);
/// An upper bound for every wait in this example.
const PATIENCE: Duration = Duration::from_secs(180);

/// The code of every worker.
async fn work(
    name: &str,
    key: &str,
    store: Arc<dyn Store>,
    dies: bool,
    tell: impl Fn(String) + Send,
) -> Result<()> {
    let leases = Leases::builder(store).owner(name).build();

    let mut asked = leases.try_acquire(key, TTL).await;
    let lease = loop {
        match asked {
            Ok(Attempt::Acquired(lease)) => break lease,
            Ok(Attempt::Held(held)) => {
                let (holder, left) = (held.owner(), held.expires_in().as_secs_f32());
                tell(format!(
                    "{name} is refused: {holder} has the lock for {left:.1} s more. It waits."
                ));
            }
            // There was no answer within the ttl, or the answer was not read within it.
            Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let waited = leases.acquire(key, TTL).wait_for(PATIENCE).await;
        asked = waited.map(Attempt::Acquired);
    };
    let fence = lease.fence();
    tell(format!(
        "{name} gets the lock, with fence {fence}, and starts to work."
    ));

    if dies {
        // However slow the machine is, the worker is killed before its work ends.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(WORK).await;

    match lease.release().await {
        Ok(()) => tell(format!("{name} is done and releases the lock.")),
        // Nothing here renews the lease. A storage that checks the fence would refuse a late write.
        Err(Error::Lost { reason, .. }) => tell(format!("{name} is done too late: {reason}.")),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[derive(Parser)]
#[command(about = "A worker dies while it holds a lock, and another takes over.")]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
    /// Run as this worker. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Work until the process is killed.
    #[arg(long, hide = true)]
    dies: bool,
    #[arg(long, hide = true, default_value_t = format!("report:{}", std::process::id()))]
    key: String,
}

fn main() -> ExitCode {
    leasehold_examples::report(run(&leasehold_examples::parse_args()))
}

fn run(args: &Args) -> Result<()> {
    let runtime = Runtime::new()?;
    let folder = TempDir::new()?;
    let file = || format!("file:{}", folder.path().join("locks.db").display());
    let address = args.store.store.clone().unwrap_or_else(file);
    let store = runtime.block_on(leasehold_examples::open(&address))?;
    match &args.worker {
        Some(name) => {
            let tell = |line| println!("{line}");
            runtime.block_on(work(name, &args.key, store, args.dies, tell))
        }
        None => direct(&args.key, &address, &runtime, store),
    }
}

/// Starts the workers, kills the first one, and prints what happens.
fn direct(key: &str, address: &str, runtime: &Runtime, store: Arc<dyn Store>) -> Result<()> {
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

    let leases = Leases::new(store);
    let look = || runtime.block_on(leases.inspect(key))?.context("no lock");

    let first = Worker::start("worker A", key, address, true, tell.clone())?;
    hear()?;
    let before = look()?;
    thread::sleep(BEAT);
    let _second = Worker::start("worker B", key, address, false, tell)?;
    hear()?;

    thread::sleep(BEAT);
    first.kill()?;
    say("worker A dies: its process is killed in the middle of the work.");
    thread::sleep(BEAT);
    let now = look()?;
    match now.holders.first() {
        Some(holder) if *holder.owner == *"worker A" => say("The lock still belongs to worker A."),
        // On a very slow machine the ttl may be over by now. The killed worker has released nothing itself.
        _ => ensure!(
            before.holders.iter().all(|it| it.expires_at <= now.now),
            "the lock was free too soon"
        ),
    }

    // This ends when no worker is left that could send an event.
    while hear().is_ok() {}
    let after = look()?;
    ensure!(after.fence > before.fence, "the fence did not rise");
    println!(
        "\nThe lock of a dead worker was free again after its ttl, and the next worker got it with a \
         higher fence,\na number by which a database can refuse late writes of the one before.\n\
         Next: cargo run -p leasehold-examples --example run_once (a scheduled job that runs once), and README.md."
    );
    Ok(())
}

/// A worker that can be killed. It is a process.
struct Worker(Child);

impl Worker {
    fn start(
        name: &str,
        key: &str,
        address: &str,
        dies: bool,
        tell: Sender<String>,
    ) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--worker", name, "--key", key, "--store", address])
            .args(dies.then_some("--dies"))
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("a worker has no output")?;
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(tell.send(line)));
        });
        Ok(Self(process))
    }

    /// Kills the worker at once, so that it cannot release its lease.
    fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

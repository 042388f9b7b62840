//! A worker is paused for longer than its lease lasts, and then writes: the damage that this does, and how a fence
//! prevents it.
//!
//! The account is a document in the same MongoDB as the locks, and each worker is a process of its own:
//!
//! ```text
//! cargo run -p leasehold-examples --example fencing -- --store mongodb://localhost/app
//! ```
//!
//! Or with a MongoDB that the script fetches and starts:
//!
//! ```text
//! scripts/with-engines mongodb -- sh -c 'cargo run -p leasehold-examples --example fencing -- --store "$MONGODB_URI"'
//! ```
//!
//! # How it works
//!
//! Worker A reads the balance under its lease, and is paused (SIGSTOP) before it writes. Its lease expires, as it must:
//! otherwise a dead worker would hold the account for ever. Worker B gets the lease, pays in, and ends. Then A
//! continues (SIGCONT). It does not know what happened, and writes the balance that it computed from the old one: the
//! payment is lost. A check of the lease before the write would not help, because the pause may also come after the
//! check.
//!
//! With [`GuardedCollection`] the document itself stores the greatest fence that it has seen. B has shown a greater
//! fence, so the write of A is refused, and A can start again.
//!
//! # When to use it
//!
//! Use it for data in MongoDB, Elasticsearch or OpenSearch (the last two have `GuardedIndex`), or in any other place
//! that can compare two numbers when it writes: `docs/fencing.md` shows SQL and HTTP.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use leasehold::{Error, Lease, Leases, fencing::GuardedCollection};
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use tokio::{runtime::Runtime, time::sleep};

const TTL: Duration = Duration::from_secs(2);
/// The time between a worker's read and its write.
const THOUGHT: Duration = Duration::from_secs(1);
const BEFORE: i64 = 100;

/// A paused worker writes after its lease has ended: without a fence, and with one.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
    /// Run as this worker. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    worker: Option<String>,
    #[arg(long, hide = true, default_value_t)]
    account: String,
    /// The amount that this worker pays in.
    #[arg(long, hide = true, default_value_t, allow_negative_numbers = true)]
    amount: i64,
    #[arg(long, hide = true)]
    fenced: bool,
    /// Pause between the first read and the first write.
    #[arg(long, hide = true)]
    pauses: bool,
}

fn main() -> ExitCode {
    leasehold_examples::report(run(&leasehold_examples::parse_args()))
}

fn run(args: &Args) -> Result<()> {
    match &args.store.store {
        Some(address) if address.starts_with("mongodb") => {}
        _ => bail!(
            "this example needs a MongoDB: --store mongodb://localhost/app, or see the top of its source"
        ),
    }
    let runtime = Runtime::new()?;
    match &args.worker {
        Some(name) => runtime.block_on(work(name, args)),
        None => {
            tell_story(args, &runtime, false)?;
            println!();
            tell_story(args, &runtime, true)
        }
    }
}

/// The code of every worker. It repeats the payment until it succeeds.
async fn work(name: &str, args: &Args) -> Result<()> {
    let leases = Leases::builder(args.store.open().await?)
        .owner(name)
        .build();
    let accounts = accounts(args).await?;
    loop {
        let lease = match leases.acquire(&args.account, TTL).await {
            Ok(lease) => lease,
            // There was no answer within the ttl, or the answer was not read within it.
            Err(Error::TimedOut { .. } | Error::NotTaken { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let paid = if args.fenced {
            pay_in_fenced(name, args, &accounts, &lease).await
        } else {
            pay_in(name, args, &accounts).await
        };
        match paid {
            Ok(balance) => {
                println!("{name} writes {balance}, and is done.");
                // The lease may have ended long ago, unnoticed.
                drop(lease);
                leases.close().await;
                return Ok(());
            }
            Err(error) => match error.downcast_ref() {
                // The loop acquires a new lease, and reads the current balance.
                Some(Error::Fenced { .. }) => println!("{name} is refused: {error}."),
                _ => return Err(error),
            },
        }
    }
}

/// Reads, pauses and writes, without a fence.
async fn pay_in(name: &str, args: &Args, accounts: &Collection<Document>) -> Result<i64> {
    let filter = doc! { "_id": &args.account };
    let before = balance(accounts.find_one(filter.clone()).await?);
    println!("{name} has the lease and reads {before}.");
    think(args).await?;
    let balance = before + args.amount;
    let written = doc! { "$set": { "balance": balance } };
    accounts.update_one(filter, written).await?;
    Ok(balance)
}

/// Shows the fence, reads, pauses, and writes with the fence.
async fn pay_in_fenced(
    name: &str,
    args: &Args,
    accounts: &Collection<Document>,
    lease: &Lease,
) -> Result<i64> {
    let accounts = GuardedCollection::new(accounts, lease.fence());
    let filter = doc! { "_id": &args.account };
    let before = balance(accounts.claim(&args.account).await?);
    let fence = lease.fence();
    println!("{name} has the lease, shows its fence {fence}, and reads {before}.");
    think(args).await?;
    let balance = before + args.amount;
    let written = doc! { "$set": { "balance": balance } };
    accounts.update_one(filter, written).await?;
    Ok(balance)
}

/// The pause between the read and the write.
async fn think(args: &Args) -> Result<()> {
    static PAUSED: AtomicBool = AtomicBool::new(false);
    if args.pauses && !PAUSED.swap(true, Relaxed) {
        // Like a machine that is suspended or out of memory, the process continues when it is told to.
        kill_process(getpid(), Signal::STOP)?
    } else {
        sleep(THOUGHT).await
    }
    Ok(())
}

fn balance(account: Option<Document>) -> i64 {
    account.map_or(0, |account| account.get_i64("balance").unwrap_or(0))
}

async fn accounts(args: &Args) -> Result<Collection<Document>> {
    let address = args.store.store.as_deref().unwrap_or_default();
    let client = Client::with_uri_str(address).await?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    Ok(database.collection("accounts"))
}

/// Starts both workers, pauses the first one, and checks the final balance.
fn tell_story(args: &Args, runtime: &Runtime, fenced: bool) -> Result<()> {
    println!("{} the fence:", if fenced { "With" } else { "Without" });
    let account = format!("account:{}-{fenced}", std::process::id());
    // This checks that there is a server, and sets it up.
    runtime.block_on(args.store.open())?;
    let accounts = runtime.block_on(accounts(args))?;
    let new = doc! { "_id": &account, "balance": BEFORE };
    runtime.block_on(async { accounts.insert_one(new).await })?;

    let mut a = Worker::start("worker A", args, &account, -30, fenced)?;
    a.hear()?;
    a.until_paused()?;
    println!("  (Worker A is paused. Its lease lasts {TTL:?}.)");
    let mut b = Worker::start("worker B", args, &account, 50, fenced)?;
    b.hear_all()?;
    println!("  (Worker A goes on.)");
    a.signal(Signal::CONT)?;
    a.hear_all()?;

    let filter = doc! { "_id": &account };
    let last = runtime.block_on(async { accounts.find_one_and_delete(filter).await })?;
    let last = balance(last);
    println!(
        "{BEFORE} - 30 + 50 is {}, and the balance is {last}.",
        BEFORE - 30 + 50
    );
    let expected = if fenced {
        BEFORE - 30 + 50
    } else {
        BEFORE - 30
    };
    ensure!(last == expected, "it should be {expected} in this story");
    Ok(())
}

struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(name: &str, args: &Args, account: &str, amount: i64, fenced: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let address = args.store.store.as_deref().unwrap_or_default();
        command
            .args(["--store", address, "--worker", name, "--account", account])
            .args(["--amount", &amount.to_string()])
            .args(fenced.then_some("--fenced"))
            .args((amount < 0).then_some("--pauses"));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("it has no output")?;
        let lines = BufReader::new(output).lines();
        Ok(Self { child, lines })
    }

    fn hear(&mut self) -> Result<bool> {
        let Some(line) = self.lines.next() else {
            return Ok(false);
        };
        println!("  {}", line?);
        Ok(true)
    }

    fn hear_all(&mut self) -> Result<()> {
        while self.hear()? {}
        let ended = self.child.wait()?;
        ensure!(ended.success(), "a worker failed");
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(self.child.id().try_into()?).context("no such process")
    }

    fn until_paused(&self) -> Result<()> {
        let seen = waitpid(Some(self.pid()?), WaitOptions::UNTRACED)?;
        let stopped = seen.is_some_and(|(_, status)| status.stopped());
        ensure!(stopped, "a worker ended too early");
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL also ends a process that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

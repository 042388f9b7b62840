//! Records a run in which a holder is paused past the expiry of its lease, and draws the pictures of `README.md` and
//! `docs/guarantees.md` from it.
//!
//! `scripts/picture` runs it on a MongoDB that the script starts. To run it by hand:
//!
//! ```text
//! cargo run -p leasehold-examples --example timeline -- --store mongodb://localhost/app
//! cargo run -p leasehold-examples --example timeline
//! ```
//!
//! The second command draws the run that was recorded before and is in the folder.
//!
//! # How it works
//!
//! A and B are processes. A writes to the account, keeps its lease alive, and stops itself with SIGSTOP between a check
//! of `is_live()` and its next write. The director, which is this program without `--process`, then starts B, and
//! continues A with SIGCONT after B has written. All processes and the server read the clock of the same host, so their
//! times can be compared.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use leasehold::{Error, Lease, Leases, fencing::GuardedCollection};
use leasehold_examples::timeline::Run;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use tokio::{io::AsyncReadExt, runtime::Runtime, time::sleep};

const TTL: Duration = Duration::from_secs(2);
const RENEWALS: usize = 2;
/// The time between two events, so that the picture shows them apart.
const BEAT: Duration = Duration::from_millis(300);
const EVENTS: &str = "paused-holder.json";

/// Records a run with a paused holder, and draws it.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    store: leasehold_examples::StoreArgs,
    /// The folder of the pictures
    #[arg(long, value_name = "FOLDER", default_value = "docs/images")]
    to: PathBuf,
    /// Run as this process. The example starts its own processes with this option.
    #[arg(long, hide = true)]
    process: Option<Process>,
    #[arg(long, hide = true, default_value_t)]
    account: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Process {
    A,
    B,
}

fn main() -> ExitCode {
    leasehold_examples::report(run(&leasehold_examples::parse_args()))
}

fn run(args: &Args) -> Result<()> {
    match (&args.store.store, args.process) {
        (None, _) => {}
        (Some(address), _) if !address.starts_with("mongodb") => bail!("it needs a MongoDB"),
        (Some(_), Some(process)) => return Runtime::new()?.block_on(work(process, args)),
        (Some(_), None) => {
            let recorded = direct(args, &Runtime::new()?)?;
            fs::create_dir_all(&args.to)?;
            let events = serde_json::to_string_pretty(&recorded)?;
            fs::write(args.to.join(EVENTS), events + "\n")?;
        }
    }
    let recorded = fs::read_to_string(args.to.join(EVENTS)).context("no run was recorded")?;
    let recorded: Run = serde_json::from_str(&recorded)?;
    recorded.check()?;
    for (name, picture) in recorded.pictures() {
        let path = args.to.join(name);
        fs::write(&path, picture)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Tells the director an event and its time in microseconds.
fn tell(what: &str, at: SystemTime) -> Result<()> {
    println!("{what} {}", micros(at)?);
    Ok(())
}

fn micros(at: SystemTime) -> Result<i64> {
    Ok(at.duration_since(UNIX_EPOCH)?.as_micros().try_into()?)
}

fn now() -> SystemTime {
    SystemTime::now()
}

async fn work(process: Process, args: &Args) -> Result<()> {
    let (owner, before_write) = match process {
        Process::A => ("process A", BEAT),
        Process::B => ("process B", BEAT * 2),
    };
    let leases = Leases::builder(args.store.open().await?)
        .owner(owner)
        .build();
    let accounts = accounts(args).await?;
    tell("asks", now())?;
    let lease = leases.acquire(&args.account, TTL).keep_alive().await?;
    println!("granted {}", lease.acquired_at().timestamp_micros());
    println!("fence {}", lease.fence());
    let accounts = GuardedCollection::new(&accounts, lease.fence());
    sleep(before_write).await;
    write(args, &accounts).await?;
    tell("wrote", now())?;
    match process {
        Process::A => {
            let lost = async {
                lease.lost().await;
                tell("lost", now())
            };
            tokio::try_join!(pause(args, &accounts, &lease), lost)?;
        }
        Process::B => {
            // The process waits until the director closes the other end.
            tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
            lease.release().await?;
            tell("released", now())?;
        }
    }
    leases.close().await;
    Ok(())
}

async fn write(args: &Args, accounts: &GuardedCollection<Document>) -> Result<(), Error> {
    let filter = doc! { "_id": &args.account };
    let update = doc! { "$inc": { "balance": 1 } };
    accounts.update_one(filter, update).await?;
    Ok(())
}

/// Pauses between the check of the lease and the write.
async fn pause(args: &Args, accounts: &GuardedCollection<Document>, lease: &Lease) -> Result<()> {
    for _ in 0..RENEWALS {
        let before = lease.deadline();
        while lease.deadline() == before {
            sleep(Duration::from_millis(1)).await;
        }
        tell("renewed", now())?;
    }
    sleep(BEAT).await;
    ensure!(lease.is_live(), "the lease was lost before the pause");
    tell("deadline", now() + lease.remaining())?;
    tell("paused", now())?;
    kill_process(getpid(), Signal::STOP)?;
    tell("resumed", now())?;
    ensure!(!lease.is_live(), "the lease outlived the pause");
    match write(args, accounts).await {
        Err(Error::Fenced { .. }) => tell("refused", now()),
        Err(error) => Err(error.into()),
        Ok(()) => bail!("the late write was not refused"),
    }
}

async fn accounts(args: &Args) -> Result<Collection<Document>> {
    let address = args.store.store.as_deref().unwrap_or_default();
    let client = Client::with_uri_str(address).await?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    Ok(database.collection("accounts"))
}

/// Starts both processes, continues the first one, and combines their times.
fn direct(args: &Args, runtime: &Runtime) -> Result<Run> {
    let key = format!("account:{}", std::process::id());
    let leases = Leases::new(runtime.block_on(args.store.open())?);
    let accounts = runtime.block_on(accounts(args))?;
    let new = doc! { "_id": &key, "balance": 0 };
    runtime.block_on(async { accounts.insert_one(new).await })?;

    let mut a = Worker::start("a", args, &key)?;
    a.hear_until("paused")?;
    a.wait_until_stopped()?;
    let before = micros(now())?;
    let state = runtime.block_on(leases.inspect(&key))?.context("no lock")?;
    let after = micros(now())?;
    let server = state.now.timestamp_micros();
    ensure!(
        (before - 1000..=after).contains(&server),
        "the server has another clock, so its times cannot be compared"
    );
    let held = state.holders.first().context("nobody holds the lock")?;
    let expired = held.expires_at.timestamp_micros();

    let mut b = Worker::start("b", args, &key)?;
    b.hear_until("wrote")?;
    thread::sleep(BEAT * 2);
    a.resume()?;
    a.hear_all()?;
    // This pause makes room in the picture for the text beside the late write.
    thread::sleep(BEAT * 6);
    b.stdin.take();
    b.hear_all()?;
    let filter = doc! { "_id": &key };
    runtime.block_on(async { accounts.delete_one(filter).await })?;

    let begin = a.first("granted")?;
    let since = |at: i64| (at - begin).div_euclid(1000);
    let at = |worker: &Worker, what: &str| worker.first(what).map(since);
    Ok(Run {
        ttl: TTL.as_millis().try_into()?,
        fence_a: a.first("fence")?,
        fence_b: b.first("fence")?,
        a_wrote: at(&a, "wrote")?,
        a_renewed: a.all("renewed").map(since).collect(),
        a_paused: at(&a, "paused")?,
        b_asked: at(&b, "asks")?,
        a_deadline: at(&a, "deadline")?,
        a_expired: since(expired),
        b_granted: at(&b, "granted")?,
        b_wrote: at(&b, "wrote")?,
        a_resumed: at(&a, "resumed")?,
        a_lost: at(&a, "lost")?,
        a_refused: at(&a, "refused")?,
        b_released: at(&b, "released")?,
    })
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    heard: Vec<(String, i64)>,
}

impl Worker {
    fn start(process: &str, args: &Args, account: &str) -> Result<Self> {
        let address = args.store.store.as_deref().unwrap_or_default();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--store", address, "--process", process])
            .args(["--account", account])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("it has no output")?;
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            lines: BufReader::new(output).lines(),
            heard: Vec::new(),
        })
    }

    fn hear(&mut self) -> Result<bool> {
        let Some(line) = self.lines.next() else {
            return Ok(false);
        };
        let line = line?;
        let (what, value) = line.split_once(' ').context("not a line of an event")?;
        self.heard.push((what.to_owned(), value.parse()?));
        Ok(true)
    }

    fn hear_until(&mut self, what: &str) -> Result<()> {
        while self.first(what).is_err() {
            ensure!(self.hear()?, "a process ended too early");
        }
        Ok(())
    }

    fn hear_all(&mut self) -> Result<()> {
        while self.hear()? {}
        let ended = self.child.wait()?;
        ensure!(ended.success(), "a process failed");
        Ok(())
    }

    fn all(&self, what: &str) -> impl Iterator<Item = i64> {
        let of = self.heard.iter().filter(move |(heard, _)| heard == what);
        of.map(|(_, value)| *value)
    }

    fn first(&self, what: &str) -> Result<i64> {
        self.all(what)
            .next()
            .with_context(|| format!("not heard: {what}"))
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(self.child.id().try_into()?).context("no such process")
    }

    fn wait_until_stopped(&self) -> Result<()> {
        let seen = waitpid(Some(self.pid()?), WaitOptions::UNTRACED)?;
        let stopped = seen.is_some_and(|(_, status)| status.stopped());
        ensure!(stopped, "a process ended too early");
        Ok(())
    }

    fn resume(&self) -> Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL also ends a process that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

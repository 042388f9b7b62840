//! Several operating-system processes on one engine.
//!
//! The processes are the test binary again, run with a task in its environment. Each binary that
//! uses this has a test `processes::the_work_of_a_process`, which does the task.

pub mod fencing;
pub mod limits;

use std::{
    env,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use leasehold::{Attempt, Error, Lease, Leases, LossReason, Store};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

use super::patient;

const TTL: Duration = Duration::from_secs(4);
/// That of a holder that has to be live until it is paused, on a machine that pauses by itself too.
const PAUSED_TTL: Duration = Duration::from_secs(15);
/// How often a takeover is tried on a machine so slow that the holder has lost its lease before anybody waits.
const ATTEMPTS: usize = 20;
/// A time to live that outlasts any test.
const LONG: Duration = Duration::from_secs(600);
/// Longer than the clocks of two processes differ.
const MOMENT: Duration = Duration::from_millis(500);
/// Longer than any process is silent that has something to tell.
const PATIENCE: Duration = Duration::from_secs(600);
const KEYS: usize = 20;

/// Where the processes find their locks.
#[derive(Clone)]
pub struct Place {
    /// What kind of store; for the binary to read.
    pub kind: &'static str,
    pub address: String,
    pub name: String,
}

/// The place that this process was started with, and its task; `None` if it is no such process.
pub fn task() -> Option<(String, String, String, String)> {
    let variable = |name: &str| env::var(format!("LEASEHOLD_TEST_{name}"));
    let task = variable("TASK").ok()?;
    let place = |name| variable(name).unwrap();
    Some((task, place("KIND"), place("ADDRESS"), place("NAME")))
}

fn process(place: &Place, task: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "processes::the_work_of_a_process", "--nocapture"])
        .env("LEASEHOLD_TEST_TASK", task)
        .env("LEASEHOLD_TEST_KIND", place.kind)
        .env("LEASEHOLD_TEST_ADDRESS", &place.address)
        .env("LEASEHOLD_TEST_NAME", &place.name)
        .env_remove("LEASEHOLD_ENGINE_LOG")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Does a task, in the process that was started for it.
pub async fn work(task: &str, store: Arc<dyn Store>) {
    let leases = patient(store);
    match task {
        "hold" => {
            let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
            told_held(&lease);
            std::future::pending::<()>().await;
        }
        "read" => {
            let lease = leases.acquire("key", TTL).shared().keep_alive();
            let lease = lease.await.unwrap();
            told_held(&lease);
            std::future::pending::<()>().await;
        }
        "wait" => {
            if let Some(lease) = wait(&leases, TTL).await {
                // On a slow machine it is over by now, which is as good.
                let _ = lease.release().await;
            }
        }
        "wait and hold" => {
            let _lease = wait(&leases, PAUSED_TTL).await;
            std::future::pending::<()>().await;
        }
        "write" => write(&leases).await,
        "wait for all" => {
            let wait = async |key| {
                let lease = leases.acquire(name(key), LONG).await.unwrap();
                told("granted", key as i64, millis(&lease));
                lease
            };
            told("waiting", 0, 0);
            join_all((0..KEYS).map(wait)).await;
        }
        "call" => limits::call(&leases).await,
        "take" => limits::take(&leases).await,
        "race" => {
            for key in 0..KEYS {
                let attempt = leases.try_acquire(name(key), LONG).await;
                if let Attempt::Acquired(lease) = attempt.unwrap() {
                    told("won", key as i64, lease.fence().get());
                    lease.detach();
                }
            }
        }
        other => panic!("no such task: {other}"),
    }
}

fn name(key: usize) -> String {
    format!("key {key}")
}

fn millis(lease: &Lease) -> i64 {
    lease.acquired_at().timestamp_millis()
}

/// Finds the key held, and waits for it. Tells until when it was held at the least.
async fn wait(leases: &Leases, ttl: Duration) -> Option<Lease> {
    let Attempt::Held(held) = leases.try_acquire("key", ttl).await.unwrap() else {
        told("free", 0, 0);
        return None;
    };
    let holder = &held.holders()[0];
    let until = holder.expires_at.timestamp_millis();
    told("refused", holder.fence.get(), until);
    let lease = leases.acquire("key", ttl).keep_alive().await.unwrap();
    told_held(&lease);
    Some(lease)
}

/// Works under a kept lease, and looks at it before each write. Tells what the first look was after
/// it has slept for longer than the ttl, and what became of the lease.
async fn write(leases: &Leases) {
    let lease = leases.acquire("key", PAUSED_TTL).keep_alive();
    let lease = lease.await.unwrap();
    let stop = lease.cancellation_token();
    told_held(&lease);
    let mut last = Instant::now();
    let writes = loop {
        sleep(Duration::from_millis(10)).await;
        let awake = Instant::now();
        let writes = lease.is_live();
        if !writes || awake - last >= PAUSED_TTL {
            break writes;
        }
        last = awake;
    };
    let lost = match lease.lost().await {
        LossReason::Expired => "expired",
        LossReason::Unreachable(_) => "unreachable",
        _ => "taken",
    };
    stop.cancelled().await;
    told(lost, writes.into(), 0);
    match lease.release().await {
        Ok(()) => told("released", 0, 0),
        Err(Error::Lost { .. }) => told("refused", 0, 0),
        // The engine is too slow to say so.
        Err(error) => told("refused", 0, error.is_ambiguous().into()),
    }
}

fn told_held(lease: &Lease) {
    told("held", lease.fence().get(), millis(lease));
}

fn told(what: &str, first: i64, second: i64) {
    println!("\ntold {what} {first} {second}");
}

fn parse(line: &str) -> Option<(String, i64, i64)> {
    let mut words = line.strip_prefix("told ")?.split(' ');
    let mut next = || words.next().unwrap();
    Some((
        next().to_owned(),
        next().parse().unwrap(),
        next().parse().unwrap(),
    ))
}

pub struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub fn start(place: &Place, task: &str) -> Self {
        Self::of(process(place, task))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Self {
            child,
            lines: BufReader::new(output).lines(),
        }
    }

    /// The next thing that it tells.
    pub async fn next(&mut self) -> (String, i64, i64) {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await;
            let line = line.expect("the process tells nothing, and does not end");
            let line = line
                .unwrap()
                .expect("the process ended and told nothing more");
            if let Some(told) = parse(&line) {
                return told;
            }
        }
    }

    /// Kills it, in whatever it does.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// What it told before its end and was not asked for.
    pub async fn rest(mut self) -> Vec<(String, i64, i64)> {
        let mut rest = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            rest.extend(parse(&line));
        }
        rest
    }

    /// Makes it stand still, as a long pause of its machine does; all of it, once this returns.
    fn stop(&self) {
        let pid = self.signal(Signal::STOP);
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// Makes it go on after a stop.
    fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) -> Pid {
        let pid = self.child.id().expect("the process has ended");
        let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        pid
    }
}

/// One process holds, alone or as a reader, and another waits; the holder gets SIGKILL, and the other
/// takes over after the ttl, by the server's clock, with a higher fence.
pub async fn takeover_from_a_killed_process(place: &Place) {
    for task in ["hold", "read"] {
        takeover_from(place, task).await;
    }
}

async fn takeover_from(place: &Place, task: &str) {
    for _ in 0..ATTEMPTS {
        let mut first = Process::start(place, task);
        let (what, first_fence, acquired_at) = first.next().await;
        assert_eq!(what, "held");

        let mut second = Process::start(place, "wait");
        let (what, fence, held_until) = second.next().await;
        first.child.kill().await.unwrap();
        if what == "free" {
            continue;
        }
        assert_eq!((&*what, fence), ("refused", first_fence));

        let (what, second_fence, taken_over_at) = second.next().await;
        assert_eq!(what, "held");
        assert!(
            second_fence > first_fence,
            "{second_fence} after {first_fence}"
        );
        let lived = taken_over_at - acquired_at;
        assert!(
            lived >= TTL.as_millis() as i64 && taken_over_at >= held_until,
            "taken over after {lived} ms, {} ms after its end",
            taken_over_at - held_until
        );
        assert!(second.child.wait().await.unwrap().success());
        return;
    }
    panic!("nobody came in time to find the key held");
}

/// The holder stands still for longer than its ttl, and another process takes over. Awake again the
/// first one writes nothing more, learns that it lost before it could ask anybody, and its release
/// leaves the lease of the other alone.
pub async fn pause_past_the_ttl(place: &Place, store: Arc<dyn Store>) {
    let mut attempts = 0..ATTEMPTS;
    let (mut first, mut second, first_fence) = loop {
        attempts
            .next()
            .expect("nobody came in time to find the key held");
        let mut first = Process::start(place, "write");
        let (what, fence, _) = first.next().await;
        assert_eq!(what, "held");
        let mut second = Process::start(place, "wait and hold");
        if second.next().await.0 == "refused" {
            break (first, second, fence);
        }
    };
    first.stop();
    let stopped = Instant::now();
    let (what, second_fence, _) = second.next().await;
    assert_eq!(what, "held");
    assert!(
        second_fence > first_fence,
        "{second_fence} after {first_fence}"
    );
    // It was renewed a while before the stop, so the other did not have to wait for all of the ttl.
    sleep((PAUSED_TTL + MOMENT).saturating_sub(stopped.elapsed())).await;
    first.resume();

    // Had it asked, it would know that its lease was taken.
    let (lost, writes, _) = first.next().await;
    assert!(["expired", "unreachable"].contains(&&*lost), "{lost}");
    assert_eq!(writes, 0, "it goes on writing beside the other");
    assert_eq!(first.next().await.0, "refused");
    let state = patient(store).inspect("key").await.unwrap().unwrap();
    let holders = state.holders.iter().map(|holder| holder.fence.get());
    assert_eq!(holders.collect::<Vec<_>>(), [second_fence]);
}

/// Another process waits for keys that are held here.
pub struct Waiting {
    leases: Leases,
    held: Vec<Lease>,
    other: Process,
}

impl Waiting {
    pub async fn start(place: &Place, store: impl Store) -> Self {
        let leases = patient(store);
        let hold = async |key| leases.acquire(name(key), LONG).await.unwrap();
        let held = join_all((0..KEYS).map(hold)).await;
        let mut other = Process::start(place, "wait for all");
        assert_eq!(other.next().await.0, "waiting");
        Self {
            leases,
            held,
            other,
        }
    }

    /// Releases the next key. How long it takes until the other process has it, in milliseconds, by the
    /// server's clock; `None` after the last.
    pub async fn wake_up(&mut self) -> Option<i64> {
        let lease = self.held.pop()?;
        let before = self.leases.inspect(lease.key()).await.unwrap().unwrap().now;
        lease.release().await.unwrap();
        let (what, key, granted) = self.other.next().await;
        assert_eq!((&*what, key), ("granted", self.held.len() as i64));
        Some(granted - before.timestamp_millis())
    }
}

/// Of four processes that ask for the same keys, each key has one winner.
pub async fn race_of_processes(place: &Place) {
    let racers = (0..4).map(|_| process(place, "race").output());
    let mut won = Vec::new();
    for output in futures::future::join_all(racers).await {
        let Output { status, stdout, .. } = output.unwrap();
        assert!(status.success());
        let text = String::from_utf8(stdout).unwrap();
        won.extend(text.lines().filter_map(parse).map(|(_, key, _)| key));
    }
    won.sort_unstable();
    assert_eq!(won, (0..KEYS as i64).collect::<Vec<_>>());
}

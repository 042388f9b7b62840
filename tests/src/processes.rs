//! Several operating-system processes on one engine.
//!
//! Each process is the test binary again, with a task in its environment. Each binary that uses this module has a test
//! `between_processes::the_work_of_a_process`, which does the task.

pub mod fencing;
mod full_queue;
pub mod limits;
mod takeover;
mod turns;
mod waiting;

use std::{
    env,
    path::Path,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use leasehold::{Acquire, Attempt, Error, Lease, Leases, LossReason, Store};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

pub use self::{
    full_queue::{
        a_process_without_a_place_is_reported_and_woken_by_an_eviction,
        an_owner_without_a_place_asks_more_often_than_others,
    },
    takeover::{pause_past_the_ttl, takeover_from_a_killed_process},
    turns::handoffs_within_a_process_have_a_bound,
    waiting::{
        a_crowd_asks_seldom_behind_a_long_job, a_reader_comes_back_before_a_writer,
        an_owner_comes_before_those_who_wait_for_it,
        the_first_asks_once_a_second_behind_a_long_job, the_tasks_of_a_process_have_one_place,
        waiting_processes_are_killed, waiting_processes_are_stopped,
        waits_that_end_give_their_places_back,
    },
};
use super::patient;

/// A ttl that is longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// Longer than a process with something to tell is silent.
const PATIENCE: Duration = Duration::from_secs(600);
const KEYS: usize = 20;
/// Where the processes find their locks.
#[derive(Clone)]
pub struct Place {
    /// The kind of store, which only the binary interprets.
    pub kind: &'static str,
    pub address: String,
    pub name: String,
}

/// The task and the place of this process; `None` if it was not started with a task.
pub fn task() -> Option<(String, String, String, String)> {
    let variable = |name: &str| env::var(format!("LEASEHOLD_TEST_{name}"));
    let task = variable("TASK").ok()?;
    let place = |name| variable(name).unwrap();
    Some((task, place("KIND"), place("ADDRESS"), place("NAME")))
}

/// A command that runs the test binary for a task at this place.
pub fn process(place: &Place, task: &str) -> Command {
    process_of(&env::current_exe().unwrap(), place, task)
}

/// The same command, if this path leads to the test binary.
pub fn process_of(program: &Path, place: &Place, task: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args([
            "--exact",
            "between_processes::the_work_of_a_process",
            "--nocapture",
        ])
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
    let leases = patient(store.clone());
    let (task, number) = number_of(task);
    let ttl = Duration::from_millis(number);
    match task {
        "hold" => hold(leases.acquire("key", ttl)).await,
        "read" => hold(leases.acquire("key", ttl).shared()).await,
        "wait" => {
            if let Some(lease) = wait(&leases).await {
                lease.release().await.unwrap();
            }
        }
        "wait and hold" => {
            if let Some(_lease) = wait(&leases).await {
                std::future::pending::<()>().await;
            }
        }
        "write" => write(&leases, ttl).await,
        "call" => limits::call(store, ttl).await,
        "take" => limits::take(store).await,
        "race" => {
            for key in 0..KEYS {
                let attempt = leases.try_acquire(name(key), LONG).await;
                if let Attempt::Acquired(lease) = attempt.unwrap() {
                    told("won", key as i64, lease.fence().get());
                    lease.detach().unwrap();
                }
            }
        }
        other => panic!("no such task: {other}"),
    }
}

/// A task with a time in milliseconds.
fn timed(task: &str, time: Duration) -> String {
    format!("{task} {}", time.as_millis())
}

fn number_of(task: &str) -> (&str, u64) {
    let number = task.rsplit_once(' ');
    let number = number.and_then(|(task, number)| Some((task, number.parse().ok()?)));
    number.unwrap_or((task, 0))
}

fn name(key: usize) -> String {
    format!("key {key}")
}

fn millis(lease: &Lease) -> i64 {
    lease.acquired_at().timestamp_millis()
}

/// Holds a lease with keep-alive until the process is killed. Tells if the lease is lost before that.
async fn hold(ask: Acquire) {
    let lease = ask.keep_alive().await.unwrap();
    told_held(&lease);
    told(lost(&lease).await, 0, 0);
    std::future::pending::<()>().await;
}

async fn lost(lease: &Lease) -> &'static str {
    match lease.lost().await {
        LossReason::Expired => "expired",
        LossReason::Unreachable(_) => "unreachable",
        _ => "taken",
    }
}

/// Finds the key held, and waits for it. Tells the earliest time at which the holder can expire, or that the key was
/// free.
async fn wait(leases: &Leases) -> Option<Lease> {
    let held = match leases.try_acquire("key", LONG).await.unwrap() {
        Attempt::Held(held) => held,
        Attempt::Acquired(lease) => {
            told("free", lease.fence().get(), millis(&lease));
            lease.release().await.unwrap();
            return None;
        }
    };
    let holder = &held.holders()[0];
    let until = holder.expires_at.timestamp_millis();
    told("refused", holder.fence.get(), until);
    let lease = leases.acquire("key", LONG).await.unwrap();
    told_held(&lease);
    Some(lease)
}

/// Works under a lease with keep-alive, and checks the lease before each write. Tells the result of the first check
/// after it has slept for longer than the ttl, and what became of the lease.
async fn write(leases: &Leases, ttl: Duration) {
    let lease = leases.acquire("key", ttl).keep_alive();
    let lease = lease.await.unwrap();
    let stop = lease.cancellation_token();
    told_held(&lease);
    let mut last = Instant::now();
    let writes = loop {
        sleep(Duration::from_millis(10)).await;
        let awake = Instant::now();
        let writes = lease.is_live();
        if !writes || awake - last >= ttl {
            break writes;
        }
        last = awake;
    };
    let lost = lost(&lease).await;
    stop.cancelled().await;
    told(lost, writes.into(), 0);
    match lease.release().await {
        Ok(()) => told("released", 0, 0),
        Err(Error::Lost { .. }) => told("refused", 0, 0),
        Err(error) => panic!("{error:?}"),
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

    /// The next thing that the process tells.
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

    /// Kills the process, at whatever point it is.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// What the process told before its end and was not read yet.
    pub async fn rest(mut self) -> Vec<(String, i64, i64)> {
        let mut rest = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            rest.extend(parse(&line));
        }
        rest
    }

    /// Stops the process, as a long pause of its machine would. When this returns, all of its threads stand still.
    fn stop(&self) {
        let pid = self.signal(Signal::STOP);
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// Lets the process go on after a stop.
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

/// Four processes ask for the same keys, and each key has one winner.
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

//! Several operating-system processes on one engine.
//!
//! The processes are the test binary again, run with a task in its environment. Each binary that
//! uses this has a test `processes::the_work_of_a_process`, which does the task.

use std::{
    env,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use leasehold::{Attempt, Leases, Store};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

const TTL: Duration = Duration::from_secs(5);
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
    let leases = Leases::new(store);
    match task {
        "hold" => {
            let lease = leases.acquire("key", TTL).await.unwrap();
            told(
                "held",
                lease.fence().get(),
                lease.acquired_at().timestamp_millis(),
            );
            std::future::pending::<()>().await;
        }
        "wait" => {
            let Attempt::Held(held) = leases.try_acquire("key", TTL).await.unwrap() else {
                panic!("the other process does not hold the key");
            };
            told("refused", held.holders()[0].fence.get(), 0);
            let lease = leases.acquire("key", TTL).await.unwrap();
            told(
                "held",
                lease.fence().get(),
                lease.acquired_at().timestamp_millis(),
            );
            lease.release().await.unwrap();
        }
        "race" => {
            for key in 0..KEYS {
                let name = format!("key {key}");
                let attempt = leases.try_acquire(&name, Duration::from_secs(600)).await;
                if let Attempt::Acquired(lease) = attempt.unwrap() {
                    told("won", key as i64, lease.fence().get());
                    lease.detach();
                }
            }
        }
        other => panic!("no such task: {other}"),
    }
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

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(place: &Place, task: &str) -> Self {
        let mut child = process(place, task).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Self {
            child,
            lines: BufReader::new(output).lines(),
        }
    }

    /// The next thing that it tells.
    async fn next(&mut self) -> (String, i64, i64) {
        loop {
            let line = self.lines.next_line().await.unwrap();
            let line = line.expect("the process ended and told nothing more");
            if let Some(told) = parse(&line) {
                return told;
            }
        }
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

/// One process holds, another waits; the holder gets SIGKILL, and the other takes over after the
/// ttl, by the server's clock, with a higher fence.
pub async fn takeover_from_a_killed_process(place: &Place) {
    let mut first = Process::start(place, "hold");
    let (what, first_fence, acquired_at) = first.next().await;
    assert_eq!(what, "held");

    let mut second = Process::start(place, "wait");
    assert_eq!(second.next().await, ("refused".to_owned(), first_fence, 0));
    first.child.kill().await.unwrap();

    let (what, second_fence, taken_over_at) = second.next().await;
    assert_eq!(what, "held");
    assert!(
        second_fence > first_fence,
        "{second_fence} after {first_fence}"
    );
    let lived = taken_over_at - acquired_at;
    assert!(
        lived >= TTL.as_millis() as i64,
        "taken over after {lived} ms"
    );
    assert!(second.child.wait().await.unwrap().success());
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

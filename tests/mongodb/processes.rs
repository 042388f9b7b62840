//! Several operating-system processes on one engine.
//!
//! The processes are this test binary again, run with a task in its environment.

use std::{
    env,
    process::{Output, Stdio},
    time::Duration,
};

use leasehold::{Attempt, Leases, MongoStore};
use mongodb::{Client, bson::Document};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use super::{Engine, Fixture};

const TTL: Duration = Duration::from_secs(2);
const KEYS: usize = 20;

/// Starts a process that does this task on the fixture's collection.
fn process(fixture: &Fixture, task: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "processes::the_work_of_a_process", "--nocapture"])
        .env("LEASEHOLD_TEST_TASK", task)
        .env("LEASEHOLD_TEST_URI", &fixture.uri)
        .env("LEASEHOLD_TEST_COLLECTION", &fixture.name)
        .env_remove("LEASEHOLD_ENGINE_LOG")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Not a test of its own: what a started process does. Without a task there is nothing to do.
#[tokio::test]
async fn the_work_of_a_process() {
    let Ok(task) = env::var("LEASEHOLD_TEST_TASK") else {
        return;
    };
    let client = Client::with_uri_str(env::var("LEASEHOLD_TEST_URI").unwrap())
        .await
        .unwrap();
    let locks = client
        .database(super::DATABASE)
        .collection::<Document>(&env::var("LEASEHOLD_TEST_COLLECTION").unwrap());
    let leases = Leases::new(MongoStore::new(&locks));
    match task.as_str() {
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
                let key_name = format!("key {key}");
                match leases
                    .try_acquire(&key_name, Duration::from_secs(600))
                    .await
                    .unwrap()
                {
                    Attempt::Acquired(lease) => {
                        told("won", key as i64, lease.fence().get());
                        lease.detach();
                    }
                    Attempt::Held(_) => {}
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
    fn start(fixture: &Fixture, task: &str) -> Self {
        let mut child = process(fixture, task).spawn().unwrap();
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
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    for engine in [Engine::MongoDb, Engine::MongoDbReplicaSet] {
        let fixture = Fixture::new(engine);
        let mut first = Process::start(&fixture, "hold");
        let (what, first_fence, acquired_at) = first.next().await;
        assert_eq!(what, "held");

        let mut second = Process::start(&fixture, "wait");
        assert_eq!(second.next().await, ("refused".to_owned(), first_fence, 0));
        first.child.kill().await.unwrap();

        let (what, second_fence, taken_over_at) = second.next().await;
        assert_eq!(what, "held");
        assert!(
            second_fence > first_fence,
            "{second_fence} after {first_fence}"
        );
        // Both times are the server's.
        let lived = taken_over_at - acquired_at;
        assert!(
            lived >= TTL.as_millis() as i64,
            "taken over after {lived} ms"
        );
        assert!(second.child.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn of_processes_that_race_for_a_key_one_wins() {
    let fixture = Fixture::new(Engine::MongoDb);
    let racers = (0..4).map(|_| process(&fixture, "race").output());
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

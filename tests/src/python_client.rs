//! The Python client of the protocol, `examples/protocol/client.py`, as a process. It knows nothing but `docs/protocol/`.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use leasehold::{
    Attempt, Key, Leases, Store,
    store::{LeaseId, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::sleep,
};

use super::{PATIENCE, project, protocol::a_waiter_was_killed};

const TTL: Duration = Duration::from_secs(600);
/// How often each client takes the key of [`both_take_turns`].
const ROUNDS: usize = 10;

/// A running client. It ends when this is dropped.
pub struct PythonClient {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl PythonClient {
    /// Starts the client, which needs pymongo.
    pub fn on_mongodb(uri: &str, database: &str, collection: &str) -> Self {
        let python = project().join("scripts/pymongo");
        Self::start(&python, &["mongodb", uri, database, collection])
    }

    /// Starts the client on a search engine.
    pub fn on_search(url: &str, alias: &str) -> Self {
        Self::start(Path::new("python3"), &["search", url, alias])
    }

    fn start(python: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(python)
            .arg(project().join("examples/protocol/client.py"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}: install Python 3.11", python.display()));
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        }
    }

    /// The answer to a command.
    pub async fn ask(&mut self, command: &str) -> Value {
        let line = format!("{command}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let answer = answer.expect("no answer").unwrap();
        let answer = answer.unwrap_or_else(|| panic!("the client ended, its errors are above"));
        serde_json::from_str(&answer).unwrap()
    }
}

/// Each of the two clients is refused what the other holds, and sees its fences.
pub async fn they_exclude_each_other(
    python: &mut PythonClient,
    store: &dyn Store,
    leases: &Leases,
) {
    let key = Key::new("report:42").unwrap();
    let [theirs, other] = [LeaseId::random(), LeaseId::random()];
    let granted = python
        .ask(&format!("acquire {key} {theirs} worker-3 600000"))
        .await;
    let fence = granted["fence"].as_i64().unwrap();
    // A repeated request is granted the same lease.
    let again = python
        .ask(&format!("acquire {key} {theirs} worker-3 600000"))
        .await;
    assert_eq!(
        (&again["live"], &again["fence"]),
        (&true.into(), &fence.into())
    );
    let Attempt::Held(held) = leases.try_acquire(&key, TTL).await.unwrap() else {
        panic!("granted twice");
    };
    assert_eq!(
        (held.owner(), held.holders()[0].fence.get()),
        ("worker-3", fence)
    );
    // What a lease of leasehold could do, none of another id can.
    let renewal = [RenewRequest::new(key.clone(), other, TTL)];
    let renewed = store.renew(&renewal).await.unwrap().remove(0).unwrap();
    assert!(matches!(renewed, RenewAnswer::TakenOver), "{renewed:?}");
    let release = ReleaseRequest::new(key.clone(), other);
    assert_eq!(
        store.release(&release).await.unwrap(),
        ReleaseAnswer::NotHeld
    );
    let renewed = python.ask(&format!("renew {key} {theirs} 900000")).await;
    assert_eq!(
        (&renewed["live"], &renewed["fence"]),
        (&true.into(), &fence.into())
    );
    let released = python.ask(&format!("release {key} {theirs}")).await;
    assert_eq!(released["released"], true);

    let lease = leases.acquire(&key, TTL).await.unwrap();
    assert!(lease.fence().get() > fence);
    let refused = python
        .ask(&format!("acquire {key} {other} worker-3 600000"))
        .await;
    assert_eq!(refused["live"], false);
    let renewed = python.ask(&format!("renew {key} {theirs} 600000")).await;
    assert_eq!(renewed["live"], false);
    let released = python.ask(&format!("release {key} {theirs}")).await;
    assert_eq!(released["released"], false);
    let seen = python.ask(&format!("inspect {key}")).await;
    // The document has the newest of the fences that the grant took.
    let newest = seen["fence"].as_i64().unwrap();
    assert!(
        (0..1_024).contains(&(newest - lease.fence().get())),
        "{newest}"
    );
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    let granted = python
        .ask(&format!("acquire {key} {other} worker-3 600000"))
        .await;
    assert!(granted["fence"].as_i64() > seen["fence"].as_i64());
    let missing = python
        .ask("renew missing 11111111-1111-4111-8111-111111111111 600000")
        .await;
    assert_eq!(missing["live"], false);

    // A waiter of leasehold that is gone keeps no free key from the client. Nor does the form of a key matter.
    let key = Key::new("limiter:awaited").unwrap();
    a_waiter_was_killed(store, &key).await;
    let granted = python
        .ask(&format!("acquire {key} {theirs} worker-3 600000"))
        .await;
    assert_eq!(granted["live"], true);
    let held = leases.try_acquire(&key, TTL).await.unwrap();
    assert!(matches!(held, Attempt::Held(_)), "{held:?}");
}

/// Both take one key again and again, one at a time, with rising fences.
pub async fn both_take_turns(python: &mut PythonClient, leases: &Leases) {
    let file = tempfile_of_this_test();
    let work = format!("work shared worker-3 600000 {ROUNDS} {}", file.display());
    let ours = async {
        // The other client has begun.
        while std::fs::read_to_string(&file).is_ok_and(|it| it.is_empty()) {
            sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..ROUNDS {
            let lease = leases.acquire("shared", TTL).await.unwrap();
            for line in ["begin", "end"] {
                append(&file, &format!("{line} {}\n", lease.fence().get()));
            }
            lease.release().await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
    };
    let (worked, ()) = tokio::join!(python.ask(&work), ours);
    assert_eq!(worked["rounds"], ROUNDS);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2 * 2 * ROUNDS, "{text}");
    let mut newest = 0;
    for pair in lines.chunks(2) {
        let fence = pair[0]
            .strip_prefix("begin ")
            .unwrap_or_else(|| panic!("{text}"));
        assert_eq!(pair[1], format!("end {fence}"), "{text}");
        let fence: i64 = fence.parse().unwrap();
        assert!(fence > newest, "{text}");
        newest = fence;
    }
}

/// An empty file that no other test uses.
fn tempfile_of_this_test() -> PathBuf {
    let file = std::env::temp_dir().join(format!("leasehold-{}", LeaseId::random()));
    append(&file, "");
    file
}

fn append(file: &Path, text: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.unwrap().write_all(text.as_bytes()).unwrap();
}

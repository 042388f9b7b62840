//! Tests of the command `leasehold`, used as from a shell, on real stores.

mod clock_ahead;
mod clusters;
mod doctor;
mod interactive;
mod kills;
mod late;
mod lead;
mod limit;
mod max_hold;
mod other_users;
mod pace;
mod places;
mod sessions;
mod signals;
mod terminal;
mod tickets;
mod ticks;
mod trouble;
mod waiters;
mod watch;

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use leasehold::store::LeaseId;
use leasehold_tests::{engine::Engine, sentence::LONGEST};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::pace::Late;

/// Longer than any step of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A store that no other test uses, by its address.
#[derive(Clone)]
struct Place(String);

/// The exit code and the output of a command that has ended.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

/// A command that runs. It is killed at the end of the test.
struct Going {
    child: Child,
    /// The lines that the command prints, until no process has its output open any more.
    out: Receiver<String>,
}

impl Place {
    fn file() -> Self {
        let path = scratch().join(format!("{}.db", LeaseId::random()));
        Self(format!("file:{}", path.display()))
    }

    fn on(engine: Engine) -> Self {
        let address = engine.address();
        let name = format!("locks-{}", LeaseId::random());
        match (engine, address.split_once("://")) {
            (
                Engine::MongoDb | Engine::MongoDbReplicaSet | Engine::MongoDbSharded,
                Some((_, rest)),
            ) => {
                // The address names a database of its own, before the options.
                let (host, options) = rest.split_once('?').unwrap_or((rest, ""));
                let host = host.trim_end_matches('/');
                // The driver's default timeout is too short for a busy machine.
                let timeout = format!("serverSelectionTimeoutMS={}", TIMEOUT.as_millis());
                let options = match options {
                    "" => timeout,
                    options => format!("{options}&{timeout}"),
                };
                Self(format!("mongodb://{host}/{name}?{options}"))
            }
            (Engine::OpenSearch | Engine::OpenSearchSecured, _) => {
                Self(format!("opensearch+{address}/{name}"))
            }
            _ => Self(format!("es+{address}/{name}")),
        }
    }

    /// The command with these arguments, on this store.
    fn command<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Command {
        let mut command = leasehold();
        command.env("LEASEHOLD_STORE", &self.0).args(words);
        command
    }

    /// Runs the command to its end.
    fn leasehold<const N: usize>(&self, words: [&str; N]) -> Ended {
        run(self.command(words))
    }

    /// Runs the command to its end, and returns the JSON that it prints. The command must succeed.
    fn json<const N: usize>(&self, words: [&str; N]) -> Value {
        let ended = self.leasehold(words);
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.all()))
    }

    /// Starts the command.
    fn start<const N: usize>(&self, words: [&str; N]) -> Going {
        Going::of(self.command(words))
    }

    /// Runs a shell script under a lease, and waits for its first line, which says that the script runs.
    fn hold<const N: usize>(&self, words: [&str; N], script: &str) -> Going {
        let script = format!("echo ready\n{script}");
        let words = ["run"].into_iter().chain(words);
        let mut going = Going::of(self.command(words.chain(["--", "sh", "-c", &script])));
        assert_eq!(going.line(), "ready");
        going
    }

    /// As [`hold`](Self::hold), with the key `job` and a ttl of this many seconds. The lease may be over before the
    /// script begins.
    fn hold_for<const N: usize>(
        &self,
        ttl: u64,
        words: [&str; N],
        script: &str,
    ) -> Result<Going, Late> {
        let (script, time) = (format!("echo ready\n{script}"), format!("{ttl}s"));
        let words = ["run", "job", "--ttl", &time].into_iter().chain(words);
        Going::ready(self.command(words.chain(["--", "sh", "-c", &script])), ttl)
    }
}

/// The command, without the parts of this process's environment that would change what it does. A test under `nohup`,
/// for example, would ignore some signals.
fn leasehold() -> Command {
    leasehold_at(Path::new(env!("CARGO_BIN_EXE_leasehold")))
}

/// The same, if this path leads to the program.
fn leasehold_at(program: &Path) -> Command {
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP,INT,QUIT")
        .arg(program)
        .env_remove("LEASEHOLD_STORE")
        .env_remove("LEASEHOLD_OWNER")
        .stdin(Stdio::null());
    command
}

/// The folder for the files of the tests.
fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn run(mut command: Command) -> Ended {
    let output = command.output().unwrap();
    Ended {
        code: output.status.code().expect("a signal ended it"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Repeats `check` until it returns a value.
fn until<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < end, "it does not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Ended {
    fn all(&self) -> String {
        format!("{} with {:?} and {:?}", self.code, self.out, self.err)
    }

    /// The standard output. Panics unless the command ended with this code.
    #[track_caller]
    fn with(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}", self.all());
        self.out.trim()
    }

    /// The standard error. Panics unless the command ended with this code. Why nothing ran, or did not run to its end,
    /// is said in lines that can be read.
    #[track_caller]
    fn saying(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}", self.all());
        let said = self.err.trim();
        if [65, 69, 70, 73, 75, 76, 77, 78].contains(&code) {
            for line in said
                .lines()
                .map(|line| line.trim_start_matches("leasehold: "))
            {
                assert!(line.chars().count() <= LONGEST, "{line}");
            }
        }
        said
    }
}

impl Going {
    /// Starts a command. Its standard input is a pipe that is closed when this value is dropped, or by `finish`.
    fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, out) = mpsc::channel();
        thread::spawn(move || {
            // This fails, and ends the thread, when the test does not read the lines any more.
            lines
                .map_while(Result::ok)
                .all(|line| tell.send(line).is_ok())
        });
        Self { child, out }
    }

    /// The next line that the command prints; empty if there are no more.
    fn line(&mut self) -> String {
        match self.out.recv_timeout(TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("it prints nothing, and does not end"),
        }
    }

    /// Starts a command that prints `ready`. If it ends before that, its lease has ended.
    fn ready(command: Command, ttl: u64) -> Result<Self, Late> {
        let start = Instant::now();
        let mut going = Self::of(command);
        match &*going.line() {
            "ready" => Ok(going),
            "" => {
                let what = format!("it ended with {} before it was ready", going.wait().0);
                let late = Late::new(what, Duration::from_secs(ttl) / 2);
                Err(late.in_a_step_of(start.elapsed()))
            }
            other => panic!("{other}"),
        }
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Closes the standard input, and waits until the command has ended. Returns its code and the rest of its output.
    fn finish(mut self) -> (i32, String) {
        drop(self.child.stdin.take());
        self.wait()
    }

    fn wait(&mut self) -> (i32, String) {
        let status = self.end();
        let mut rest = Vec::new();
        loop {
            match self.out.recv_timeout(TIMEOUT) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("what it has started is still there"),
            }
        }
        let code = status.code().expect("a signal ended it");
        (code, rest.join("\n").trim().to_owned())
    }

    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None if Instant::now() > end => panic!("it does not end"),
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        // This fails if the command has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

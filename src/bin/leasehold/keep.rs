//! `run`: has the lease, and tells the parent of the command until when it holds.
//!
//! That parent is another process, of [`guard`](super::guard): it ends the command in time although this
//! one was killed, is stopped, or hangs.

use std::{
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use leasehold::{Error, Lease, Leases};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixListener,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Child,
    time::interval,
};

use super::{
    args::{OnHeld, Run},
    exit::{Code, Failure},
    guard::{Told, Word, clock},
    signals::Signals,
    text,
};

/// The longest grace time that nobody asked for.
const GRACE: Duration = Duration::from_secs(10);

pub async fn run(run: Run, leases: &Leases) -> Result<Code, Failure> {
    let grace = run.grace.unwrap_or_else(|| GRACE.min(run.ttl / 3));
    // Of a healthy lease two thirds are left when it is renewed; the grace time has to fit in there.
    if grace > run.ttl / 2 {
        let text =
            "the grace time is at most half of the ttl, within which it has to end the command";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut signals = Signals::new()?;
    let lease = tokio::select! {
        lease = acquire(&run, leases) => lease,
        signal = signals.end() => return Ok(signal.into()),
    };
    let lease = match lease {
        Ok(lease) => lease,
        Err(error @ (Error::WaitTimedOut { .. } | Error::TooManyHolders { .. })) => {
            eprintln!("leasehold: {}", held(&error));
            return Ok(match run.on_held {
                OnHeld::Exit0 => Code::Done,
                OnHeld::Exit75 => Code::Held,
            });
        }
        Err(error) => return Err(error.into()),
    };
    let guarded = match Guarded::start(&run, &lease, grace).await {
        Ok(guarded) => guarded,
        Err(error) => {
            // There is nothing that it is needed for.
            let _ = lease.release().await;
            return Err(error.into());
        }
    };
    let (status, stopped) = guarded.attend(&lease, &mut signals).await?;
    let key = text::visible(lease.key().as_str()).into_owned();
    match lease.release().await {
        _ if stopped => Ok(Code::Lost),
        Err(Error::Lost { reason, .. }) => {
            eprintln!("leasehold: {key} was lost before the command had ended: {reason}");
            Ok(Code::Lost)
        }
        Err(error) => {
            eprintln!("leasehold: {key} could not be released, its ttl will: {error}");
            Ok(Code::of(status))
        }
        Ok(()) => Ok(Code::of(status)),
    }
}

async fn acquire(run: &Run, leases: &Leases) -> Result<Lease, Error> {
    let mut acquire = leases
        .acquire(&run.key, run.ttl)
        .keep_alive()
        .wait_for(run.wait);
    if run.shared {
        acquire = acquire.shared();
    }
    if let Some((permits, of)) = run.permits {
        acquire = acquire.permits(permits, of);
    }
    if let Some(time) = run.min_hold {
        acquire = acquire.min_hold(time);
    }
    if let Some(owner) = &run.owner {
        acquire = acquire.owner(&**owner);
    }
    if let Some(note) = &run.note {
        acquire = acquire.note(&**note);
    }
    acquire.await
}

fn held(error: &Error) -> String {
    match error {
        Error::WaitTimedOut { held, .. } => {
            let (key, owner) = (
                text::visible(held.key().as_str()),
                text::visible(held.owner()),
            );
            format!(
                "{key} is held by {owner}, for {} or longer",
                text::short(held.expires_in())
            )
        }
        error => error.to_string(),
    }
}

/// The command, and its parent.
struct Guarded {
    process: Child,
    words: OwnedWriteHalf,
    told: Lines<BufReader<OwnedReadHalf>>,
    /// The process group of the command, once it is known.
    group: Option<Pid>,
    /// Whether the command was ended for the lease.
    stopped: bool,
}

impl Guarded {
    async fn start(run: &Run, lease: &Lease, grace: Duration) -> io::Result<Self> {
        let folder = TempDir::with_prefix("leasehold-")?;
        let socket = folder.path().join("guard");
        let listener = UnixListener::bind(&socket)?;
        let mut command = Command::new(this_program()?);
        command
            .arg0("leasehold")
            .arg("guard")
            .arg("--socket")
            .arg(&socket)
            .args(["--grace", &format!("{}ms", grace.as_millis()), "--"])
            .args(&run.command)
            .env("LEASEHOLD_KEY", lease.key().as_str())
            .env("LEASEHOLD_FENCE", lease.fence().to_string())
            // What a terminal sends to this process is passed on, once.
            .process_group(0);
        if io::stdin().is_terminal() {
            // Out of the terminal's foreground group a read would stop the command for ever.
            command.stdin(Stdio::null());
        }
        let mut process = tokio::process::Command::from(command).spawn()?;
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            ended = process.wait() => {
                let text = format!("the parent of the command did not start: {}", ended?);
                return Err(io::Error::other(text));
            }
        };
        let (told, words) = stream.into_split();
        Ok(Self {
            process,
            words,
            told: BufReader::new(told).lines(),
            group: None,
            stopped: false,
        })
    }

    /// Until the command has ended: how, and whether it was for the lease.
    async fn attend(
        mut self,
        lease: &Lease,
        signals: &mut Signals,
    ) -> io::Result<(ExitStatus, bool)> {
        let mut deadline = None;
        let mut looks = interval((lease.ttl() / 20).max(Duration::from_millis(10)));
        let (mut is_lost, mut hears) = (false, true);
        let status = loop {
            tokio::select! {
                status = self.process.wait() => break status?,
                _ = looks.tick() => {
                    // Told once for each renewal: this process may have slept since, and not know it.
                    let current = lease.deadline();
                    if deadline.replace(current) != Some(current) {
                        let left = lease.remaining().saturating_sub(spare(lease.ttl()));
                        let until = clock() + millis(left);
                        self.say(Word::Until(until)).await;
                    }
                }
                reason = lease.lost(), if !is_lost => {
                    is_lost = true;
                    eprintln!("leasehold: the lease on {} is lost: {reason}", text::visible(lease.key().as_str()));
                    self.stopped = true;
                    self.say(Word::Stop).await;
                }
                signal = signals.next() => self.say(Word::Signal(signal)).await,
                line = self.told.next_line(), if hears => match line.ok().flatten() {
                    Some(line) => self.hear(&line),
                    None => hears = false,
                },
            }
        };
        while let Ok(Some(line)) = self.told.next_line().await {
            self.hear(&line);
        }
        // Nobody is left who would end the command.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
            eprintln!("leasehold: the parent of the command was killed, and so is the command");
        }
        Ok((status, self.stopped))
    }

    fn hear(&mut self, line: &str) {
        match Told::parse(line) {
            Some(Told::Group(group)) => self.group = Some(group),
            Some(Told::Stopped) => {
                self.stopped = true;
                eprintln!("leasehold: the lease was not renewed in time, and the command is ended");
            }
            Some(Told::Over) => self.group = None,
            None => {}
        }
    }

    /// Whoever does not hear it has ended, and that is heard of.
    async fn say(&mut self, word: Word) {
        let _ = self.words.write_all(format!("{word}\n").as_bytes()).await;
    }
}

/// How long before the end of the lease the command is to be dead: its parent may get the processor late.
fn spare(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

/// The program that runs, also after an upgrade has replaced its file.
fn this_program() -> io::Result<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok(PathBuf::from("/proc/self/exe")),
        false => std::env::current_exe(),
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

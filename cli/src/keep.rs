//! `run`: has the lease, and tells the parent of the command until when it holds.
//!
//! That parent is another process, of [`guard`](super::guard): it ends the command in time although this
//! one was killed, is stopped, or hangs.

use std::{
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use leasehold::{Error, Lease, Leases};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixListener,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Child,
    signal::unix::{SignalKind, signal},
    time::{Instant, interval, sleep, timeout},
};

use super::{
    args::{OnHeld, Run},
    clock::{self, Looks},
    exit::{Code, Failure},
    family,
    guard::{AFTER_KILL, Told, Word},
    out,
    signals::Signals,
    terms::Terms,
    text,
};

/// Longer than a renewal is waited for.
const LOOKS: Duration = Duration::from_secs(60);
/// How long the store has for the release.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(run: Run, leases: &Leases, margin: Duration) -> Result<Code, Failure> {
    let terms = Terms::new(run.ttl, run.grace, margin).map_err(Failure::Usage)?;
    let mut signals = Signals::new()?;
    // Who was started to ignore this signal would never be told how a child ended.
    let _children = signal(SignalKind::child())?;
    let mut looks = Looks::new(LOOKS);
    let lease = {
        let mut lease = Box::pin(acquire(&run, leases));
        let mut ticks = interval(terms.look());
        loop {
            tokio::select! {
                lease = &mut lease => break lease,
                signal = signals.end() => return Ok(signal.into()),
                _ = ticks.tick() => looks.look(),
            }
        }
    };
    let lease = match lease {
        Ok(lease) => lease,
        Err(error @ (Error::WaitTimedOut { .. } | Error::TooManyHolders { .. })) => {
            out::say(&held(&error));
            return Ok(match run.on_held {
                OnHeld::Exit0 => Code::Done,
                OnHeld::Exit75 => Code::Held,
            });
        }
        Err(error) => return Err(error.into()),
    };
    // The orphans of a parent that was killed are to be found.
    family::adopt();
    let key = lease.key().clone();
    let ended = match Guarded::start(&run, &lease, &terms, looks).await {
        Ok(guarded) => Ok(guarded.attend(&lease, &mut signals).await),
        Err(error) => Err(error),
    };
    let released = tokio::select! {
        released = timeout(PATIENCE, lease.release()) => released.unwrap_or(Err(Error::TimedOut {
            operation: "release",
            limit: PATIENCE,
        })),
        _ = signals.end() => Ok(()),
    };
    let (code, stopped) = ended?;
    match released {
        _ if stopped => Ok(Code::Lost),
        Err(Error::Lost { reason, .. }) => {
            out::say(&format!(
                "{key} was lost before the command had ended: {reason}"
            ));
            Ok(Code::Lost)
        }
        Err(error) => {
            out::say(&format!(
                "{key} could not be released, its ttl will: {error}"
            ));
            Ok(code)
        }
        Ok(()) => Ok(code),
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
            let (key, owner) = (held.key(), held.owner());
            let left = text::short(held.expires_in());
            format!("{key} is held by {owner}, for {left} or longer")
        }
        error => error.to_string(),
    }
}

/// The command, and its parent.
struct Guarded {
    process: Child,
    words: OwnedWriteHalf,
    told: Lines<BufReader<OwnedReadHalf>>,
    terms: Terms,
    looks: Looks,
    /// Until when the lease lasts, on [`clock`], and the deadline that this is.
    until: i64,
    deadline: Option<Instant>,
    /// When the command is to be dead, on [`clock`].
    dead_by: i64,
    /// Whether the command was ended for the lease.
    stopped: bool,
    /// Whether all of it has ended.
    over: bool,
}

impl Guarded {
    async fn start(run: &Run, lease: &Lease, terms: &Terms, looks: Looks) -> io::Result<Self> {
        let folder = TempDir::with_prefix("leasehold-").map_err(no_socket)?;
        let socket = folder.path().join("guard");
        let listener = UnixListener::bind(&socket).map_err(no_socket)?;
        let mut command = Command::new(this_program()?);
        command
            .arg0("leasehold")
            .arg("guard")
            .arg("--socket")
            .arg(&socket)
            .args(["--grace", &format!("{}ms", terms.grace.as_millis()), "--"])
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
            terms: *terms,
            looks,
            until: i64::MIN,
            deadline: None,
            dead_by: i64::MAX,
            stopped: false,
            over: false,
        })
    }

    /// Until the command has ended: how, and whether it was for the lease.
    async fn attend(mut self, lease: &Lease, signals: &mut Signals) -> (Code, bool) {
        self.lasts(lease.deadline());
        let mut ticks = interval(self.terms.look());
        let (mut is_lost, mut hears) = (false, true);
        let code = loop {
            tokio::select! {
                ended = self.process.wait() => break ended.map_or(Code::Failed, Code::of),
                _ = ticks.tick() => {
                    self.looks.look();
                    if !is_lost {
                        // Also if it is the same: a word may be lost on its way.
                        self.lasts(lease.deadline());
                    }
                    if clock::now() > self.dead_by {
                        // Its parent is stopped, or hangs.
                        self.stopped = true;
                        family::signal(None, Signal::KILL);
                    }
                }
                reason = lease.lost(), if !is_lost => {
                    is_lost = true;
                    self.stopped = true;
                    self.say(Word::Stop);
                    let grace = millis(self.terms.grace) + AFTER_KILL;
                    self.dead_by = self.dead_by.min(clock::now().saturating_add(grace));
                    out::say(&format!("the lease on {} is lost: {reason}", lease.key()));
                }
                signal = signals.next() => self.say(Word::Signal(signal)),
                line = self.told.next_line(), if hears => match line.ok().flatten() {
                    Some(line) => self.hear(&line),
                    None => hears = false,
                },
            }
        };
        while let Ok(Some(line)) = self.told.next_line().await {
            self.hear(&line);
        }
        if !self.over {
            out::say("the parent of the command was killed, and so is the command");
            bury(lease).await;
        }
        (code, self.stopped)
    }

    /// Tells until when the lease lasts now.
    fn lasts(&mut self, deadline: Instant) {
        // Reckoned once: later this process may have slept since, and not know it.
        if self.deadline.replace(deadline) != Some(deadline) {
            let asked = deadline.checked_sub(self.terms.lasts());
            self.until = self.looks.until(asked.unwrap_or(deadline), deadline);
            self.dead_by = self.until.saturating_add(AFTER_KILL);
        }
        let until = self.until.saturating_sub(millis(self.terms.spare));
        self.say(Word::Until(until));
    }

    fn hear(&mut self, line: &str) {
        match Told::parse(line) {
            Some(Told::Stopped) => {
                self.stopped = true;
                out::say("the lease was not renewed in time, and the command is ended");
            }
            Some(Told::Over) => self.over = true,
            None => {}
        }
    }

    /// Whoever does not hear it has ended, or is stopped, and that is seen otherwise.
    fn say(&self, word: Word) {
        let _ = self.words.try_write(format!("{word}\n").as_bytes());
    }
}

/// Ends what a parent has left behind that did not come to its own end.
async fn bury(lease: &Lease) {
    let start = Instant::now();
    let enough = Duration::from_millis(AFTER_KILL.unsigned_abs());
    loop {
        // There is no lease any more for which to wait.
        if family::is_gone(None) || start.elapsed() > enough && !lease.is_live() {
            return;
        }
        family::signal(None, Signal::KILL);
        sleep(Duration::from_millis(10)).await;
    }
}

/// The program that runs, also after an upgrade has replaced its file.
fn this_program() -> io::Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() {
        Ok(link)
    } else {
        std::env::current_exe()
    }
}

fn no_socket(error: io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    let folder = folder.display();
    io::Error::other(format!(
        "there can be no socket in {folder} ({error}): set TMPDIR to a folder with a short name, in which this user may write"
    ))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

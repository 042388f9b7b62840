//! `run`: holds a lease while a command runs.
//!
//! The command is the child of another process, the [`supervisor`](super::supervisor). This process sends the
//! supervisor the time until which the lease lasts. So the supervisor can end the command in time, even if this process
//! is killed, is stopped, or hangs.

use std::{
    ffi::OsString, fmt::Display, io, os::unix::process::CommandExt, path::PathBuf,
    process::Command, time::Duration,
};

use futures::FutureExt;
use leasehold::{Error, Key, Lease, Leases, jobs::Tick};
use rustix::process::{Signal, getpgrp};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Child,
    signal::unix::{SignalKind, signal},
    time::{Instant, interval, sleep, timeout},
};

use super::{
    acquire,
    args::Run,
    channel,
    clock::{self, ClockSamples},
    exit::{Code, Failure},
    job_control,
    messages::{Instruction, Report},
    out, process_tree,
    signals::Signals,
    supervisor::AFTER_KILL,
    terminal::Terminal,
    terms::Terms,
    text, waiting,
};

/// How long the release of the lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn run(run: Run, leases: &Leases, margin: Duration) -> Result<Code, Failure> {
    let terms = Terms::new(run.ttl, run.grace, margin).map_err(Failure::Usage)?;
    let mut signals = Signals::new()?;
    // If a process is started with SIGCHLD ignored, the kernel drops the status of each child that ends.
    let _children = signal(SignalKind::child())?;
    let terminal = Terminal::of(getpgrp());
    let supervisor = ReadySupervisor::new(&run.command, &terms, terminal)?;
    let mut samples = ClockSamples::new();
    let lease = {
        let mut lease = Box::pin(acquire::acquire(&run, leases));
        let mut telling = Box::pin(waiting::tell(&run, leases));
        let mut ticks = interval(terms.check_interval());
        loop {
            tokio::select! {
                lease = &mut lease => break lease,
                signal = signals.end() => return Ok(signal.into()),
                _ = ticks.tick() => samples.sample(),
                never = &mut telling => match never {},
            }
        }
    };
    let lease = match lease {
        Ok(Ok(lease)) => lease,
        Ok(Err(code)) => return Ok(code),
        Err(error @ (Error::WaitTimedOut { .. } | Error::TooManyHolders { .. })) => {
            run.say(&acquire::held(&error));
            return Ok(run.on_held.into());
        }
        Err(error) => return Err(error.into()),
    };
    // If the supervisor is killed, its children become children of this process, which can then end them.
    process_tree::become_subreaper();
    let (key, tick) = (lease.lease().key().clone(), lease.tick());
    let started = supervisor.start(lease.lease(), tick, samples).await;
    let ended = match started {
        Ok(supervisor) => Ok(supervisor.wait(lease.lease(), &mut signals).await),
        Err(error) => Err(error),
    };
    // A command that was asked to end may not have finished, even if it ended with 0.
    let is_done = ended.as_ref().is_ok_and(CommandEnd::is_finished);
    let released = tokio::select! {
        released = end(lease.end(is_done)) => released,
        signal = signals.end() => match tick {
            Some(tick) if is_done => {
                out::say(&not_known(&key, tick, "a signal came before the answer of the store"));
                return Ok(signal.into());
            }
            _ => Ok(()),
        },
    };
    let ended = ended?;
    let (code, stopped) = (ended.code_for(&key, tick), ended.stopped);
    match released {
        _ if stopped => Ok(Code::Lost),
        Err(Error::Lost { reason, .. }) => {
            let key = text::name(key.as_str());
            out::say(&format!(
                "{key} was lost before the command had ended: {reason}"
            ));
            Ok(Code::Lost)
        }
        Err(error) => {
            let Some(tick) = tick.filter(|_| is_done) else {
                let key = text::name(key.as_str());
                out::say(&format!(
                    "{key} could not be released, its ttl will: {error}"
                ));
                return Ok(code);
            };
            out::say(&not_known(&key, tick, error));
            Ok(Code::Unavailable)
        }
        Ok(()) => Ok(code),
    }
}

fn not_known(key: &Key, tick: Tick, why: impl Display) -> String {
    let key = text::name(key.as_str());
    format!(
        "the command has ended with 0, and it is not known whether {tick} of {key} is done: {why}"
    )
}

/// Releases a lease. Gives up after [`RELEASE_TIMEOUT`].
pub async fn release(lease: Lease) -> Result<(), Error> {
    end(lease.release()).await
}

async fn end(release: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let released = timeout(RELEASE_TIMEOUT, release).await;
    released.unwrap_or(Err(Error::TimedOut {
        store: "the store".to_owned(),
        operation: "release",
        limit: RELEASE_TIMEOUT,
    }))
}

/// How a command has ended.
pub struct CommandEnd {
    pub code: Code,
    /// Whether the command was ended because the lease ends or is lost.
    pub stopped: bool,
    /// The first signal that came and asks a program to end.
    pub asked_to_end: Option<Signal>,
    /// Whether a process of the command goes on, because it cannot be ended.
    pub has_survivors: bool,
}

impl CommandEnd {
    /// Whether the command has finished its work.
    fn is_finished(&self) -> bool {
        self.code == Code::Of(0) && !self.stopped && self.asked_to_end.is_none()
    }

    /// The exit code for the end of a command that ran for `tick`. If a signal asked the command to end, 0 does not
    /// mean that the tick is done. So that the caller can see this, the code is then that of the signal.
    fn code_for(&self, key: &Key, tick: Option<Tick>) -> Code {
        match (tick, self.asked_to_end) {
            (Some(tick), Some(signal)) if self.code == Code::Of(0) && !self.stopped => {
                let (key, number) = (text::name(key.as_str()), signal.as_raw());
                out::say(&format!(
                    "{key}: {tick} is not done, because signal {number} asked the command to end"
                ));
                signal.into()
            }
            _ => self.code,
        }
    }
}

/// A supervisor that only needs a lease. What can fail without one fails when this is made, so that nobody takes a key
/// with which nothing can be done.
pub struct ReadySupervisor {
    command: Command,
    stream: UnixStream,
    terms: Terms,
    terminal: Option<Terminal>,
}

/// The supervisor process, with what this process knows of it.
pub struct SupervisorProcess {
    process: Child,
    instructions: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    terms: Terms,
    terminal: Option<Terminal>,
    samples: ClockSamples,
    /// Until when the lease lasts, on [`clock`]. Computed from `deadline`.
    until: i64,
    deadline: Option<Instant>,
    /// When all processes of the command must be dead, on [`clock`].
    dead_by: i64,
    /// Whether the command was ended because the lease ends or is lost.
    stopped: bool,
    /// The first signal that came and asks a program to end.
    asked_to_end: Option<Signal>,
    /// Whether the supervisor has reported its end: all processes of the command have ended, or cannot be ended.
    is_over: bool,
    /// Whether a process of the command cannot be ended.
    has_survivors: bool,
}

impl ReadySupervisor {
    /// A supervisor for the command that consists of these words, and that may have this terminal.
    pub fn new(words: &[OsString], terms: &Terms, terminal: Option<Terminal>) -> io::Result<Self> {
        let (stream, other_end) = channel::pair(terminal.is_some())?;
        let mut command = Command::new(this_program()?);
        command
            .arg0("leasehold")
            .arg("supervise")
            .args(["--grace", &format!("{}ms", terms.grace.as_millis())])
            .args(terminal.iter().flat_map(Terminal::arguments))
            .arg("--")
            .args(words)
            .stdin(other_end)
            // The supervisor is in another group, so it gets no signal from the terminal. The command then gets each
            // signal once, from this process.
            .process_group(0);
        Ok(Self {
            command,
            stream,
            terms: *terms,
            terminal,
        })
    }

    /// Starts the supervisor, which starts the command.
    pub async fn start(
        self,
        lease: &Lease,
        tick: Option<Tick>,
        samples: ClockSamples,
    ) -> io::Result<SupervisorProcess> {
        let mut command = self.command;
        command
            .env("LEASEHOLD_KEY", lease.key().as_str())
            .env("LEASEHOLD_FENCE", lease.fence().to_string());
        match tick {
            Some(tick) => command.env("LEASEHOLD_TICK", tick.to_string()),
            // The tick of another `run`, of which this is the command, is not that of this key.
            None => command.env_remove("LEASEHOLD_TICK"),
        };
        // This closes the other end in this process, so that the end of the supervisor can be seen.
        let process = tokio::process::Command::from(command).spawn()?;
        // Without this the first instruction might not be sent.
        self.stream.writable().await?;
        let (reports, instructions) = self.stream.into_split();
        Ok(SupervisorProcess {
            process,
            instructions,
            reports: BufReader::new(reports).lines(),
            terms: self.terms,
            terminal: self.terminal,
            samples,
            until: i64::MIN,
            deadline: None,
            dead_by: i64::MAX,
            stopped: false,
            asked_to_end: None,
            is_over: false,
            has_survivors: false,
        })
    }
}

impl SupervisorProcess {
    /// Waits until the command has ended.
    pub async fn wait(mut self, lease: &Lease, signals: &mut Signals) -> CommandEnd {
        self.send_deadline(lease.deadline());
        let mut ticks = interval(self.terms.check_interval());
        let (mut is_lost, mut is_connected) = (false, true);
        let code = loop {
            tokio::select! {
                // If a signal came before the command ended, it is seen before that end is.
                biased;
                signal = signals.next() => {
                    self.remember(signal);
                    self.send(Instruction::Signal(signal));
                }
                ended = self.process.wait() => break ended.map_or(Code::Failed, Code::of),
                _ = ticks.tick() => {
                    self.samples.sample();
                    if !is_lost {
                        // The deadline is sent even if it is the same, because the last message may have been lost.
                        self.send_deadline(lease.deadline());
                    }
                    if clock::now() > self.dead_by {
                        // The supervisor has not ended the command in time: it is stopped, or hangs.
                        self.stopped = true;
                        process_tree::signal(None, Signal::KILL);
                    }
                }
                reason = lease.lost(), if !is_lost => {
                    is_lost = true;
                    self.stopped = true;
                    self.send(Instruction::Stop);
                    let grace = millis(self.terms.grace) + AFTER_KILL;
                    self.dead_by = self.dead_by.min(clock::now().saturating_add(grace));
                    let key = text::name(lease.key().as_str());
                    out::say(&format!("the lease on {key} is lost: {reason}"));
                }
                line = self.reports.next_line(), if is_connected => match line.ok().flatten() {
                    Some(line) => match Report::parse(&line) {
                        Some(Report::StopJob(signal)) => {
                            // Nothing renews the lease meanwhile, so the supervisor ends the command in time.
                            job_control::stop_job(signal);
                            self.send(Instruction::GoOn);
                        }
                        report => self.take_report(report, lease),
                    },
                    None => is_connected = false,
                },
            }
        };
        while let Ok(Some(line)) = self.reports.next_line().await {
            self.take_report(Report::parse(&line), lease);
        }
        while let Some(signal) = signals.next().now_or_never() {
            self.remember(signal);
        }
        if !self.is_over {
            out::say("the parent of the command ended before it, and the command is killed");
            self.has_survivors |= kill_remaining(lease).await;
            if let Some(mut terminal) = self.terminal {
                terminal.take_back(None);
            }
        }
        CommandEnd {
            code,
            stopped: self.stopped,
            asked_to_end: self.asked_to_end,
            has_survivors: self.has_survivors,
        }
    }

    /// Remembers the first signal that asks a program to end.
    fn remember(&mut self, signal: Signal) {
        if Signals::ends(signal) {
            self.asked_to_end.get_or_insert(signal);
        }
    }

    /// Sends the supervisor the time until which the lease lasts.
    fn send_deadline(&mut self, deadline: Instant) {
        // The time is computed once for each deadline. This process may be suspended between two calls, and a later
        // computation from the same deadline would not include the suspension.
        if self.deadline.replace(deadline) != Some(deadline) {
            let asked = deadline.checked_sub(self.terms.lifetime());
            self.until = self.samples.until(asked.unwrap_or(deadline), deadline);
            self.dead_by = self.until.saturating_add(AFTER_KILL);
        }
        let until = self.until.saturating_sub(millis(self.terms.spare));
        self.send(Instruction::Until(until));
    }

    fn take_report(&mut self, report: Option<Report>, lease: &Lease) {
        match report {
            Some(Report::Stopped) => {
                self.stopped = true;
                out::say(if lease.max_hold_deadline() == Some(lease.deadline()) {
                    "the key was held for its --max-hold, and the command is ended"
                } else {
                    "the lease was not renewed in time, and the command is ended"
                });
            }
            Some(Report::Over) => self.is_over = true,
            Some(Report::LeftBehind) => (self.is_over, self.has_survivors) = (true, true),
            // A command that has ended stops no job.
            Some(Report::StopJob(_)) | None => {}
        }
    }

    /// Sends an instruction to the supervisor. A failure is ignored: the supervisor has then ended or is stopped, and
    /// [`wait`](Self::wait) notices that.
    fn send(&self, instruction: Instruction) {
        let _ = self
            .instructions
            .try_write(format!("{instruction}\n").as_bytes());
    }
}

/// Ends the processes that a killed supervisor has left behind. Returns whether some of them cannot be ended.
async fn kill_remaining(lease: &Lease) -> bool {
    let start = Instant::now();
    let enough = Duration::from_millis(AFTER_KILL.unsigned_abs());
    loop {
        // Once the lease is over, waiting for processes that cannot be ended protects nothing.
        if process_tree::reap_all(None) {
            return false;
        }
        if start.elapsed() > enough && !lease.is_live() {
            return true;
        }
        process_tree::signal(None, Signal::KILL);
        sleep(Duration::from_millis(10)).await;
    }
}

/// The path of the program of this process. On Linux it leads to the same program even if an upgrade has replaced the
/// file.
fn this_program() -> io::Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() {
        Ok(link)
    } else {
        std::env::current_exe()
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

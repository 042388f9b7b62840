//! The supervisor: the parent process of a command, which starts it, and ends it before its lease ends.
//!
//! The process that holds the lease, [`run`](super::run), sends the supervisor the time until which the lease lasts.
//! The supervisor ends the command before that time, even if the other process is dead or stopped. It sends SIGTERM to
//! all processes that the command has started, and SIGKILL when the grace time or the lease is over.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    process::Child,
    signal::unix::{self, SignalKind, signal},
    time::interval,
};

use super::{
    args::Supervise,
    channel, clock,
    exit::{Code, Failure},
    job_control::JobControl,
    messages::{Instruction, Report},
    out, process_tree,
    signals::Signals,
    terminal::Terminal,
};

/// How often the supervisor reads the clock. A timer would not notice that the machine was suspended.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the kernel may take to end processes after SIGKILL, in milliseconds.
pub const AFTER_KILL: i64 = 1_000;

/// When the command has to end; times on [`clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadlines {
    grace: i64,
    /// Until when the lease lasts.
    until: i64,
    /// When the command was sent SIGTERM.
    stopped: Option<i64>,
    /// When the command was first sent SIGKILL.
    killed: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// There is nothing to do yet.
    Wait,
    /// Send SIGTERM to the command.
    Terminate,
    /// Send SIGKILL to the command. This is repeated, because its processes may be starting others.
    Kill,
}

impl Deadlines {
    fn action(&self, now: i64) -> Action {
        match self.stopped {
            None if now >= self.until.saturating_sub(self.grace) => Action::Terminate,
            None => Action::Wait,
            Some(at) if now >= at.saturating_add(self.grace).min(self.until.max(at)) => {
                Action::Kill
            }
            Some(_) => Action::Wait,
        }
    }

    /// Whether the processes still live some time after SIGKILL, and the lease has ended, so that waiting for them
    /// gains nothing.
    fn has_to_give_up(&self, now: i64) -> bool {
        let killed = |at: i64| now >= at.saturating_add(AFTER_KILL);
        self.killed.is_some_and(killed) && now >= self.until
    }
}

pub async fn supervise(args: Supervise) -> Result<Code, Failure> {
    let signals = Signals::new()?;
    // This comes before the first child starts. If a process is started with SIGCHLD ignored, the kernel drops the
    // status of each child that ends.
    let children = signal(SignalKind::child())?;
    let (stream, input) = channel::inherited()?;
    let (instructions, reports) = stream.into_split();
    let mut instructions = BufReader::new(instructions).lines();
    let until = loop {
        match instructions
            .next_line()
            .await?
            .as_deref()
            .and_then(Instruction::parse)
        {
            Some(Instruction::Until(until)) => break until,
            Some(Instruction::Signal(signal)) if Signals::ends(signal) => {
                send(&reports, Report::Over);
                return Ok(signal.into());
            }
            Some(Instruction::Signal(_)) => {}
            // The lease is lost, or the process with the lease is dead.
            Some(Instruction::Stop | Instruction::GoOn) | None => return Ok(too_late(&reports)),
        }
    };
    let deadlines = Deadlines {
        grace: i64::try_from(args.grace.as_millis()).unwrap_or(i64::MAX),
        until,
        stopped: None,
        killed: None,
    };
    if deadlines.action(clock::now()) != Action::Wait {
        return Ok(too_late(&reports));
    }
    process_tree::become_subreaper();
    match start(&args, input) {
        Ok(child) => {
            Supervisor::of(child, &args, deadlines, reports)?
                .run(instructions, signals, children)
                .await
        }
        Err(error) => {
            let name = args.command.first().map(OsString::as_os_str);
            let code = Code::cannot_run(name.unwrap_or_default(), &error);
            send(&reports, Report::Over);
            Ok(code)
        }
    }
}

/// Reports that the command was not started, because the lease ends too soon.
fn too_late(reports: &OwnedWriteHalf) -> Code {
    send(reports, Report::Stopped);
    send(reports, Report::Over);
    Code::Lost
}

/// Starts the command in a process group of its own, so that signals can be forwarded to all of its processes.
fn start(args: &Supervise, input: OwnedFd) -> io::Result<Child> {
    let mut arguments = args.command.iter();
    let program = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).stdin(input);
    tokio::process::Command::from(command).spawn()
}

struct Supervisor {
    child: Child,
    group: Pid,
    /// Whether the command has ended and its exit status was read, so that its number is free again.
    is_reaped: bool,
    /// Whether a signal that asks a program to end was forwarded.
    is_asked_to_end: bool,
    /// If the command may have a terminal.
    job_control: Option<JobControl>,
    deadlines: Deadlines,
    reports: OwnedWriteHalf,
}

impl Supervisor {
    fn of(
        child: Child,
        args: &Supervise,
        deadlines: Deadlines,
        reports: OwnedWriteHalf,
    ) -> io::Result<Self> {
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let group = group.ok_or_else(|| io::Error::other("the command has no process id"))?;
        let terminal = args.job.and_then(Pid::from_raw).and_then(Terminal::of);
        Ok(Self {
            group,
            child,
            is_reaped: false,
            is_asked_to_end: false,
            job_control: terminal.map(|it| JobControl::new(it, group, args.foreground)),
            deadlines,
            reports,
        })
    }

    /// Runs until the command and all processes that it has started have ended.
    async fn run(
        mut self,
        mut instructions: Lines<BufReader<OwnedReadHalf>>,
        mut signals: Signals,
        mut children: unix::Signal,
    ) -> Result<Code, Failure> {
        let (mut code, mut is_connected, mut has_warned) = (None, true, false);
        let mut ended_by = None;
        let mut ticks = interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                ended = self.child.wait(), if code.is_none() => {
                    // If the exit status of the command cannot be read, the command has ended nevertheless.
                    ended_by = ended.as_ref().ok().and_then(ExitStatus::signal);
                    code = Some(ended.map_or(Code::Failed, Code::of));
                    self.is_reaped = true;
                    // Processes that the command leaves behind would go on without a lease.
                    self.terminate();
                }
                _ = children.recv() => if code.is_none() {
                    process_tree::reap_except(self.group);
                },
                _ = ticks.tick() => {}
                // A signal may come to all processes of a systemd unit, for example. The process with the lease then
                // gets it too, and sends it here. So while that process lives, the signal is forwarded only once.
                signal = signals.next() => if !is_connected {
                    self.forward(signal);
                },
                line = instructions.next_line(), if is_connected => match line.ok().flatten() {
                    Some(line) => self.carry_out(&line),
                    None => {
                        // The process with the lease is dead, so nobody renews the lease any more.
                        is_connected = false;
                        self.terminate();
                    }
                },
            }
            let now = clock::now();
            match self.deadlines.action(now) {
                Action::Wait => {}
                Action::Terminate => {
                    send(&self.reports, Report::Stopped);
                    self.terminate();
                }
                Action::Kill => {
                    self.deadlines.killed.get_or_insert(now);
                    process_tree::signal(self.own_group(), Signal::KILL);
                }
            }
            let Some(code) = code else {
                self.look();
                continue;
            };
            let killed = |at: i64| now >= at.saturating_add(AFTER_KILL);
            if process_tree::reap_all(Some(self.group)) {
                self.end_job_control(ended_by);
                send(&self.reports, Report::Over);
                return Ok(code);
            }
            if self.deadlines.has_to_give_up(now) {
                self.end_job_control(ended_by);
                out::say(
                    "what the command has started cannot be ended, and goes on without a lease",
                );
                send(&self.reports, Report::LeftBehind);
                return Ok(Code::Lost);
            }
            if !has_warned && self.deadlines.killed.is_some_and(killed) {
                has_warned = true;
                out::say(
                    "what the command has started cannot be ended: the lease is kept until it has",
                );
            }
        }
    }

    fn carry_out(&mut self, line: &str) {
        match Instruction::parse(line) {
            Some(Instruction::Until(until)) => {
                self.deadlines.until = self.deadlines.until.max(until)
            }
            Some(Instruction::Signal(signal)) => self.forward(signal),
            Some(Instruction::Stop) => self.terminate(),
            Some(Instruction::GoOn) => {
                if let Some(job_control) = &mut self.job_control {
                    job_control.go_on();
                }
            }
            None => {}
        }
    }

    /// Looks whether the command was stopped. One that has to end is continued anyway.
    fn look(&mut self) {
        if self.deadlines.stopped.is_none()
            && let Some(job_control) = &mut self.job_control
            && let Some(signal) = job_control.look()
        {
            send(&self.reports, Report::StopJob(signal));
        }
    }

    /// Takes the terminal back from a command that has ended, by this signal if it is one.
    fn end_job_control(&mut self, ended_by: Option<i32>) {
        let key = ended_by.and_then(Signal::from_named_raw).filter(|signal| {
            matches!(*signal, Signal::INT | Signal::QUIT) && !self.is_asked_to_end
        });
        if let Some(job_control) = &mut self.job_control {
            job_control.end(key);
        }
    }

    fn forward(&mut self, signal: Signal) {
        self.is_asked_to_end |= Signals::ends(signal);
        if let Some(group) = self.own_group() {
            let _ = kill_process_group(group, signal);
            if Signals::ends(signal) {
                // A process that is stopped, because it reads from the terminal for example, handles no other signal.
                let _ = kill_process_group(group, Signal::CONT);
            }
        }
    }

    /// The group of the command, unless another command may have it by now.
    fn own_group(&self) -> Option<Pid> {
        (!self.is_reaped || process_tree::has_group(self.group)).then_some(self.group)
    }

    /// Sends SIGTERM to all processes of the command, once. SIGCONT lets stopped processes handle it.
    fn terminate(&mut self) {
        if self.deadlines.stopped.is_none() {
            self.deadlines.stopped = Some(clock::now());
            let group = self.own_group();
            process_tree::signal(group, Signal::TERM);
            process_tree::signal(group, Signal::CONT);
        }
    }
}

/// Sends a report. A failure is ignored: the process with the lease is then dead or stopped.
fn send(reports: &OwnedWriteHalf, report: Report) {
    let _ = reports.try_write(format!("{report}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        grace: 10,
        until: 100,
        stopped: None,
        killed: None,
    };

    #[test]
    fn the_command_is_told_a_grace_time_before_the_lease_ends_and_killed_with_it() {
        assert_eq!(DEADLINES.action(89), Action::Wait);
        assert_eq!(DEADLINES.action(90), Action::Terminate);
        let terminated = Deadlines {
            stopped: Some(90),
            ..DEADLINES
        };
        assert_eq!(terminated.action(99), Action::Wait);
        assert_eq!(terminated.action(100), Action::Kill);
        assert_eq!(terminated.action(1_000), Action::Kill);
    }

    #[test]
    fn a_command_that_has_to_end_has_its_grace_time_within_the_lease() {
        let stopped = |at| Deadlines {
            stopped: Some(at),
            ..DEADLINES
        };
        // SIGTERM long before the end of the lease.
        assert_eq!(stopped(50).action(59), Action::Wait);
        assert_eq!(stopped(50).action(60), Action::Kill);
        // SIGTERM shortly before it.
        assert_eq!(stopped(95).action(99), Action::Wait);
        assert_eq!(stopped(95).action(100), Action::Kill);
        // SIGTERM after it.
        assert_eq!(stopped(105).action(105), Action::Kill);
    }

    #[test]
    fn what_cannot_be_killed_is_waited_for_while_there_is_a_lease() {
        let killed = |until| Deadlines {
            until,
            stopped: Some(50),
            killed: Some(60),
            ..DEADLINES
        };
        assert!(!killed(100).has_to_give_up(61));
        assert!(!killed(5_000).has_to_give_up(60 + AFTER_KILL));
        assert!(killed(100).has_to_give_up(60 + AFTER_KILL));
    }
}

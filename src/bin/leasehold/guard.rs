//! The parent of a command: starts it, and ends it in time.
//!
//! It hears from the process that has the lease until when that lasts. It ends the command before, whatever
//! became of that process: SIGTERM to the whole process group, and SIGKILL when the grace time or the lease
//! is over.

use std::{fmt, io, os::unix::process::CommandExt, process::Command, time::Duration};

use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid},
    time::{ClockId, clock_gettime},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixStream, unix::OwnedWriteHalf},
    time::interval,
};

use super::{
    args::Guard,
    exit::{Code, Failure},
    signals::Signals,
};

/// How often it looks at the clock: a timer would not notice that the machine was suspended.
const LOOK: Duration = Duration::from_millis(50);

/// How long the kernel takes to end what was killed, in milliseconds.
const AFTER_KILL: i64 = 1_000;

/// What the process that has the lease says, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The lease lasts until then, on [`clock`].
    Until(i64),
    /// This is for the command.
    Signal(Signal),
    /// The lease is lost.
    Stop,
}

/// What the parent of the command tells, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The command is started, in this process group.
    Group(Pid),
    /// The lease ends, so the command has to.
    Stopped,
    /// The command has ended, and all of its group.
    Over,
}

impl Word {
    fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("until", at)) => at.parse().ok().map(Self::Until),
            Some(("signal", number)) => {
                let number = number.parse().ok()?;
                Signal::from_named_raw(number).map(Self::Signal)
            }
            _ => (line == "stop").then_some(Self::Stop),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(at) => write!(f, "until {at}"),
            Self::Signal(signal) => write!(f, "signal {}", signal.as_raw()),
            Self::Stop => f.write_str("stop"),
        }
    }
}

impl Told {
    pub fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("group", group)) => Pid::from_raw(group.parse().ok()?).map(Self::Group),
            _ if line == "stopped" => Some(Self::Stopped),
            _ => (line == "over").then_some(Self::Over),
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(group) => write!(f, "group {}", group.as_raw_nonzero()),
            Self::Stopped => f.write_str("stopped"),
            Self::Over => f.write_str("over"),
        }
    }
}

/// The milliseconds since the boot, those in suspension too where that is counted. The same for all
/// processes of the host.
pub fn clock() -> i64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// When the command has to end; times on [`clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    grace: i64,
    /// The lease lasts until then.
    until: i64,
    /// It was told to end then.
    stopped: Option<i64>,
    /// It was killed then.
    killed: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing is to be done yet.
    Wait,
    /// It has to be told.
    Terminate,
    Kill,
}

impl Terms {
    fn step(&self, now: i64) -> Step {
        match self.stopped {
            None if now >= self.until.saturating_sub(self.grace) => Step::Terminate,
            None => Step::Wait,
            Some(_) if self.killed.is_some() => Step::Wait,
            Some(at) if now >= at.saturating_add(self.grace).min(self.until.max(at)) => Step::Kill,
            Some(_) => Step::Wait,
        }
    }

    /// Whether it was killed so long ago that what is left of it are only the entries of the dead, which
    /// nobody clears.
    fn is_hopeless(&self, now: i64) -> bool {
        self.killed
            .is_some_and(|at| now >= at.saturating_add(AFTER_KILL))
    }
}

pub async fn guard(guard: Guard) -> Result<Code, Failure> {
    let mut signals = Signals::new()?;
    let stream = UnixStream::connect(&guard.socket).await;
    // Nobody else is to find it.
    if let Some(folder) = guard.socket.parent() {
        let _ = std::fs::remove_file(&guard.socket);
        let _ = std::fs::remove_dir(folder);
    }
    let (words, mut told) = stream?.into_split();
    let mut words = BufReader::new(words).lines();
    let mut terms = Terms {
        grace: i64::try_from(guard.grace.as_millis()).unwrap_or(i64::MAX),
        until: match words.next_line().await?.as_deref().and_then(Word::parse) {
            Some(Word::Until(until)) => until,
            // There is no lease any more.
            _ => return Ok(Code::Lost),
        },
        stopped: None,
        killed: None,
    };
    adopt();
    let mut child = match start(&guard) {
        Ok(child) => child,
        Err(error) => {
            let name = guard.command.first().map(|name| name.to_string_lossy());
            eprintln!(
                "leasehold: {} cannot be run: {error}",
                name.unwrap_or_default()
            );
            return Ok(Code::Of(match error.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            }));
        }
    };
    let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let Some(group) = group else {
        return Err(io::Error::other("the command has no process id").into());
    };
    tell(&mut told, Told::Group(group)).await;

    let (mut status, mut hears) = (None, true);
    let mut looks = interval(LOOK);
    loop {
        tokio::select! {
            ended = child.wait(), if status.is_none() => {
                status = Some(ended?);
                // What it leaves behind would work on without a lease.
                stop(&mut terms, group);
            }
            _ = looks.tick() => {}
            signal = signals.next() => {
                let _ = kill_process_group(group, signal);
            }
            word = words.next_line(), if hears => match word.ok().flatten() {
                Some(line) => match Word::parse(&line) {
                    Some(Word::Until(until)) => terms.until = terms.until.max(until),
                    Some(Word::Signal(signal)) => {
                        let _ = kill_process_group(group, signal);
                    }
                    Some(Word::Stop) => stop(&mut terms, group),
                    None => {}
                },
                // Who has the lease is dead, so nobody renews it.
                None => {
                    hears = false;
                    stop(&mut terms, group);
                }
            },
        }
        match terms.step(clock()) {
            Step::Wait => {}
            Step::Terminate => {
                tell(&mut told, Told::Stopped).await;
                stop(&mut terms, group);
            }
            Step::Kill => {
                terms.killed = Some(clock());
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        if let Some(status) = status
            && (is_gone(group) || terms.is_hopeless(clock()))
        {
            tell(&mut told, Told::Over).await;
            return Ok(Code::of(status));
        }
    }
}

/// Makes the orphans of the command children of this process: so they can be waited for, be there an init or
/// not that does it.
fn adopt() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Whether nobody is left of the group, after its first process has ended.
fn is_gone(group: Pid) -> bool {
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
    test_kill_process_group(group).is_err()
}

/// In a process group of its own, with all that it starts.
fn start(guard: &Guard) -> io::Result<tokio::process::Child> {
    let mut words = guard.command.iter();
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(words).process_group(0);
    tokio::process::Command::from(command).spawn()
}

/// Asks it to end, once; a command that is stopped has to go on for that.
fn stop(terms: &mut Terms, group: Pid) {
    if terms.stopped.is_none() {
        terms.stopped = Some(clock());
        let _ = kill_process_group(group, Signal::TERM);
        let _ = kill_process_group(group, Signal::CONT);
    }
}

/// Who does not hear it is dead.
async fn tell(told: &mut OwnedWriteHalf, what: Told) {
    let _ = told.write_all(format!("{what}\n").as_bytes()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reads_back_what_it_writes() {
        for word in [Word::Until(7), Word::Signal(Signal::HUP), Word::Stop] {
            assert_eq!(Word::parse(&word.to_string()), Some(word));
        }
        let group = Pid::from_raw(12).map(Told::Group);
        for told in [group, Some(Told::Stopped), Some(Told::Over)]
            .into_iter()
            .flatten()
        {
            assert_eq!(Told::parse(&told.to_string()), Some(told));
        }
        for nonsense in ["", "until", "until x", "signal 0", "signal 999", "stop it"] {
            assert_eq!(Word::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_command_is_told_a_grace_time_before_the_lease_ends_and_killed_with_it() {
        let mut terms = Terms {
            grace: 10,
            until: 100,
            stopped: None,
            killed: None,
        };
        assert_eq!(terms.step(89), Step::Wait);
        assert_eq!(terms.step(90), Step::Terminate);
        terms.stopped = Some(90);
        assert_eq!(terms.step(99), Step::Wait);
        assert_eq!(terms.step(100), Step::Kill);
        terms.killed = Some(100);
        assert_eq!(terms.step(101), Step::Wait);
    }

    #[test]
    fn a_command_that_has_to_end_has_its_grace_time_within_the_lease() {
        let stopped = |at, until| Terms {
            grace: 10,
            until,
            stopped: Some(at),
            killed: None,
        };
        // Long before the end of the lease.
        assert_eq!(stopped(50, 100).step(59), Step::Wait);
        assert_eq!(stopped(50, 100).step(60), Step::Kill);
        // Shortly before it.
        assert_eq!(stopped(95, 100).step(99), Step::Wait);
        assert_eq!(stopped(95, 100).step(100), Step::Kill);
        // After it.
        assert_eq!(stopped(105, 100).step(105), Step::Kill);
    }
}

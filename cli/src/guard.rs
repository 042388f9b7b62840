//! The parent of a command: starts it, and ends it in time.
//!
//! It hears from the process that has the lease until when that lasts. It ends the command before, whatever
//! became of that process: SIGTERM to all that the command has started, and SIGKILL when the grace time or
//! the lease is over.

use std::{fmt, io, os::unix::process::CommandExt, process::Command, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::Child,
    signal::unix::{self, SignalKind, signal},
    time::interval,
};

use super::{
    args::Guard,
    clock,
    exit::{Code, Failure},
    family, out,
    signals::Signals,
};

/// How often it looks at the clock: a timer would not notice that the machine was suspended.
const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel takes to end what was killed, in milliseconds.
pub const AFTER_KILL: i64 = 1_000;

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
    /// The lease ends, so the command has to.
    Stopped,
    /// The command has ended, and all that it has started.
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
        [Self::Stopped, Self::Over]
            .into_iter()
            .find(|told| told.to_string() == line)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "stopped",
            Self::Over => "over",
        })
    }
}

/// When the command has to end; times on [`clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    grace: i64,
    /// The lease lasts until then.
    until: i64,
    /// It was told to end then.
    stopped: Option<i64>,
    /// It was killed then, for the first time.
    killed: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing is to be done yet.
    Wait,
    /// It has to be told.
    Terminate,
    /// Again and again: it may be starting others.
    Kill,
}

impl Terms {
    fn step(&self, now: i64) -> Step {
        match self.stopped {
            None if now >= self.until.saturating_sub(self.grace) => Step::Terminate,
            None => Step::Wait,
            Some(at) if now >= at.saturating_add(self.grace).min(self.until.max(at)) => Step::Kill,
            Some(_) => Step::Wait,
        }
    }

    /// Whether it was killed in vain, and there is no lease any more which could be kept for it.
    fn is_hopeless(&self, now: i64) -> bool {
        let killed = |at: i64| now >= at.saturating_add(AFTER_KILL);
        self.killed.is_some_and(killed) && now >= self.until
    }
}

pub async fn guard(guard: Guard) -> Result<Code, Failure> {
    let signals = Signals::new()?;
    // Before there is any: who was started to ignore this signal would never be told how a child ended.
    let children = signal(SignalKind::child())?;
    let stream = UnixStream::connect(&guard.socket).await;
    // Nobody else is to find it.
    if let Some(folder) = guard.socket.parent() {
        let _ = std::fs::remove_file(&guard.socket);
        let _ = std::fs::remove_dir(folder);
    }
    let (words, told) = stream?.into_split();
    let mut words = BufReader::new(words).lines();
    let until = loop {
        match words.next_line().await?.as_deref().and_then(Word::parse) {
            Some(Word::Until(until)) => break until,
            Some(Word::Signal(signal)) if Signals::ends(signal) => {
                tell(&told, Told::Over);
                return Ok(signal.into());
            }
            Some(Word::Signal(_)) => {}
            // There is no lease any more.
            Some(Word::Stop) | None => return Ok(too_late(&told)),
        }
    };
    let terms = Terms {
        grace: i64::try_from(guard.grace.as_millis()).unwrap_or(i64::MAX),
        until,
        stopped: None,
        killed: None,
    };
    if terms.step(clock::now()) != Step::Wait {
        return Ok(too_late(&told));
    }
    family::adopt();
    match start(&guard) {
        Ok(child) => {
            Parent::of(child, terms, told)?
                .attend(words, signals, children)
                .await
        }
        Err(error) => {
            let name = guard.command.first().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default();
            out::say(&format!("{name} cannot be run: {error}"));
            tell(&told, Told::Over);
            Ok(Code::Of(match error.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            }))
        }
    }
}

/// There is no time for the command any more, and it was not started.
fn too_late(told: &OwnedWriteHalf) -> Code {
    tell(told, Told::Stopped);
    tell(told, Told::Over);
    Code::Lost
}

/// In a process group of its own, for the signals that are passed on.
fn start(guard: &Guard) -> io::Result<Child> {
    let mut words = guard.command.iter();
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(words).process_group(0);
    tokio::process::Command::from(command).spawn()
}

struct Parent {
    child: Child,
    group: Pid,
    terms: Terms,
    told: OwnedWriteHalf,
}

impl Parent {
    fn of(child: Child, terms: Terms, told: OwnedWriteHalf) -> io::Result<Self> {
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Ok(Self {
            group: group.ok_or_else(|| io::Error::other("the command has no process id"))?,
            child,
            terms,
            told,
        })
    }

    /// Until the command and all that it has started have ended.
    async fn attend(
        mut self,
        mut words: Lines<BufReader<OwnedReadHalf>>,
        mut signals: Signals,
        mut children: unix::Signal,
    ) -> Result<Code, Failure> {
        let (mut code, mut hears, mut waits) = (None, true, false);
        let mut looks = interval(LOOK);
        loop {
            tokio::select! {
                ended = self.child.wait(), if code.is_none() => {
                    // Who cannot be asked how it ended has ended all the same.
                    code = Some(ended.map_or(Code::Failed, Code::of));
                    // What it leaves behind would work on without a lease.
                    self.stop();
                }
                _ = children.recv() => if code.is_none() {
                    family::reap_but(self.group);
                },
                _ = looks.tick() => {}
                // Whoever ends all of a unit tells the keeper too, who passes it on.
                signal = signals.next() => if !hears {
                    self.pass_on(signal);
                },
                word = words.next_line(), if hears => match word.ok().flatten() {
                    Some(line) => self.hear(&line),
                    None => {
                        // Who has the lease is dead, so nobody renews it.
                        hears = false;
                        self.stop();
                    }
                },
            }
            let now = clock::now();
            match self.terms.step(now) {
                Step::Wait => {}
                Step::Terminate => {
                    tell(&self.told, Told::Stopped);
                    self.stop();
                }
                Step::Kill => {
                    self.terms.killed.get_or_insert(now);
                    family::signal(Some(self.group), Signal::KILL);
                }
            }
            let Some(code) = code else { continue };
            let killed = |at: i64| now >= at.saturating_add(AFTER_KILL);
            if family::is_gone(Some(self.group)) {
                tell(&self.told, Told::Over);
                return Ok(code);
            }
            if self.terms.is_hopeless(now) {
                out::say(
                    "what the command has started cannot be ended, and goes on without a lease",
                );
                tell(&self.told, Told::Over);
                return Ok(Code::Lost);
            }
            if !waits && self.terms.killed.is_some_and(killed) {
                waits = true;
                out::say(
                    "what the command has started cannot be ended: the lease is kept until it has",
                );
            }
        }
    }

    fn hear(&mut self, line: &str) {
        match Word::parse(line) {
            Some(Word::Until(until)) => self.terms.until = self.terms.until.max(until),
            Some(Word::Signal(signal)) => self.pass_on(signal),
            Some(Word::Stop) => self.stop(),
            None => {}
        }
    }

    fn pass_on(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Asks it to end, once; what is stopped has to go on for that.
    fn stop(&mut self) {
        if self.terms.stopped.is_none() {
            self.terms.stopped = Some(clock::now());
            family::signal(Some(self.group), Signal::TERM);
            family::signal(Some(self.group), Signal::CONT);
        }
    }
}

/// Who does not hear it is dead, or stopped.
fn tell(told: &OwnedWriteHalf, what: Told) {
    let _ = told.try_write(format!("{what}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reads_back_what_it_writes() {
        for word in [Word::Until(7), Word::Signal(Signal::HUP), Word::Stop] {
            assert_eq!(Word::parse(&word.to_string()), Some(word));
        }
        for told in [Told::Stopped, Told::Over] {
            assert_eq!(Told::parse(&told.to_string()), Some(told));
        }
        for nonsense in ["", "until", "until x", "signal 0", "signal 999", "stop it"] {
            assert_eq!(Word::parse(nonsense), None, "{nonsense}");
        }
    }

    const TERMS: Terms = Terms {
        grace: 10,
        until: 100,
        stopped: None,
        killed: None,
    };

    #[test]
    fn the_command_is_told_a_grace_time_before_the_lease_ends_and_killed_with_it() {
        assert_eq!(TERMS.step(89), Step::Wait);
        assert_eq!(TERMS.step(90), Step::Terminate);
        let told = Terms {
            stopped: Some(90),
            ..TERMS
        };
        assert_eq!(told.step(99), Step::Wait);
        assert_eq!(told.step(100), Step::Kill);
        assert_eq!(told.step(1_000), Step::Kill);
    }

    #[test]
    fn a_command_that_has_to_end_has_its_grace_time_within_the_lease() {
        let stopped = |at| Terms {
            stopped: Some(at),
            ..TERMS
        };
        // Long before the end of the lease.
        assert_eq!(stopped(50).step(59), Step::Wait);
        assert_eq!(stopped(50).step(60), Step::Kill);
        // Shortly before it.
        assert_eq!(stopped(95).step(99), Step::Wait);
        assert_eq!(stopped(95).step(100), Step::Kill);
        // After it.
        assert_eq!(stopped(105).step(105), Step::Kill);
    }

    #[test]
    fn what_cannot_be_killed_is_waited_for_while_there_is_a_lease() {
        let killed = |until| Terms {
            until,
            stopped: Some(50),
            killed: Some(60),
            ..TERMS
        };
        assert!(!killed(100).is_hopeless(61));
        assert!(!killed(5_000).is_hopeless(60 + AFTER_KILL));
        assert!(killed(100).is_hopeless(60 + AFTER_KILL));
    }
}

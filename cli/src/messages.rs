//! What the process with the lease and the supervisor say to each other: lines, over the [`channel`](super::channel).

use std::fmt;

use rustix::process::Signal;

/// A message from the process with the lease to the supervisor: one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// The lease lasts until this time, on [`clock`](super::clock).
    Until(i64),
    /// Forward this signal to the command.
    Signal(Signal),
    /// The lease is lost.
    Stop,
    /// The job was stopped, and goes on.
    GoOn,
}

/// A message from the supervisor to the process with the lease: one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The supervisor ends the command because the lease ends.
    Stopped,
    /// The command and all processes that it has started have ended.
    Over,
    /// The command has ended, and a process that it has started cannot be ended.
    LeftBehind,
    /// The command is stopped, and the job is to be stopped with this signal.
    StopJob(Signal),
}

impl Instruction {
    pub fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("until", at)) => at.parse().ok().map(Self::Until),
            Some(("signal", number)) => {
                let number = number.parse().ok()?;
                Signal::from_named_raw(number).map(Self::Signal)
            }
            _ => [Self::Stop, Self::GoOn]
                .into_iter()
                .find(|instruction| instruction.to_string() == line),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(at) => write!(f, "until {at}"),
            Self::Signal(signal) => write!(f, "signal {}", signal.as_raw()),
            Self::Stop => f.write_str("stop"),
            Self::GoOn => f.write_str("go on"),
        }
    }
}

impl Report {
    pub fn parse(line: &str) -> Option<Self> {
        if let Some(("stop job", number)) = line.rsplit_once(' ') {
            let number = number.parse().ok()?;
            return Signal::from_named_raw(number).map(Self::StopJob);
        }
        [Self::Stopped, Self::Over, Self::LeftBehind]
            .into_iter()
            .find(|report| report.to_string() == line)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Over => f.write_str("over"),
            Self::LeftBehind => f.write_str("left behind"),
            Self::StopJob(signal) => write!(f, "stop job {}", signal.as_raw()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_what_it_writes() {
        for instruction in [
            Instruction::Until(7),
            Instruction::Signal(Signal::HUP),
            Instruction::Stop,
            Instruction::GoOn,
        ] {
            assert_eq!(
                Instruction::parse(&instruction.to_string()),
                Some(instruction)
            );
        }
        for report in [
            Report::Stopped,
            Report::Over,
            Report::LeftBehind,
            Report::StopJob(Signal::TSTP),
        ] {
            assert_eq!(Report::parse(&report.to_string()), Some(report));
        }
        for nonsense in [
            "",
            "until",
            "until x",
            "signal 0",
            "signal 999",
            "stop it",
            "stop job x",
        ] {
            assert_eq!(Instruction::parse(nonsense), None, "{nonsense}");
            assert_eq!(Report::parse(nonsense), None, "{nonsense}");
        }
    }
}

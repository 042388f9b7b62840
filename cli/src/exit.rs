//! The exit codes, and the messages of failures.

use std::{ffi::OsStr, fmt, io, process::ExitCode};

use leasehold::{Error, ErrorKind};
use rustix::process::Signal;

use super::{
    address::{AddressError, address_message, message},
    args::OnHeld,
    out,
};

/// The text about exit codes and the environment, for the help and the manual.
pub const CODES: &str = "Exit codes:
    0         success; the command ended with 0, or (`run`) its tick was done before
    1         `inspect`: the key is free; `evict`: nobody held the key; `doctor`: something is wrong
    2         the command line is wrong
    65        a later tick is done, so this one is left out (`run`)
    69        the store cannot be reached, or does not answer
    70        the store failed
    73        the file of the locks cannot be used
    75        the key is held (`run`, see --on-held; `acquire`), or the limit is reached (`limit`)
    76        the lease was lost: the command was ended for that, or `renew` or `release` found it
    77        the store refused the credentials
    78        the store is not prepared, or has a document that this version cannot use
    126, 127  the command cannot be run, or does not exist
    128+N     signal N ended the command, the wait for the key, or `watch`; with a tick also if it
              asked the command to end, and the command ended with 0
Any other code is that of the command that `run`, `lead` or `limit` ran. `lead` exits only after a signal or an error of its own.

Environment:
    LEASEHOLD_STORE, LEASEHOLD_OWNER  like --store and --owner
    LEASEHOLD_KEY, LEASEHOLD_FENCE    set by `run` and `lead` for their command
    LEASEHOLD_TICK                    set by `run` for its command: the tick that it runs for";

/// An exit code. Codes from 64 to 78 have the meaning of sysexits(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Done,
    No,
    Usage,
    Superseded,
    Unavailable,
    Failed,
    File,
    Held,
    Lost,
    Denied,
    NotPrepared,
    /// The exit code of the command that was run, or the code that a shell would return for it.
    Of(u8),
}

impl Code {
    /// The code that shells return for a program that a signal has ended.
    pub fn of_signal(signal: i32) -> Self {
        Self::Of(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// The code of a process that has ended.
    pub fn of(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;

        match status.signal() {
            Some(signal) => Self::of_signal(signal),
            None => Self::Of(
                status
                    .code()
                    .and_then(|code| code.try_into().ok())
                    .unwrap_or(1),
            ),
        }
    }

    /// Says that a command cannot be run, and returns the code that shells return for that.
    pub fn cannot_run(program: &OsStr, error: &io::Error) -> Self {
        let name = program.to_string_lossy();
        out::say(&format!("{name} cannot be run: {error}"));
        Self::Of(match error.kind() {
            io::ErrorKind::NotFound => 127,
            _ => 126,
        })
    }

    fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Superseded => 65,
            Self::Unavailable => 69,
            Self::Failed => 70,
            Self::File => 73,
            Self::Held => 75,
            Self::Lost => 76,
            Self::Denied => 77,
            Self::NotPrepared => 78,
            Self::Of(code) => code,
        }
    }
}

impl From<Signal> for Code {
    fn from(signal: Signal) -> Self {
        Self::of_signal(signal.as_raw())
    }
}

impl From<OnHeld> for Code {
    fn from(how: OnHeld) -> Self {
        match how {
            OnHeld::Exit0 => Self::Done,
            OnHeld::Exit75 => Self::Held,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        code.number().into()
    }
}

/// The reason why the command fails.
#[derive(Debug)]
pub enum Failure {
    Address(AddressError),
    Store(Error),
    /// An operation of this host failed.
    Host(io::Error),
    /// The folder of the default file cannot be created.
    NoPlace(String),
    Usage(String),
}

impl Failure {
    pub fn code(&self) -> Code {
        match self {
            Self::Address(AddressError::Unreachable(_)) => Code::Unavailable,
            Self::Address(AddressError::Denied(_)) => Code::Denied,
            Self::Address(AddressError::Store { error, .. }) | Self::Store(error) => of(error),
            // All other errors are about the text of the address.
            Self::Address(_) | Self::Usage(_) => Code::Usage,
            Self::Host(_) => Code::Failed,
            Self::NoPlace(_) => Code::File,
        }
    }

    /// The failure, with the place of the store if the store is the reason.
    pub fn at(self, place: &str) -> Self {
        match self {
            Self::Store(error) if is_about_the_place(&error) => {
                let place = place.to_owned();
                Self::Address(AddressError::Store { place, error })
            }
            failure => failure,
        }
    }

    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Host(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn of(error: &Error) -> Code {
    match error {
        Error::WaitTimedOut { .. } | Error::TooManyHolders { .. } => Code::Held,
        Error::Lost { .. } => Code::Lost,
        Error::Denied { .. } => Code::Denied,
        Error::File { .. } => Code::File,
        Error::NotPrepared { .. }
        | Error::NoJournal { .. }
        | Error::UnsupportedSchema { .. }
        | Error::NotALock { .. }
        | Error::NotALimiter { .. } => Code::NotPrepared,
        error if error.is_retryable() => Code::Unavailable,
        Error::Store { .. } | Error::NoRuntime | Error::RuntimeEnded | Error::Closed => {
            Code::Failed
        }
        // All other errors are about invalid arguments.
        _ => Code::Usage,
    }
}

/// Whether the store has to be named before this error, because its own message does not say which one it is.
fn is_about_the_place(error: &Error) -> bool {
    match error.kind() {
        // The message names the file.
        ErrorKind::Misconfigured => !matches!(
            error,
            Error::File { .. } | Error::NoRuntime | Error::RuntimeEnded
        ),
        ErrorKind::Unavailable
        | ErrorKind::NoAnswer
        | ErrorKind::ForeignDocument
        | ErrorKind::Other => true,
        _ => false,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => f.write_str(&address_message(error)),
            Self::Store(error) => f.write_str(&message(error)),
            Self::Host(error) => write!(f, "{error}"),
            Self::Usage(text) | Self::NoPlace(text) => f.write_str(text),
        }
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::Address(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_journal_is_no_mistake_of_the_command_line() {
        let error = Error::NoJournal {
            store: "MongoDB",
            source: leasehold::store::Cause::text("there is none"),
        };
        assert_eq!(of(&error).number(), 78);
    }
}

//! The terminal that controls this session, and the process group that has it: the group in its foreground, to which
//! its keys go. A process of another group that reads from the terminal is stopped.

use std::{
    fs::File,
    io::{self, IsTerminal},
    os::{fd::AsFd, unix::fs::FileTypeExt},
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::{
    io::Errno,
    process::{Pid, getpgrp, getpid, test_kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

/// Who has a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process group of the process with the lease.
    Job,
    /// The process group of the command.
    Command,
    /// Another group, such as that of the shell.
    Other,
}

/// The terminal of a command, and of the job to which it belongs.
pub struct Terminal {
    file: File,
    /// The process group of the process with the lease. A shell gives the terminal to this group, and takes it back when
    /// a process of it ends or is stopped.
    job: Pid,
    /// The modes while the job had the terminal, from which the command may have changed them.
    modes_of_job: Option<Termios>,
    /// The modes of a command that is stopped.
    modes_of_command: Option<Termios>,
}

impl Terminal {
    /// The terminal of this session, if it has one.
    pub fn of(job: Pid) -> Option<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).open("/dev/tty").ok()?;
        Some(Self {
            modes_of_job: tcgetattr(&file).ok(),
            file,
            job,
            modes_of_command: None,
        })
    }

    pub fn job(&self) -> Pid {
        self.job
    }

    /// The options with which a supervisor starts a command that may have this terminal.
    pub fn arguments(&self) -> impl Iterator<Item = String> + use<> {
        let alone = is_used_alone().then(|| "--foreground".to_owned());
        [format!("--job={}", self.job.as_raw_nonzero())]
            .into_iter()
            .chain(alone)
    }

    /// Who has the terminal, if anybody.
    pub fn holder(&self, command: Pid) -> Option<Holder> {
        let holder = tcgetpgrp(&self.file).ok()?;
        Some(if holder == self.job {
            Holder::Job
        } else if holder == command {
            Holder::Command
        } else {
            Holder::Other
        })
    }

    /// Gives the terminal to the group of the command.
    pub fn give(&mut self, command: Pid) {
        self.modes_of_job = tcgetattr(&self.file).ok();
        let modes = self.modes_of_command.take();
        self.pass_to(command, modes);
    }

    /// Takes the terminal back from the group of the command, or from one that has no process any more, as when the
    /// command was a shell with jobs of its own. Returns whether it did: a shell may have taken it before.
    pub fn take_back(&mut self, command: Option<Pid>) -> bool {
        let Ok(holder) = tcgetpgrp(&self.file) else {
            return false;
        };
        let is_gone = || test_kill_process_group(holder) == Err(Errno::SRCH);
        if holder == self.job || Some(holder) != command && !is_gone() {
            return false;
        }
        self.modes_of_command = tcgetattr(&self.file).ok();
        self.pass_to(self.job, self.modes_of_job.clone());
        true
    }

    /// Gives the terminal to a group, in these modes. A failure is ignored: the terminal is gone, or the group is.
    fn pass_to(&self, group: Pid, modes: Option<Termios>) {
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTOU);
        // These calls stop a process that does not have the terminal, unless it has blocked this signal. Nothing is
        // started in between, so no other process inherits that.
        let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else {
            return;
        };
        let is_given = tcsetpgrp(&self.file, group).is_ok();
        if let Some(modes) = modes.filter(|_| is_given) {
            // This must not wait for the output, which the user may have halted.
            let _ = tcsetattr(&self.file, OptionalActions::Now, &modes);
        }
        let _ = before.thread_set_mask();
    }
}

/// Whether standard input is the terminal of this session, and the group of this process has it.
pub fn is_input_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|holder| holder == getpgrp())
}

/// Whether this process is all that a user has started at a terminal. If it is not the first process of its group, it
/// belongs to a script or another program, and if it has a pipe, others may be at the other end: all of these may use
/// the terminal too.
pub fn is_used_alone() -> bool {
    is_input_in_foreground()
        && getpid() == getpgrp()
        && !is_pipe(&io::stdout())
        && !is_pipe(&io::stderr())
}

fn is_pipe(stream: &(impl AsFd + IsTerminal)) -> bool {
    if stream.is_terminal() {
        return false;
    }
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    let kind = file.and_then(|file| file.metadata());
    kind.is_ok_and(|it| it.file_type().is_fifo() || it.file_type().is_socket())
}

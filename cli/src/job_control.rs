//! Job control, as a shell does it, for one job: the command. When the command has the terminal, its keys go to the
//! command alone. When it is stopped, the job is stopped, so that the shell notices; when the job goes on, it does.
//!
//! The supervisor does this, because it is the parent of the command. Only [`stop_job`] is for the process with the
//! lease, which belongs to the job.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process_group, waitid};

use super::terminal::{Holder, Terminal};

/// What is known of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// It is stopped.
    IsStopped,
    /// It is stopped because it needs the terminal, which it did not have.
    NeedsTerminal,
}

/// What is done about a command that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Give it the terminal, and continue it, as [`look`](JobControl::look) does.
    GiveIt,
    /// Take the terminal back, if the command has it, and stop the job with this signal.
    StopJob(Signal),
    Nothing,
}

/// What is done about a command that this signal has stopped, while `holder` has the terminal.
fn action(signal: Signal, holder: Option<Holder>) -> Action {
    match holder {
        // It may have been given the terminal just after it was stopped.
        Some(Holder::Job | Holder::Command) if needs_terminal(signal) => Action::GiveIt,
        // The signal for a key: Ctrl-Z. The kernel ignores it if no shell could continue the job, which SIGSTOP would
        // stop for ever.
        Some(Holder::Command) => Action::StopJob(Signal::TSTP),
        // The kernel would do the same to all of the job, if the command were in its group.
        Some(Holder::Other) if needs_terminal(signal) => Action::StopJob(signal),
        // It was stopped by somebody who has nothing to do with the terminal.
        _ => Action::Nothing,
    }
}

/// Whether this signal stops processes that use a terminal which another group has.
fn needs_terminal(signal: Signal) -> bool {
    matches!(signal, Signal::TTIN | Signal::TTOU)
}

/// The job control of a command.
pub struct JobControl {
    terminal: Terminal,
    /// The command, which is the first process of its group.
    command: Pid,
    /// Whether nothing else of the job uses the terminal. Then the command has it whenever the job does, and otherwise
    /// from when it needs it.
    is_used_alone: bool,
    state: State,
}

impl JobControl {
    pub fn new(terminal: Terminal, command: Pid, is_used_alone: bool) -> Self {
        let mut this = Self {
            terminal,
            command,
            is_used_alone,
            state: State::Runs,
        };
        this.give();
        this
    }

    /// Looks whether the command was stopped, and gives it the terminal that it needs. Returns the signal that the job
    /// is to be stopped with.
    pub fn look(&mut self) -> Option<Signal> {
        let mut to_job = None;
        while let Some(signal) = self.change() {
            to_job = match signal {
                Some(signal) => self.note_stop(signal),
                None => {
                    self.state = State::Runs;
                    None
                }
            };
        }
        // The job may get the terminal at any time.
        self.give();
        to_job
    }

    /// Gives the terminal to the command, if it is to have it and the job does.
    fn give(&mut self) {
        let is_due = match self.state {
            State::Runs => self.is_used_alone,
            State::IsStopped => false,
            State::NeedsTerminal => true,
        };
        if !is_due {
            return;
        }
        self.give_if_job_has_it();
        let has_it = self.terminal.holder(self.command) == Some(Holder::Command);
        if has_it && self.state == State::NeedsTerminal {
            self.resume();
        }
    }

    /// The newest change since the last call: the signal that has stopped the command, or none that has continued it.
    fn change(&self) -> Option<Option<Signal>> {
        // The exit status is left for others who wait for it.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.command), options).ok().flatten()?;
        let signal = status.stopping_signal().and_then(Signal::from_named_raw);
        (status.continued() || signal.is_some()).then_some(signal)
    }

    fn note_stop(&mut self, signal: Signal) -> Option<Signal> {
        self.state = if needs_terminal(signal) {
            State::NeedsTerminal
        } else {
            State::IsStopped
        };
        match action(signal, self.terminal.holder(self.command)) {
            Action::StopJob(signal) => {
                self.terminal.take_back(Some(self.command));
                Some(signal)
            }
            Action::GiveIt | Action::Nothing => None,
        }
    }

    /// Continues the command after its job was stopped. It gets the terminal if the job has it: after `fg`, and not
    /// after `bg`.
    pub fn go_on(&mut self) {
        // A command that needs the terminal would only be stopped again.
        if self.state == State::IsStopped {
            self.give_if_job_has_it();
            self.resume();
        }
    }

    /// Takes the terminal back after the end of the command. `key` is the signal that a key has sent to the command and
    /// that has ended it. Then the rest of the job gets it too, because a script would go on otherwise.
    pub fn end(&mut self, key: Option<Signal>) {
        if self.terminal.take_back(Some(self.command))
            && !self.is_used_alone
            && let Some(signal) = key
        {
            let _ = kill_process_group(self.terminal.job(), signal);
        }
    }

    fn give_if_job_has_it(&mut self) {
        if self.terminal.holder(self.command) == Some(Holder::Job) {
            self.terminal.give(self.command);
        }
    }

    fn resume(&mut self) {
        self.state = State::Runs;
        let _ = kill_process_group(self.command, Signal::CONT);
    }
}

/// Stops the job of this process with this signal. Returns when it goes on, or at once if no shell could continue it.
pub fn stop_job(signal: Signal) {
    let _ = kill_process_group(getpgrp(), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_needs_the_terminal_gets_it_from_its_job() {
        for signal in [Signal::TTIN, Signal::TTOU] {
            for holder in [Holder::Job, Holder::Command] {
                assert_eq!(action(signal, Some(holder)), Action::GiveIt);
            }
        }
    }

    #[test]
    fn a_job_in_the_background_is_stopped_when_its_command_needs_the_terminal() {
        for signal in [Signal::TTIN, Signal::TTOU] {
            let stop = Action::StopJob(signal);
            assert_eq!(action(signal, Some(Holder::Other)), stop);
        }
    }

    #[test]
    fn a_job_is_stopped_with_the_command_that_has_the_terminal() {
        for signal in [Signal::TSTP, Signal::STOP] {
            let stop = Action::StopJob(Signal::TSTP);
            assert_eq!(action(signal, Some(Holder::Command)), stop);
        }
    }

    #[test]
    fn a_command_without_the_terminal_may_be_stopped_alone() {
        for signal in [Signal::TSTP, Signal::STOP] {
            for holder in [Some(Holder::Job), Some(Holder::Other), None] {
                assert_eq!(action(signal, holder), Action::Nothing);
            }
        }
        // There is no terminal any more.
        assert_eq!(action(Signal::TTIN, None), Action::Nothing);
    }
}

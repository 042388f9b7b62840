//! Commands that use the terminal: `leasehold run`, typed at an interactive shell.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use leasehold::store::LeaseId;
use rustix::process::{Pid, Signal, kill_process};

use super::{Place, kills::is_there, scratch, terminal::Terminal, until};

const PROMPT: &str = "shell> ";
const ASK: &str = "echo pid:$$; read answer; echo got:$answer";
/// Asks at the terminal, wherever the input comes from.
const ASK_TERMINAL: &str = "echo pid:$$ >/dev/tty; read answer </dev/tty; echo got:$answer";
/// Runs until the test, or another script, says so.
const WAIT: &str = "echo >started; until [ -e go ]; do sleep 0.05; done";

/// An interactive shell in a terminal, as the leader of its session.
struct Shell {
    terminal: Terminal,
    place: Place,
    /// The scripts, which are files, because what is typed is on the screen too.
    folder: PathBuf,
}

impl Shell {
    fn new() -> Self {
        let place = Place::file();
        place.leasehold(["prepare"]).with(0);
        let folder = scratch().join(LeaseId::random().to_string());
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT,QUIT,TSTP,TTIN,TTOU", "setsid"])
            .args(["--ctty", "bash", "--norc", "--noprofile", "--noediting"])
            .arg("-i")
            .current_dir(&folder)
            .env("LEASEHOLD_STORE", &place.0)
            .env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))
            .env("RUN", "run job --ttl 10m --")
            .env("PS1", PROMPT)
            .env_remove("LEASEHOLD_OWNER")
            .env_remove("HISTFILE");
        let mut terminal = Terminal::run(command, None);
        terminal.sees(PROMPT);
        Self {
            terminal,
            place,
            folder,
        }
    }

    /// Makes a script that the shell can call by this name.
    fn has(&self, name: &str, script: &str) {
        fs::write(self.folder.join(name), script).unwrap();
    }

    fn types(&mut self, text: &str) {
        self.terminal.types(text);
    }

    fn sees(&mut self, text: &str) {
        self.terminal.sees(text);
    }

    /// Waits for a line that begins with this name, and returns the rest of it.
    fn value(&mut self, name: &str) -> String {
        loop {
            let lines = self.terminal.seen.split_inclusive('\n');
            let ended = lines.filter_map(|line| line.strip_suffix("\r\n"));
            // What comes from the background follows the prompt.
            let ended = ended.map(|line| line.trim_start_matches(PROMPT));
            let mut values = ended.filter_map(|line| line.strip_prefix(name));
            if let Some(value) = values.next_back() {
                return value.to_owned();
            }
            self.terminal.sees_more(name);
        }
    }

    /// Runs `ask` or another script under a lease. It prints its process id, and is in the foreground.
    fn runs(&mut self, words: &str) -> String {
        self.types(&format!("$LEASEHOLD {words}\n"));
        let pid = self.value("pid:");
        has_terminal(&pid);
        pid
    }

    /// Types the key that stops a command, and waits until all are stopped. What is typed before that may still be
    /// read by the command.
    fn stops(&mut self, pid: &str) {
        self.types("\u{1a}");
        is_stopped(pid);
        is_stopped(&with_lease(pid));
        // The shell says so.
        assert_eq!(self.code(), "148");
    }

    /// The exit code of the last command. Waits until the shell has the terminal: a command that is about to end may
    /// still read what is typed.
    fn code(&mut self) -> String {
        has_terminal(&self.terminal.child.id().to_string());
        self.terminal.seen.clear();
        self.types("echo code:$?\n");
        self.value("code:")
    }

    /// Ends the shell, which must have no job any more.
    fn ends(mut self) {
        self.types("exit 7\n");
        assert_eq!(self.terminal.code(), 7);
        assert_eq!(self.place.leasehold(["ls"]).with(0), "");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A field of `/proc/PID/stat`. The state of the process is number 0.
fn field(pid: &str, number: usize) -> String {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    fields.split(' ').nth(number).unwrap_or_default().to_owned()
}

/// Waits until the group that this process leads has the terminal.
fn has_terminal(pid: &str) {
    until(|| (field(pid, 5) == pid).then_some(()));
}

fn is_stopped(pid: &str) {
    until(|| (field(pid, 0) == "T").then_some(()));
}

/// The process with the lease: the parent of the parent of the command.
fn with_lease(command: &str) -> String {
    field(&field(command, 1), 1)
}

#[test]
fn an_answer_reaches_the_command() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    shell.types("$LEASEHOLD $RUN sh ask\n");
    shell.value("pid:");
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    assert_eq!(shell.code(), "0");
    shell.ends();
}

#[test]
fn a_key_that_interrupts_reaches_the_command_once() {
    let mut shell = Shell::new();
    shell.has(
        "count",
        "n=0; trap 'n=$((n+1))' INT; echo pid:$$
        until read answer; do :; done; echo interrupts:$n; exit 3",
    );
    shell.runs("$RUN sh count");
    shell.types("\u{3}");
    shell.sees("^C");
    shell.types("\n");
    assert_eq!(shell.value("interrupts:"), "1");
    assert_eq!(shell.code(), "3");
    shell.has("ask", ASK);
    shell.runs("$RUN sh ask");
    shell.types("\u{3}");
    assert_eq!(shell.code(), "130");
    shell.ends();
}

#[test]
fn a_job_that_is_stopped_leaves_the_terminal_to_the_shell_and_goes_on() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    let pid = shell.runs("$RUN sh ask");
    for _ in 0..2 {
        shell.stops(&pid);
        shell.types("fg\n");
        has_terminal(&pid);
    }
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    assert_eq!(shell.code(), "0");
    shell.ends();
}

#[test]
fn a_job_that_goes_on_in_the_background_has_no_terminal() {
    let mut shell = Shell::new();
    shell.has(
        "wait",
        "echo pid:$$; read line <go; read answer; echo got:$answer",
    );
    // The script starts no other process. One that is stopped as it starts may keep its parent from being stopped.
    shell.types("mkfifo go\n");
    let pid = shell.runs("$RUN sh wait");
    shell.stops(&pid);
    shell.types("bg\n");
    assert_eq!(shell.code(), "0");
    // It reads, and is stopped with its job.
    shell.has("go", "\n");
    is_stopped(&pid);
    is_stopped(&with_lease(&pid));
    assert_eq!(shell.code(), "0");
    shell.types("fg\n");
    has_terminal(&pid);
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    shell.ends();
}

#[test]
fn a_command_in_the_background_takes_no_terminal() {
    let mut shell = Shell::new();
    shell.has("input", "cat; echo empty:");
    shell.types("$LEASEHOLD $RUN sh input &\n");
    shell.value("empty:");
    shell.types("wait\n");
    shell.has("ask", ASK_TERMINAL);
    shell.types("$LEASEHOLD $RUN sh ask &\n");
    let pid = shell.value("pid:");
    is_stopped(&pid);
    is_stopped(&with_lease(&pid));
    assert_eq!(shell.code(), "0");
    shell.types("fg\n");
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    shell.ends();
}

/// The command is given the terminal when it reads from it.
#[test]
fn a_pipeline_leaves_the_terminal_to_who_reads_from_it() {
    let mut shell = Shell::new();
    shell.has("wait", WAIT);
    shell.has("ask", ASK_TERMINAL);
    shell.types("$LEASEHOLD $RUN sh wait | (until [ -e started ]; do sleep 0.05; done; sh ask)\n");
    shell.value("pid:");
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    shell.has("go", "");
    assert_eq!(shell.code(), "0");
    shell.types("$LEASEHOLD $RUN sh ask | sed s/^/piped-/\n");
    shell.value("pid:");
    shell.types("no\n");
    assert_eq!(shell.value("piped-got:"), "no");
    assert_eq!(shell.code(), "0");
    shell.ends();
}

#[test]
fn a_script_has_the_terminal_after_a_command_that_it_runs() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    shell.has(
        "outer",
        "$LEASEHOLD $RUN sh ask; read more; echo outer:$more",
    );
    shell.types("sh outer\n");
    shell.value("pid:");
    shell.types("yes\n");
    assert_eq!(shell.value("got:"), "yes");
    shell.types("and more\n");
    assert_eq!(shell.value("outer:"), "and more");
    assert_eq!(shell.code(), "0");
    // A key that interrupts the command ends the script too.
    shell.types("sh outer\n");
    let pid = shell.value("pid:");
    has_terminal(&pid);
    shell.types("\u{3}");
    assert_eq!(shell.code(), "130");
    assert!(!shell.terminal.seen.contains("outer:"));
    shell.ends();
}

#[test]
fn a_script_has_the_terminal_beside_a_command_that_reads_nothing() {
    let mut shell = Shell::new();
    shell.has("wait", WAIT);
    shell.has(
        "outer",
        "$LEASEHOLD $RUN sh wait </dev/tty & until [ -e started ]; do sleep 0.05; done
        echo asks:; read more; echo outer:$more; echo >go; wait $!",
    );
    shell.types("sh outer\n");
    shell.value("asks:");
    shell.types("more\n");
    assert_eq!(shell.value("outer:"), "more");
    assert_eq!(shell.code(), "0");
    shell.ends();
}

/// A shell gives the terminal to each of its jobs. If it is killed, it does not take it back.
#[test]
fn a_script_has_the_terminal_after_a_shell_that_was_killed() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    shell.has(
        "outer",
        "$LEASEHOLD $RUN bash --norc --noediting -i; read more; echo outer:$more",
    );
    shell.types("sh outer\n");
    shell.types("echo inner:$$\n");
    let inner = shell.value("inner:");
    for answer in ["yes", "never"] {
        shell.terminal.seen.clear();
        shell.types("sh ask\n");
        let pid = shell.value("pid:");
        has_terminal(&pid);
        if answer == "yes" {
            shell.types("yes\n");
            assert_eq!(shell.value("got:"), "yes");
        } else {
            let script = field(&with_lease(&inner), 2);
            let inner = Pid::from_raw(inner.parse().unwrap()).unwrap();
            kill_process(inner, Signal::KILL).unwrap();
            has_terminal(&script);
        }
    }
    shell.types("more\n");
    assert_eq!(shell.value("outer:"), "more");
    shell.ends();
}

#[test]
fn the_terminal_has_its_modes_back_after_a_command_that_was_killed() {
    let mut shell = Shell::new();
    shell.has("break", "stty -echo -icanon; kill -KILL $$");
    shell.types("stty -a >before; $LEASEHOLD $RUN sh break; echo ended:$?; stty -a >after\n");
    assert_eq!(shell.value("ended:"), "137");
    assert_eq!(shell.code(), "0");
    let modes = |name| fs::read_to_string(shell.folder.join(name)).unwrap();
    assert!(modes("before").contains(" icanon") && modes("before").contains(" echo "));
    assert_eq!(modes("before"), modes("after"));
    shell.ends();
}

/// A command that is stopped has its own modes, and the shell those of before.
#[test]
fn each_side_of_a_stop_has_its_modes() {
    let mut shell = Shell::new();
    shell.has("modes", "stty -icanon; echo pid:$$; read answer; stty -a");
    let pid = shell.runs("$RUN sh modes");
    shell.stops(&pid);
    shell.types("stty -a; echo shown:\n");
    shell.value("shown:");
    assert!(shell.terminal.seen.contains(" icanon"));
    shell.terminal.seen.clear();
    shell.types("fg\n");
    shell.types("yes\n");
    shell.sees("-icanon");
    assert_eq!(shell.code(), "0");
    shell.ends();
}

#[test]
fn a_command_with_the_terminal_is_ended_when_its_lease_is_lost() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    let pid = shell.runs("run job --ttl 10s -- sh ask");
    shell.place.leasehold(["evict", "job", "--yes"]).with(0);
    assert_eq!(shell.code(), "76");
    assert!(!is_there(&pid));
    shell.ends();
}

/// Nothing renews the lease of a job that is stopped.
#[test]
fn a_command_that_is_stopped_is_ended_with_its_lease() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    let pid = shell.runs("run job --ttl 10s -- sh ask");
    shell.stops(&pid);
    until(|| (!is_there(&pid)).then_some(()));
    shell.types("fg\n");
    assert_eq!(shell.code(), "76");
    shell.ends();
}

/// The shell takes the terminal itself, but a script does not.
#[test]
fn a_script_has_the_terminal_after_the_supervisor_was_killed() {
    let mut shell = Shell::new();
    shell.has("ask", ASK);
    shell.has(
        "outer",
        "$LEASEHOLD $RUN sh ask; read more; echo outer:$more",
    );
    shell.types("sh outer\n");
    let pid = shell.value("pid:");
    has_terminal(&pid);
    let (supervisor, script) = (field(&pid, 1), field(&with_lease(&pid), 2));
    let supervisor = Pid::from_raw(supervisor.parse().unwrap()).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    shell.sees("the command is killed");
    has_terminal(&script);
    shell.types("more\n");
    assert_eq!(shell.value("outer:"), "more");
    shell.ends();
}

/// The kernel tells the group that has the terminal, which is not that of the process with the lease.
#[test]
fn a_command_ends_with_its_session() {
    for stops in [false, true] {
        let mut shell = Shell::new();
        shell.has("ask", ASK);
        let pid = shell.runs("$RUN sh ask");
        if stops {
            shell.stops(&pid);
        }
        shell.terminal.child.kill().unwrap();
        until(|| (!is_there(&pid)).then_some(()));
        let lock = || shell.place.json(["inspect", "job", "--json"]);
        until(|| (lock()["held"] == false).then_some(()));
    }
}

/// As in a container, or below `ssh -t`: no shell could continue the job, so that the key that stops it does nothing.
#[test]
fn a_command_without_a_shell_is_never_left_stopped() {
    let place = Place::file();
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,QUIT,TSTP", "setsid", "--ctty"])
        .args([env!("CARGO_BIN_EXE_leasehold"), "run", "job", "--ttl"])
        .args(["10m", "--", "sh", "-c", ASK])
        .env("LEASEHOLD_STORE", &place.0)
        .env_remove("LEASEHOLD_OWNER");
    let mut terminal = Terminal::run(command, None);
    terminal.sees("pid:");
    until(|| {
        let leader = terminal.child.id().to_string();
        let holder = field(&leader, 5);
        (holder != leader && holder != "-1").then_some(())
    });
    terminal.types("\u{1a}");
    terminal.sees("^Z");
    terminal.types("yes\n");
    terminal.sees("got:yes");
    assert_eq!(terminal.code(), 0);
}

//! Signals to `leasehold run`, and how it ends.

use std::{fs, os::unix::process::CommandExt, process::Command};

use rustix::process::Signal;

use super::{Going, Place, run, until};

/// Whether a process catches SIGTERM.
fn listens(going: &Going) -> bool {
    let status = format!("/proc/{}/status", going.child.id());
    let status = fs::read_to_string(status).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    caught & (1 << (Signal::TERM.as_raw() - 1)) != 0
}

#[test]
fn signals_are_for_the_command() {
    let place = Place::file();
    let script = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo hup; exit 9' HUP
        echo set; while :; do sleep 0.05; done";
    let mut going = place.hold(["job"], script);
    assert_eq!(going.line(), "set");
    for (signal, line) in [
        (Signal::USR1, "usr1"),
        (Signal::USR2, "usr2"),
        (Signal::HUP, "hup"),
    ] {
        going.signal(signal);
        assert_eq!(going.line(), line);
    }
    assert_eq!(going.wait(), (9, String::new()));
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

#[test]
fn a_command_that_a_signal_ends_is_told_as_shells_do() {
    let place = Place::file();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let mut going = place.hold(["job"], "ulimit -c 0; exec sleep 600");
        // The shell may not have replaced itself with the other program yet.
        going.signal(signal);
        assert_eq!(going.wait().0, code);
    }
}

#[test]
fn a_signal_ends_a_command_that_is_stopped() {
    let place = Place::file();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut going = place.hold(["job"], "echo $$; kill -STOP $$; echo goes on");
        let stat = format!("/proc/{}/stat", going.line());
        until(|| {
            fs::read_to_string(&stat)
                .unwrap()
                .contains(") T ")
                .then_some(())
        });
        going.signal(signal);
        assert_eq!(going.wait().0, code);
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_key() {
    let place = Place::file();
    let holder = place.hold(["job"], "cat");
    let mut waiting = place.start(["run", "job", "--wait", "1h", "--", "true"]);
    // A signal before that would end the process as it ends any program.
    until(|| listens(&waiting).then_some(()));
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.wait().0, 143);
    assert_eq!(holder.finish().0, 0);
}

/// `nohup` starts programs in this way.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let place = Place::file();
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            "trap '' HUP; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .args(["run", "job", "--", "sh", "-c", "echo ready; cat; echo done"])
        .env("LEASEHOLD_STORE", &place.0);
    let mut going = Going::of(shell);
    assert_eq!(going.line(), "ready");
    going.signal(Signal::HUP);
    assert_eq!(going.finish(), (0, "done".to_owned()));
}

#[test]
fn what_cannot_be_run_is_told_as_shells_do() {
    let place = Place::file();
    let missing = place.leasehold(["run", "job", "--", "no-such-command-anywhere"]);
    assert!(
        missing
            .saying(127)
            .contains("no-such-command-anywhere cannot be run")
    );
    let folder = place.leasehold(["run", "job", "--", "/"]);
    assert!(folder.saying(126).contains("/ cannot be run"));
    // Neither command holds a lease any more.
    assert_eq!(place.leasehold(["ls"]).with(0), "");
}

/// Arguments that are not UTF-8 are given to the command unchanged.
#[test]
fn any_bytes_are_words() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let place = Place::file();
    let mut command = place.command(["run", "job", "--", "printf", "%s"]);
    command.arg(OsStr::from_bytes(b"a\xff"));
    assert_eq!(command.output().unwrap().stdout, b"a\xff");
}

/// The program may have been started under another name.
#[test]
fn the_name_that_it_was_called_by_does_not_matter() {
    let place = Place::file();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg0("nightly").env("LEASEHOLD_STORE", &place.0);
    command.args(["run", "job", "--", "echo", "ran"]);
    assert_eq!(run(command).with(0), "ran");
}

/// If a process is started with SIGCHLD ignored, the kernel drops the status of each child that ends.
#[test]
fn the_end_of_a_command_is_seen_although_such_signals_were_ignored() {
    let place = Place::file();
    let mut shell = Command::new("bash");
    shell
        .args([
            "-c",
            "trap '' CHLD; exec \"$@\"",
            "bash",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .args(["run", "job", "--", "sh", "-c", "exit 5"])
        .env("LEASEHOLD_STORE", &place.0);
    run(shell).with(5);
}

/// The terminal may be resized at any moment.
#[test]
fn a_signal_at_the_start_of_a_command_does_not_keep_it_from_running() {
    let place = Place::file();
    for turn in 0..10 {
        let holder = place.hold(["job"], "cat");
        let mut going = place.start(["run", "job", "--wait", "10m", "--", "echo", "ran"]);
        until(|| listens(&going).then_some(()));
        assert_eq!(holder.finish().0, 0);
        while going.child.try_wait().unwrap().is_none() {
            going.signal(Signal::WINCH);
        }
        assert_eq!(going.wait(), (0, "ran".to_owned()), "turn {turn}");
    }
}

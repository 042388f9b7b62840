//! Processes of `leasehold run` that are killed or stopped: the command does not outlive the lease.

use std::{
    fs,
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::engine::Engine;
use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{Pid, Signal, kill_process},
};

use super::{
    Going, Place,
    pace::{Late, keeping_pace, outlived},
    until,
};

/// A command that ignores SIGTERM. It prints its process id.
const STUBBORN: &str = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done";

/// Whether a process runs, and is no zombie.
pub fn is_there(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // The state comes after the name, which may contain spaces.
    status.is_ok_and(|status| !status.rsplit(") ").next().unwrap().starts_with(['Z', 'X']))
}

/// Acquires the key, which is possible after the lease is over, and returns whether the process then runs. It checks
/// once, because a zombie may be reaped between two checks.
fn is_there_for_next_holder(place: &Place, pid: &str) -> bool {
    let look = format!(
        "read -r status </proc/{pid}/stat && case ${{status##*) }} in [ZX]*) ;; *) echo there ;; esac; true"
    );
    let next = place.leasehold(["run", "job", "--wait", "5m", "--", "sh", "-c", &look]);
    !next.with(0).is_empty()
}

/// Checks that the process has ended by the time the next holder has the key.
fn ends_with_the_lease(place: &Place, pid: &str, ttl: u64) -> Result<(), Late> {
    if is_there_for_next_holder(place, pid) {
        Err(outlived(ttl, || is_there(pid)))
    } else {
        Ok(())
    }
}

fn stubborn(place: &Place, ttl: u64) -> Result<(Going, String), Late> {
    let start = Instant::now();
    let mut going = place.hold_for(ttl, ["--grace", "1s"], STUBBORN)?;
    let pid = going.line();
    if is_there(&pid) {
        return Ok((going, pid));
    }
    let late = Late::new("it ended at once", Duration::from_secs(ttl) / 2);
    Err(late.in_a_step_of(start.elapsed()))
}

fn killed(place: &Place) {
    place.leasehold(["prepare"]).with(0);
    keeping_pace(6, |ttl| {
        let (mut going, pid) = stubborn(place, ttl)?;
        going.signal(Signal::KILL);
        going.end();
        ends_with_the_lease(place, &pid, ttl)
    });
}

fn paused(place: &Place) {
    place.leasehold(["prepare"]).with(0);
    keeping_pace(6, |ttl| {
        let (mut going, pid) = stubborn(place, ttl)?;
        going.signal(Signal::STOP);
        ends_with_the_lease(place, &pid, ttl)?;
        going.signal(Signal::CONT);
        assert_eq!(going.wait().0, 76);
        Ok(())
    });
}

#[test]
fn a_kill_on_a_file() {
    killed(&Place::file());
}

#[test]
fn a_kill_on_mongodb() {
    killed(&Place::on(Engine::MongoDb));
}

#[test]
fn a_kill_on_elasticsearch() {
    killed(&Place::on(Engine::Elasticsearch));
}

#[test]
fn a_pause_on_a_file() {
    paused(&Place::file());
}

#[test]
fn a_pause_on_mongodb() {
    paused(&Place::on(Engine::MongoDb));
}

#[test]
fn a_pause_on_elasticsearch() {
    paused(&Place::on(Engine::Elasticsearch));
}

/// Nobody renews the lease any more, and the command ends before the lease ends.
#[test]
fn a_command_ends_at_once_after_the_process_with_the_lease_was_killed() {
    let place = Place::file();
    let script = "trap 'echo told; exit' TERM; echo set; while :; do sleep 0.05; done";
    let mut going = place.hold(["job", "--ttl", "10m"], script);
    assert_eq!(going.line(), "set");
    going.signal(Signal::KILL);
    assert_eq!(going.line(), "told");
    let lock = place.json(["inspect", "job", "--json"]);
    assert!(
        lock["holders"][0]["expires_in_ms"].as_i64() > Some(300_000),
        "{lock}"
    );
}

/// Shows that the check by the next holder works: it finds a process outside of the tree.
#[test]
fn a_process_that_runs_is_found_by_the_check() {
    let place = Place::file();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    assert!(is_there_for_next_holder(&place, &other.id().to_string()));
    other.kill().unwrap();
    other.wait().unwrap();
}

/// Processes with a process group or a session of their own end too.
#[test]
fn a_process_outside_the_group_is_ended() {
    let escapes = |escape: &str, ttl: u64| {
        let place = Place::file();
        let script = format!("{escape} sh -c \"{}\" & cat", STUBBORN.replace('$', "\\$"));
        let mut going = place.hold_for(ttl, ["--grace", "500ms"], &script)?;
        let pid = going.line();
        assert!(is_there(&pid), "{escape}");
        going.signal(Signal::KILL);
        going.end();
        ends_with_the_lease(&place, &pid, ttl)
    };
    thread::scope(|scope| {
        for escape in ["setsid", "timeout 600", "setsid setsid timeout 600"] {
            scope.spawn(move || keeping_pace(6, |ttl| escapes(escape, ttl)));
        }
    });
}

/// Each process starts the next one and ends, so that each exists for a moment only.
#[test]
fn a_chain_of_processes_is_ended() {
    let place = Place::file();
    let script = "trap '' TERM; export end=$(($(date +%s) + 400))
        export hop='[ $(date +%s) -lt $end ] && { sh -c \"$hop\" & exit; }; echo survived'
        sh -c \"$hop\"";
    let mut going = place.hold(["job", "--ttl", "10m", "--grace", "1s"], script);
    assert_eq!(going.wait(), (0, String::new()));
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

/// The parent of a process.
fn parent_of(pid: &str) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(parent.trim().parse().ok()?)
}

/// The children of a process.
fn children_of(parent: Pid) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| parent_of(pid) == Some(parent)).collect()
}

/// Waits for the supervisor of a command that was started.
fn supervisor_of(going: &Going) -> Pid {
    let supervisor = until(|| children_of(going.pid()).pop());
    Pid::from_raw(supervisor.parse().unwrap()).unwrap()
}

/// The supervisor is killed at different moments. In each case the key is not free before the command is dead.
#[test]
fn a_supervisor_that_is_killed_as_it_starts_leaves_nothing_behind() {
    let place = Place::file();
    for turn in 0..20 {
        // The argument by which the process is found.
        let time = format!("{}", 600_000 + turn);
        let mut going = place.start(["run", "job", "--", "sleep", &time]);
        let supervisor = supervisor_of(&going);
        if turn % 2 == 0 {
            until(|| children_of(supervisor).pop());
        }
        kill_process(supervisor, Signal::KILL).unwrap();
        let (code, _) = going.wait();
        assert!([137, 70].contains(&code), "{code}");
        let words = format!("sleep\0{time}\0");
        let is_it = |entry: fs::DirEntry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == words.as_bytes())
        };
        let found = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|it| is_it(it).then_some(()));
        assert_eq!(found.count(), 0, "turn {turn}");
        assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
    }
}

/// A stopped supervisor cannot end the command.
#[test]
fn a_supervisor_that_is_stopped_is_killed_with_the_command() {
    keeping_pace(6, |ttl| {
        let place = Place::file();
        let (mut going, pid) = stubborn(&place, ttl)?;
        let supervisor = parent_of(&pid).unwrap();
        kill_process(supervisor, Signal::STOP).unwrap();
        place.leasehold(["evict", "job", "--yes"]).with(0);
        assert_eq!(going.wait().0, 76);
        assert!(!is_there(&pid));
        Ok(())
    });
}

/// The machine was suspended or busy while the supervisor started.
#[test]
fn a_command_does_not_start_when_its_time_is_over() {
    let (mut stream, other_end) = UnixStream::pair().unwrap();
    // The supervisor gets the input of the command before its instructions.
    let input = io::stdin();
    let input = [input.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&input));
    let data = [IoSlice::new(b"\n")];
    sendmsg(&stream, &data, &mut control, SendFlags::empty()).unwrap();
    stream.write_all(b"signal 28\nuntil 1\n").unwrap();
    let mut command = super::leasehold();
    command.args(["supervise", "--grace", "1s", "--", "echo", "never"]);
    command.stdin(OwnedFd::from(other_end));
    let ended = super::run(command);
    assert_eq!(ended.with(76), "");
}

/// The supervisor is the parent of orphans, and has to reap them.
#[test]
fn orphans_that_have_ended_are_reaped() {
    let place = Place::file();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.01 &); done; echo $$; cat";
    let mut going = place.hold(["job"], script);
    let supervisor = parent_of(&going.line()).unwrap();
    // Only the shell is left.
    until(|| (children_of(supervisor).len() == 1).then_some(()));
    assert_eq!(going.finish().0, 0);
}

/// The supervisor is killed, by the kernel for lack of memory for example.
#[test]
fn a_command_without_its_supervisor_is_killed() {
    let place = Place::file();
    let (mut going, pid) = stubborn(&place, 600).unwrap();
    let parent = parent_of(&pid).unwrap();
    assert_ne!(parent, going.pid());
    kill_process(parent, Signal::KILL).unwrap();
    assert_eq!(going.wait().0, 128 + 9);
    assert!(!is_there(&pid));
    // The key is released, because no process of the command is left.
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

/// Many programs give up their clean-up at a second SIGTERM.
#[test]
fn a_command_gets_sigterm_once() {
    let script =
        "trap 'echo told' TERM; (trap 'echo told too' TERM; echo set; while :; do sleep 0.05; done) &
        while :; do sleep 0.05; done";
    keeping_pace(6, |ttl| {
        let place = Place::file();
        let grace = format!("{}s", ttl / 6);
        let mut going = place.hold_for(ttl, ["--grace", &grace], script)?;
        assert_eq!(going.line(), "set");
        place.leasehold(["evict", "job", "--yes"]).with(0);
        let (code, told) = going.wait();
        let mut told: Vec<_> = told.lines().collect();
        told.sort_unstable();
        assert_eq!(code, 76);
        match told[..] {
            ["told", "told too"] => Ok(()),
            // The processes were killed before both could print.
            [] | ["told"] | ["told too"] => Err(Late::new(
                "it told too little",
                Duration::from_secs(ttl / 6),
            )),
            _ => panic!("{told:?}"),
        }
    });
}

/// When systemd ends a unit, each of its processes gets the signal. The process with the lease forwards it, and the
/// supervisor does not forward it a second time.
#[test]
fn a_signal_to_the_supervisor_is_not_forwarded_to_the_command() {
    let place = Place::file();
    let script = "trap 'echo told' USR1; trap 'echo end; exit 0' USR2; echo $$
        while :; do sleep 0.05; done";
    let mut going = place.hold(["job", "--ttl", "10m"], script);
    let supervisor = parent_of(&going.line()).unwrap();
    kill_process(supervisor, Signal::USR1).unwrap();
    going.signal(Signal::USR2);
    assert_eq!(going.wait(), (0, "end".to_owned()));
}

/// A command has the grace time for its clean-up, within its lease.
#[test]
fn a_command_gets_sigterm_before_it_is_killed() {
    let script =
        "trap 'echo $(leasehold inspect job --json | grep -c expires_at) cleaned up; exit' TERM
        while :; do sleep 0.05; done";
    let leasehold = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", leasehold.display(), std::env::var("PATH").unwrap());
    keeping_pace(6, |ttl| {
        let place = Place::file();
        let (time, grace) = (format!("{ttl}s"), format!("{}s", ttl / 3));
        let words = [
            "run", "job", "--ttl", &time, "--grace", &grace, "--", "sh", "-c",
        ];
        let mut command = place.command(words);
        command
            .arg(format!("echo ready; {script}"))
            .env("PATH", &path);
        let mut going = Going::ready(command, ttl)?;
        going.signal(Signal::STOP);
        match &*going.line() {
            "1 cleaned up" => {}
            // The command was killed before it printed, or got SIGTERM too late.
            late @ ("" | "0 cleaned up") => {
                return Err(Late::new(late, Duration::from_secs(ttl / 3)));
            }
            other => panic!("{other}"),
        }
        going.signal(Signal::CONT);
        assert_eq!(going.wait().0, 76);
        Ok(())
    });
}

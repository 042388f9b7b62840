//! Whatever becomes of `leasehold run`, its command does not outlive the lease.

use leasehold_tests::engine::Engine;
use std::{
    fs,
    io::Write,
    os::unix::net::UnixListener,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Going, Place,
    pace::{Late, keeping_pace, outlived},
    until,
};

/// A command that does not go when it is asked to. It tells its process id.
const STUBBORN: &str = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done";

/// Whether there is such a process, and not only its entry.
pub fn is_there(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // What comes after the name, which may have blanks in it.
    status.is_ok_and(|status| !status.rsplit(") ").next().unwrap().starts_with(['Z', 'X']))
}

/// Whoever has the key next, and so after the lease was over, looks whether that process is there: once, for
/// the entry of one that has ended may be cleared between two looks.
fn is_there_for_the_next(place: &Place, pid: &str) -> bool {
    let look = format!(
        "read -r status </proc/{pid}/stat && case ${{status##*) }} in [ZX]*) ;; *) echo there ;; esac; true"
    );
    let next = place.leasehold(["run", "job", "--wait", "5m", "--", "sh", "-c", &look]);
    !next.with(0).is_empty()
}

/// The lease is over as the next has the key, and so is the process.
fn ends_with_the_lease(place: &Place, pid: &str, ttl: u64) -> Result<(), Late> {
    match is_there_for_the_next(place, pid) {
        true => Err(outlived(ttl, || is_there(pid))),
        false => Ok(()),
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

/// It does not go on until the lease is nearly over, which nobody renews any more.
#[test]
fn a_command_hears_at_once_of_the_death_of_its_keeper() {
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

/// The same look sees what is there: a process that is of another family.
#[test]
fn one_of_another_family_is_seen() {
    let place = Place::file();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    assert!(is_there_for_the_next(&place, &other.id().to_string()));
    other.kill().unwrap();
    other.wait().unwrap();
}

/// What has a group or a session of its own is of the family all the same.
#[test]
fn who_leaves_the_group_does_not_leave_the_family() {
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

/// Each starts the next and ends, so that none is there for longer than a moment.
#[test]
fn one_that_hops_from_process_to_process_is_ended() {
    let place = Place::file();
    let script = "trap '' TERM; export end=$(($(date +%s) + 400))
        export hop='[ $(date +%s) -lt $end ] && { sh -c \"$hop\" & exit; }; echo survived'
        sh -c \"$hop\"";
    let mut going = place.hold(["job", "--ttl", "10m", "--grace", "1s"], script);
    assert_eq!(going.wait(), (0, String::new()));
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

/// The process that is the parent of another.
fn parent_of(pid: &str) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(parent.trim().parse().ok()?)
}

/// The processes whose parent this is.
fn children_of(parent: Pid) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| parent_of(pid) == Some(parent)).collect()
}

/// The parent of the command, as soon as it is there.
fn supervisor_of(going: &Going) -> Pid {
    let supervisor = until(|| children_of(going.pid()).pop());
    Pid::from_raw(supervisor.parse().unwrap()).unwrap()
}

/// At whichever moment: the lease is not free before the command is dead.
#[test]
fn a_parent_that_is_killed_as_it_starts_leaves_nothing_behind() {
    let place = Place::file();
    for turn in 0..20 {
        // A time by which it is found.
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

/// It cannot end anybody.
#[test]
fn a_parent_that_is_stopped_is_killed_with_the_command() {
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

/// The machine was suspended, or busy, while the parent started.
#[test]
fn a_command_does_not_start_when_its_time_is_over() {
    // It removes the folder of the socket as well.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("over");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut command = super::leasehold();
    command
        .args(["supervise", "--grace", "1s", "--socket"])
        .arg(&socket);
    command.args(["--", "echo", "never"]);
    let supervisor = Going::of(command);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"signal 28\nuntil 1\n").unwrap();
    assert_eq!(supervisor.finish(), (76, String::new()));
    assert!(!folder.path().exists());
}

/// Nobody else clears their entries, and a host has only so many.
#[test]
fn orphans_that_have_ended_leave_no_entries() {
    let place = Place::file();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.01 &); done; echo $$; cat";
    let mut going = place.hold(["job"], script);
    let supervisor = parent_of(&going.line()).unwrap();
    // The shell alone is left.
    until(|| (children_of(supervisor).len() == 1).then_some(()));
    assert_eq!(going.finish().0, 0);
}

/// The parent of the command is killed, by the kernel for want of memory, say.
#[test]
fn a_command_without_its_parent_is_killed() {
    let place = Place::file();
    let (mut going, pid) = stubborn(&place, 600).unwrap();
    let parent = parent_of(&pid).unwrap();
    assert_ne!(parent, going.pid());
    kill_process(parent, Signal::KILL).unwrap();
    assert_eq!(going.wait().0, 128 + 9);
    assert!(!is_there(&pid));
    // There is nothing that it would be held for.
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

/// A second signal of the kind makes many a program give up its cleaning.
#[test]
fn a_command_is_asked_once() {
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
            // It was killed before it could say so.
            [] | ["told"] | ["told too"] => Err(Late::new(
                "it told too little",
                Duration::from_secs(ttl / 6),
            )),
            _ => panic!("{told:?}"),
        }
    });
}

/// As systemd ends a unit: each of its processes gets the signal. The keeper passes on what comes to it, and
/// the parent of the command does not do so as well.
#[test]
fn what_comes_to_the_parent_of_a_command_is_not_for_the_command() {
    let place = Place::file();
    let script = "trap 'echo told' USR1; trap 'echo end; exit 0' USR2; echo $$
        while :; do sleep 0.05; done";
    let mut going = place.hold(["job", "--ttl", "10m"], script);
    let supervisor = parent_of(&going.line()).unwrap();
    kill_process(supervisor, Signal::USR1).unwrap();
    going.signal(Signal::USR2);
    assert_eq!(going.wait(), (0, "end".to_owned()));
}

/// A command that cleans up has the grace time for it, within its lease.
#[test]
fn a_command_is_asked_before_it_is_killed() {
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
            // It was killed before it had, or asked too late.
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

//! Whatever becomes of `leasehold run`, its command does not outlive the lease.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};

use super::{Going, Place, engine::Engine};

/// A command that does not go when it is asked to. It tells its process id.
const STUBBORN: &str = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done";

/// Whether there is such a process, and not only its entry.
pub fn is_there(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // What comes after the name, which may have blanks in it.
    status.is_ok_and(|status| !status.rsplit(')').next().unwrap().trim().starts_with('Z'))
}

/// Whoever has the key next, and so after the lease was over, looks whether that process is there.
fn is_there_for_the_next(place: &Place, pid: &str) -> bool {
    let look = format!(
        "kill -0 {pid} 2>/dev/null && ! grep -q '^State:.Z' /proc/{pid}/status && echo there; true"
    );
    let next = place.leasehold(["run", "job", "--wait", "5m", "--", "sh", "-c", &look]);
    !next.with(0).is_empty()
}

fn stubborn(place: &Place) -> (Going, String) {
    let mut going = place.hold(["job", "--ttl", "6s", "--grace", "1s"], STUBBORN);
    let pid = going.line();
    assert!(is_there(&pid));
    (going, pid)
}

fn killed(place: &Place) {
    place.leasehold(["prepare"]).with(0);
    let (mut going, pid) = stubborn(place);
    going.signal(Signal::KILL);
    going.end();
    assert!(!is_there_for_the_next(place, &pid));
}

fn paused(place: &Place) {
    place.leasehold(["prepare"]).with(0);
    let (mut going, pid) = stubborn(place);
    going.signal(Signal::STOP);
    assert!(!is_there_for_the_next(place, &pid));
    going.signal(Signal::CONT);
    assert_eq!(going.wait().0, 76);
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

/// The same look sees what is there: a process that has left the group on purpose.
#[test]
fn one_that_leaves_the_group_is_seen_to_survive() {
    let place = Place::file();
    let escapes = format!("setsid sh -c \"{}\" & wait", STUBBORN.replace('$', "\\$"));
    let mut going = place.hold(["job", "--ttl", "2s", "--grace", "100ms"], &escapes);
    let pid = going.line();
    going.signal(Signal::KILL);
    going.end();
    assert!(is_there_for_the_next(&place, &pid));
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// The parent of the command is killed, by the kernel for want of memory, say.
#[test]
fn a_command_without_its_parent_is_killed() {
    let place = Place::file();
    let (mut going, pid) = stubborn(&place);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .unwrap();
    let parent = Pid::from_raw(parent.trim().parse().unwrap()).unwrap();
    assert_ne!(parent, going.pid());
    kill_process(parent, Signal::KILL).unwrap();
    assert_eq!(going.wait().0, 128 + 9);
    assert!(!is_there(&pid));
    // There is nothing that it would be held for.
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
}

/// A command that cleans up has the grace time for it, within its lease.
#[test]
fn a_command_is_asked_before_it_is_killed() {
    let place = Place::file();
    let script =
        "trap 'echo $(leasehold inspect job --json | grep -c expires_at) cleaned up; exit' TERM
        while :; do sleep 0.05; done";
    let leasehold = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", leasehold.display(), std::env::var("PATH").unwrap());
    let words = [
        "run", "job", "--ttl", "6s", "--grace", "3s", "--", "sh", "-c",
    ];
    let mut command = place.command(words);
    command
        .arg(format!("echo ready; {script}"))
        .env("PATH", path);
    let mut going = Going::of(command);
    assert_eq!(going.line(), "ready");
    going.signal(Signal::STOP);
    assert_eq!(going.line(), "1 cleaned up");
    going.signal(Signal::CONT);
    assert_eq!(going.wait().0, 76);
}

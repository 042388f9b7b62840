//! `leasehold lead`: a command that runs on one host, and that starts again on that host or on another one. In these
//! tests each process stands for a host.

use rustix::process::Signal;

use super::{Going, Place, until};

/// The code for a command that SIGTERM has ended.
const TERMINATED: i32 = 128 + 15;
/// Prints the fence and runs until it is ended.
const SERVE: &str = "echo $LEASEHOLD_FENCE; exec sleep 1000";

/// A host with this name, on which the script is to run.
fn host(place: &Place, name: &str, ttl: &str, script: &str) -> Going {
    let command = ["--", "sh", "-c", script];
    let words = ["lead", "job", "--owner", name, "--ttl", ttl];
    Going::of(place.command(words.into_iter().chain(command)))
}

/// The next line that a script prints: its fence.
fn fence(host: &mut Going) -> i64 {
    host.line().parse().unwrap()
}

/// How many processes wait for the key.
fn waiting(place: &Place) -> usize {
    let lock = place.json(["inspect", "job", "--json"]);
    lock["waiters"].as_array().unwrap().len()
}

#[test]
fn a_command_that_ends_is_started_again() {
    let place = Place::file();
    for code in [0, 7] {
        let script = format!("echo $LEASEHOLD_FENCE; exit {code}");
        let mut only = host(&place, "a", "30s", &script);
        let fences = [fence(&mut only), fence(&mut only), fence(&mut only)];
        assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        // The signal comes during the pause, or while the command runs.
        only.signal(Signal::TERM);
        let ended = only.wait().0;
        assert!([TERMINATED, code].contains(&ended), "{ended}");
        place.leasehold(["inspect", "job"]).with(1);
    }
}

#[test]
fn a_host_that_is_asked_to_end_hands_over_at_once() {
    let place = Place::file();
    let mut first = host(&place, "a", "1h", SERVE);
    let before = fence(&mut first);
    let mut second = host(&place, "b", "1h", SERVE);
    until(|| (waiting(&place) == 1).then_some(()));
    first.signal(Signal::TERM);
    assert_eq!(first.wait().0, TERMINATED);
    // Otherwise the second host would wait for an hour.
    assert!(fence(&mut second) > before);
    let lock = place.json(["inspect", "job", "--json"]);
    assert_eq!(lock["holders"][0]["owner"], "b");
    second.signal(Signal::TERM);
    assert_eq!(second.wait().0, TERMINATED);
}

#[test]
fn one_that_waits_ends_with_the_signal() {
    let place = Place::file();
    let mut first = host(&place, "a", "1h", SERVE);
    fence(&mut first);
    let mut second = host(&place, "b", "1h", SERVE);
    until(|| (waiting(&place) == 1).then_some(()));
    second.signal(Signal::TERM);
    assert_eq!(second.wait(), (TERMINATED, String::new()));
    until(|| (waiting(&place) == 0).then_some(()));
    first.signal(Signal::TERM);
    first.wait();
}

#[test]
fn a_host_that_dies_is_replaced() {
    let place = Place::file();
    let mut first = host(&place, "a", "3s", SERVE);
    let before = fence(&mut first);
    let mut second = host(&place, "b", "3s", SERVE);
    until(|| (waiting(&place) == 1).then_some(()));
    first.signal(Signal::KILL);
    assert!(fence(&mut second) > before);
    // All processes of the command have closed the output, so the command has ended too.
    until(|| {
        matches!(
            first.out.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Disconnected)
        )
        .then_some(())
    });
    second.signal(Signal::TERM);
    second.wait();
}

#[test]
fn a_lead_that_is_lost_ends_the_command_and_is_campaigned_for_again() {
    let place = Place::file();
    let mut first = host(&place, "a", "3s", SERVE);
    let before = fence(&mut first);
    let mut second = host(&place, "b", "3s", SERVE);
    until(|| (waiting(&place) == 1).then_some(()));
    place.leasehold(["evict", "job", "--yes"]).with(0);
    let next = fence(&mut second);
    assert!(next > before);
    // The first host learns of that, and waits.
    until(|| (waiting(&place) == 1).then_some(()));
    second.signal(Signal::TERM);
    assert_eq!(second.wait().0, TERMINATED);
    assert!(fence(&mut first) > next);
    first.signal(Signal::TERM);
    first.wait();
}

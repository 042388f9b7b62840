//! `leasehold limit`: at most so many commands in a time.

use std::{fs, os::unix::process::ExitStatusExt};

use rustix::process::Signal;

use super::{Engine, Going, Place, run, until};

/// A rate whose window outlasts any test.
const TWO: &str = "2/300days";

#[test]
fn no_more_commands_run_than_the_rate_allows() {
    on(&Place::file());
    on(&Place::on(Engine::MongoDb));
    for engine in [Engine::Elasticsearch, Engine::OpenSearch] {
        let place = Place::on(engine);
        place.leasehold(["prepare"]).with(0);
        on(&place);
    }
}

fn on(place: &Place) {
    let command = ["sh", "-c", "echo ran; exit 3"];
    let limit = |options: &[&str]| {
        let words = [&["limit"], options, &["--"], &command].concat();
        run(place.command(words))
    };
    // Many ask at once, and only two get a permit.
    let words = ["limit", "job", "--rate", TWO, "--", "sh", "-c", "echo ran"];
    let mut going = [(); 5].map(|()| place.start(words));
    let mut ended = going.each_mut().map(Going::wait);
    ended.sort();
    let (ran, refused) = ((0, "ran".to_owned()), (75, String::new()));
    assert_eq!(ended[..2], [ran.clone(), ran]);
    assert!(ended[2..].iter().all(|it| *it == refused), "{ended:?}");
    // A wait that is certain to be in vain ends at once.
    for options in [&[][..], &["--wait", "10days"]] {
        let full = limit(&[&["job", "--rate", TWO], options].concat());
        assert!(
            full.saying(75)
                .contains("job is at its limit: try again in ")
        );
        assert_eq!(full.out, "");
    }
    // The code is that of the command.
    assert_eq!(limit(&["other", "--rate", TWO]).with(3), "ran");
    // Of two rates the one of two is full first, and the other one keeps what that does not let through.
    let both = ["both", "--rate", "3/200days", "--rate", TWO];
    assert_eq!(limit(&both).with(3), "ran");
    assert_eq!(limit(&both).with(3), "ran");
    limit(&both).saying(75);
    let one = ["both", "--rate", "3/200days"];
    assert_eq!(limit(&one).with(3), "ran");
    limit(&one).saying(75);
    // A command that cannot be run takes no permit.
    let missing = ["limit", "missing", "--rate", TWO, "--", "/no/such/command"];
    for _ in 0..3 {
        let missing = run(place.command(missing));
        missing.saying(127);
    }
    let smooth = ["smooth", "--rate", TWO, "--burst", "1"];
    assert_eq!(limit(&smooth).with(3), "ran");
    limit(&smooth).saying(75);
}

#[test]
fn a_wait_ends_with_the_next_permit() {
    let place = &Place::file();
    let words = [
        "limit", "job", "--rate", "1/2s", "--wait", "2m", "--", "echo", "ran",
    ];
    for _ in 0..3 {
        assert_eq!(place.leasehold(words).with(0), "ran");
    }
}

#[test]
fn the_command_takes_the_place_of_this_process() {
    let place = Place::file();
    // It has the signals of a command that a shell has started: here SIGPIPE, which Rust ignores, ends it.
    let script = "echo $$; kill -PIPE $$; echo survived";
    let words = ["limit", "job", "--rate", TWO, "--", "sh", "-c", script];
    let mut going = place.start(words);
    assert_eq!(going.line(), going.child.id().to_string());
    assert_eq!(going.end().signal(), Some(Signal::PIPE.as_raw()));
    assert_eq!(going.line(), "");
}

/// Nothing is held during a wait, so a signal ends it as it ends any program.
#[test]
fn a_signal_ends_the_wait() {
    let place = Place::file();
    let limit = |wait| {
        let rate = ["limit", "job", "--rate", "1/1h", "--burst", "1"];
        let words = rate
            .into_iter()
            .chain(["--wait", wait, "--", "echo", "ran"]);
        Going::of(place.command(words))
    };
    assert_eq!(limit("0s").wait(), (0, "ran".to_owned()));
    let mut waiting = limit("10h");
    // The program has begun, so the signal does not end the one that starts it.
    let name = format!("/proc/{}/comm", waiting.child.id());
    until(|| {
        fs::read_to_string(&name)
            .is_ok_and(|it| it == "leasehold\n")
            .then_some(())
    });
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(waiting.line(), "");
}

#[test]
fn a_wrong_command_line_takes_no_permit() {
    let place = &Place::file();
    let limit = |words: &[&str]| {
        let words = ["limit", "job"].iter().chain(words);
        run(place.command(words))
    };
    for (rate, what) in [
        ("10", "ten in each second"),
        ("1/s", "ten in each second"),
        ("-1/1s", "ten in each second"),
        ("0/1s", "at least one"),
        ("1/0s", "window"),
        ("1/400days", "window"),
    ] {
        let rate = format!("--rate={rate}");
        let wrong = limit(&[&rate, "--", "echo", "ran"]);
        assert!(wrong.saying(2).contains(what), "{}", wrong.err);
    }
    let wrong = limit(&["--rate", TWO, "--burst", "3", "--", "echo", "ran"]);
    assert!(wrong.saying(2).contains("burst"), "{}", wrong.err);
    limit(&["--rate", TWO]).saying(2);
    limit(&["--", "echo", "ran"]).saying(2);
    let missing = limit(&["--rate", TWO, "--", "/no/such/command"]);
    assert!(
        missing
            .saying(127)
            .contains("/no/such/command cannot be run")
    );
    let folder = limit(&["--rate", TWO, "--", "/"]);
    assert!(folder.saying(126).contains("/ cannot be run"));
}

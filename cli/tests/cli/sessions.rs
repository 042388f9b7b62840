//! A session with each subcommand, on each kind of store.

use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use leasehold_tests::engine::Engine;
use rustix::process::Signal;

use super::{
    Going, Place, doctor,
    pace::{Late, keeping_pace},
};

#[test]
fn on_a_file() {
    session(&Place::file());
}

#[test]
fn on_mongodb() {
    let place = Place::on(Engine::MongoDb);
    doctor::finds_no_index(&place, "mind");
    session(&place);
}

#[test]
fn on_elasticsearch() {
    let place = Place::on(Engine::Elasticsearch);
    is_not_prepared(&place);
    session(&place);
}

#[test]
fn on_opensearch() {
    let place = Place::on(Engine::OpenSearch);
    let wrong = Place(place.0.replace("opensearch+", "es+")).leasehold(["ls"]);
    assert!(wrong.saying(2).contains("is an OpenSearch"));
    is_not_prepared(&place);
    session(&place);
}

/// Checks that a lock cannot be acquired, and that the message says what to do.
fn is_not_prepared(place: &Place) {
    doctor::finds_no_index(place, "bad");
    let ended = place.leasehold(["run", "key", "--", "echo", "never"]);
    let said = ended.saying(78);
    assert!(said.contains("`leasehold prepare`"), "{said}");
    assert_eq!(ended.out, "");
}

fn session(place: &Place) {
    assert!(
        place
            .leasehold(["prepare"])
            .with(0)
            .ends_with("is prepared")
    );
    doctor::is_content(place);
    nothing_is_held(place);
    a_command_runs_under_a_lease(place);
    a_held_key_is_seen_and_waited_for(place);
    several_share_a_key(place);
    a_key_stays_held_for_its_minimum(place);
    an_eviction_ends_the_command(place);
    a_signal_ends_the_command(place);
    changes_are_watched(place);
    purged_locks_are_gone(place);
}

fn nothing_is_held(place: &Place) {
    assert_eq!(place.leasehold(["ls"]).with(0), "");
    assert_eq!(place.json(["ls", "--json"]).as_array().unwrap().len(), 0);
    let looked = place.leasehold(["inspect", "job"]);
    assert_eq!(
        looked.with(1),
        "job is free, and nothing is remembered of it"
    );
    assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
    assert_eq!(
        place.leasehold(["evict", "job", "--yes"]).with(1),
        "job is free"
    );
}

pub fn a_command_runs_under_a_lease(place: &Place) {
    let script = "echo $LEASEHOLD_KEY $LEASEHOLD_FENCE; exit 7";
    let run = || {
        let ended = place.leasehold(["run", "job", "--", "sh", "-c", script]);
        let (key, fence) = ended.with(7).split_once(' ').unwrap();
        assert_eq!(key, "job");
        fence.parse::<i64>().unwrap()
    };
    let first = run();
    let second = run();
    assert!(second > first, "{second} after {first}");
    // The key is free again, and keeps the newest of the fences that the grant took.
    let lock = place.json(["inspect", "job", "--json"]);
    assert_eq!(lock["held"], false);
    let newest = lock["fence"].as_i64().unwrap();
    assert!((0..1_024).contains(&(newest - second)), "{newest}");
    let all = place.json(["ls", "--all", "--json"]);
    assert_eq!(all[0]["key"], "job");
}

fn a_held_key_is_seen_and_waited_for(place: &Place) {
    let options = [
        "held one",
        "--owner",
        "me",
        "--note",
        "all the rows",
        "--ttl",
        "10m",
    ];
    let holder = place.hold(options, "cat >/dev/null; echo done");
    let lock = place.json(["inspect", "held one", "--json"]);
    let it = &lock["holders"][0];
    assert_eq!(
        (&it["owner"], &it["mode"]),
        (&"me".into(), &"exclusive".into())
    );
    assert_eq!(it["note"], "all the rows");
    assert_eq!(it["fence"], lock["fence"]);
    let left = it["expires_in_ms"].as_i64().unwrap();
    assert!((1..=600_000).contains(&left), "{left}");

    let table = place.leasehold(["ls"]);
    let lines: Vec<_> = table.with(0).lines().collect();
    let heads: Vec<_> = lines[0]
        .split("  ")
        .map(str::trim)
        .filter(|it| !it.is_empty())
        .collect();
    assert_eq!(
        heads,
        [
            "KEY",
            "MODE",
            "HOLDER",
            "SINCE",
            "EXPIRES IN",
            "FENCE",
            "NOTE"
        ]
    );
    for cell in ["held one", "exclusive", "me", "all the rows"] {
        assert!(lines[1].contains(cell), "{lines:?}");
    }
    let keys = |words: &[&str]| {
        let words = ["ls", "--json"].iter().chain(words);
        let ended = super::run(place.command(words));
        let locks: serde_json::Value = serde_json::from_str(ended.with(0)).unwrap();
        let keys = locks
            .as_array()
            .unwrap()
            .iter()
            .map(|lock| lock["key"].to_string());
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&["--owner", "me"]), "\"held one\"");
    assert_eq!(keys(&["--owner", "somebody else"]), "");
    assert_eq!(keys(&["--prefix", "held"]), "\"held one\"");
    assert_eq!(keys(&["--prefix", "other"]), "");

    let refused = place.leasehold(["run", "held one", "--", "echo", "never"]);
    let said = refused.saying(75);
    assert!(said.contains("held one is held by me"), "{said}");
    assert_eq!(refused.out, "");
    let done = place.leasehold([
        "run",
        "held one",
        "--on-held",
        "exit-0",
        "--",
        "echo",
        "never",
    ]);
    assert_eq!(done.with(0), "");

    let mut waiting = place.start(["run", "held one", "--wait", "10m", "--", "echo", "my turn"]);
    assert_eq!(holder.finish(), (0, "done".to_owned()));
    assert_eq!(waiting.wait(), (0, "my turn".to_owned()));
}

fn several_share_a_key(place: &Place) {
    let hold = |options: [&str; 2]| {
        let words = ["shared one", "--ttl", "10m", options[0], options[1]];
        place.hold(
            words.map(|word| if word.is_empty() { "--shared" } else { word }),
            "cat",
        )
    };
    let readers = [hold(["", "--owner=a"]), hold(["", "--owner=b"])];
    let lock = place.json(["inspect", "shared one", "--json"]);
    let owners = lock["holders"].as_array().unwrap().iter();
    let owners: BTreeSet<_> = owners.map(|it| it["owner"].as_str().unwrap()).collect();
    assert_eq!(owners, BTreeSet::from(["a", "b"]));
    place
        .leasehold(["run", "shared one", "--", "true"])
        .saying(75);
    for reader in readers {
        assert_eq!(reader.finish().0, 0);
    }

    let of_two = || hold(["--permits", "1/2"]);
    let workers = [of_two(), of_two()];
    place
        .leasehold(["run", "shared one", "--permits", "1/2", "--", "true"])
        .saying(75);
    for worker in workers {
        assert_eq!(worker.finish().0, 0);
    }
    let ended = place.leasehold([
        "run",
        "shared one",
        "--permits",
        "2/2",
        "--",
        "echo",
        "both",
    ]);
    assert_eq!(ended.with(0), "both");
}

fn a_key_stays_held_for_its_minimum(place: &Place) {
    let once = ["run", "tick", "--min-hold", "1h", "--", "echo", "once"];
    assert_eq!(place.leasehold(once).with(0), "once");
    place.leasehold(once).saying(75);
    let left = place.json(["inspect", "tick", "--json"])["holders"][0]["expires_in_ms"].as_i64();
    assert!(left > Some(50 * 60_000), "{left:?}");
    // Standard input is not a terminal, so the command cannot ask.
    let said = place.leasehold(["evict", "tick"]);
    assert!(said.saying(2).contains("add --yes"));
    assert!(
        place
            .leasehold(["evict", "tick", "--yes"])
            .with(0)
            .starts_with("tick is free")
    );
    assert_eq!(place.leasehold(once).with(0), "once");
}

fn an_eviction_ends_the_command(place: &Place) {
    // The default grace time of the command is a third of the ttl.
    let grace = |ttl| Duration::from_secs(ttl) / 3;
    // The holder learns of the eviction by its next renewal, at most a second later.
    let script = "trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done";
    keeping_pace(3, |ttl| {
        let mut holder = place.hold_for(ttl, [], script)?;
        place.leasehold(["evict", "job", "--yes"]).with(0);
        // The command ended with 0, but after its lease was lost.
        match holder.wait() {
            (76, told) if told == "told" => Ok(()),
            // The command was killed when its grace time was over.
            (76, told) if told.is_empty() => Err(Late::new("it told nothing", grace(ttl))),
            other => panic!("{other:?}"),
        }
    });
}

fn a_signal_ends_the_command(place: &Place) {
    let mut holder = place.hold(["signalled", "--ttl", "10m"], "exec sleep 600");
    holder.signal(Signal::TERM);
    assert_eq!(holder.wait().0, 143);
    assert_eq!(
        place.json(["inspect", "signalled", "--json"])["held"],
        false
    );
    let mut holder = place.hold(
        ["signalled", "--ttl", "10m"],
        "trap 'echo usr1; exit 5' USR1; echo set; while :; do sleep 0.05; done",
    );
    assert_eq!(holder.line(), "set");
    holder.signal(Signal::USR1);
    assert_eq!(holder.wait(), (5, "usr1".to_owned()));
}

fn changes_are_watched(place: &Place) {
    let words = [
        "watch",
        "--json",
        "--interval",
        "50ms",
        "--prefix",
        "watched",
    ];
    let mut watch = place.start(words);
    let holder = place.hold(["watched", "--owner", "me", "--ttl", "10m"], "cat");
    let event = watch.json();
    assert_eq!(
        (&event["event"], &event["key"]),
        (&"held".into(), &"watched".into())
    );
    assert_eq!(event["owner"], "me");
    assert_eq!(holder.finish().0, 0);
    let gone = watch.json();
    assert_eq!(
        (&gone["event"], &gone["lease"]),
        (&"gone".into(), &event["lease"])
    );

    let mut lines = place.start(["watch", "--interval", "50ms", "--prefix", "watched"]);
    let other = place.hold(["watched too", "--owner", "me", "--ttl", "10m"], "cat");
    let line = lines.line();
    assert!(
        line.starts_with("held watched too exclusive me fence "),
        "{line}"
    );
    for watch in [&mut watch, &mut lines] {
        watch.signal(Signal::INT);
        assert_eq!(watch.end().signal(), Some(2));
    }
    drop(other);
}

fn purged_locks_are_gone(place: &Place) {
    place.leasehold(["run", "purged", "--", "true"]).with(0);
    // A search may not see the newest document yet.
    let purge = || {
        place
            .leasehold(["purge", "--older-than", "0s"])
            .with(0)
            .to_owned()
    };
    let mut removed = 0;
    while place.json(["ls", "--all", "--prefix", "purged", "--json"]) != serde_json::json!([]) {
        let text = purge();
        removed += text
            .strip_prefix("removed ")
            .unwrap()
            .parse::<u32>()
            .unwrap();
        thread::yield_now();
    }
    assert!(removed > 0);
}

/// Processes that a command leaves behind in its group would go on without a lease.
#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let place = Place::file();
    let script = "sleep 600 & echo $!";
    let ended = place.leasehold(["run", "job", "--", "sh", "-c", script]);
    let pid = ended.with(0);
    assert!(!super::kills::is_there(pid), "{pid} is there");
}

/// The command would otherwise keep the connection of its supervisor open, or could write to it.
#[test]
fn the_command_has_no_open_files_but_those_that_leasehold_got() {
    let place = Place::file();
    let script = "ls -l /proc/self/fd | sed 's/.* \\([0-9]* -> \\)/\\1/'";
    let open = |mut command: Command| {
        command.stdin(Stdio::piped());
        let files = super::run(command).with(0).to_owned();
        assert!(!files.contains("socket:"), "{files}");
        let numbers = files.lines().filter_map(|line| line.split_once(" -> "));
        numbers
            .map(|(number, _)| number.to_owned())
            .collect::<Vec<_>>()
    };
    let mut direct = Command::new("sh");
    direct.args(["-c", script]);
    let run = ["run", "job", "--", "sh", "-c", script];
    assert_eq!(open(place.command(run)), open(direct));
}

#[test]
fn the_input_of_the_command_is_that_of_leasehold() {
    use std::io::Write;

    let place = Place::file();
    let mut going: Going = place.start(["run", "job", "--", "tr", "a-z", "A-Z"]);
    going
        .child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"text\n")
        .unwrap();
    assert_eq!(going.finish(), (0, "TEXT".to_owned()));
}

//! `--tick` and `--every`: a tick that has ended with success is not run again.

use std::{io::Read, process::Stdio};

use leasehold_tests::engine::Engine;
use rustix::process::Signal;
use serde_json::Value;

use super::{Going, Place};

#[test]
fn a_tick_that_has_ended_well_is_not_run_again() {
    let place = Place::file();
    {
        let run = |tick: &'static str, script: &'static str| {
            place.leasehold(["run", "report", "--tick", tick, "--", "sh", "-c", script])
        };
        // After any other code than 0, the tick is not done.
        assert_eq!(run("2025-11-24", "echo failed; exit 3").with(3), "failed");
        assert_eq!(run("2025-11-24", "echo ran").with(0), "ran");
        let again = run("2025-11-24", "echo again");
        assert_eq!(again.with(0), "");
        assert!(
            again.err.contains("2025-11-24 was done by"),
            "{}",
            again.err
        );
        assert_eq!(run("2025-11-25", "echo next").with(0), "next");

        let state = place.json(["inspect", "report", "--json"]);
        assert_eq!(state["done"]["tick"], "2025-11-25");
        assert_eq!(state["held"], false);
        let shown = place.leasehold(["ls", "--all"]);
        assert!(shown.with(0).contains("done: 2025-11-25"), "{}", shown.out);
    }
}

/// A migration that is merged late must not look as if it had run.
#[test]
fn a_tick_before_the_newest_done_one_has_a_code_of_its_own() {
    let every_dialect = [
        Place::file(),
        Place::on(Engine::MongoDb),
        Place::on(Engine::Elasticsearch),
        Place::on(Engine::OpenSearch),
    ];
    for place in every_dialect {
        place.leasehold(["prepare"]).with(0);
        let run = |key: &str, tick: &str| {
            place.leasehold(["run", key, "--tick", tick, "--", "echo", "ran"])
        };
        assert_eq!(run("migrate", "1.5.0").with(0), "ran");
        let late = run("migrate", "1.4.0");
        let said = late.saying(65);
        let expected =
            "migrate: 1.4.0 is left out, because a later tick is done: 1.5.0 was done by";
        assert!(said.contains(expected), "{said}");
        assert_eq!(late.out, "");
        assert_eq!(run("migrate", "1.5.0").with(0), "");
        // With a key for each version each of them runs, whatever the order.
        for version in ["1.5.0", "1.4.0"] {
            let key = format!("migrate/{version}");
            assert_eq!(run(&key, version).with(0), "ran");
            assert_eq!(run(&key, version).with(0), "");
        }
    }
}

#[test]
fn a_key_is_shown_with_the_tick_that_is_done() {
    let place = Place::file();
    let run = |tick, kept_for| {
        let words = ["run", "report", "--tick", tick, "--kept-for", kept_for];
        let words = words
            .into_iter()
            .chain(["--owner", "host-7\n", "--", "true"]);
        super::run(place.command(words)).with(0).to_owned()
    };
    run("2025-11-24", "10d");
    let (date, until) = {
        let done = place.json(["inspect", "report", "--json"])["done"].take();
        let date = |name: &str| done[name].as_str().unwrap()[..19].to_owned();
        (date("at"), date("until"))
    };
    let line =
        format!("2025-11-24 was done by host-7\\n at {date}Z, and is remembered until {until}Z");
    let free = place.leasehold(["inspect", "report"]);
    assert!(free.with(1).starts_with("report is free"), "{}", free.out);
    assert_eq!(free.out.lines().nth(1), Some(&*line));

    let holder = place.hold(["report", "--tick", "2025-11-25"], "cat");
    let held = place.leasehold(["inspect", "report"]);
    let lines: Vec<_> = held.with(0).lines().collect();
    assert_eq!(lines.len(), 3, "{}", held.out);
    assert!(lines[1].contains("exclusive"), "{}", held.out);
    assert_eq!(lines[2], line);
    assert_eq!(holder.finish().0, 0);

    run("2025-11-26", "99999999d");
    let kept = place.leasehold(["inspect", "report"]);
    assert!(
        kept.with(1).ends_with("and is remembered for ever"),
        "{}",
        kept.out
    );
}

#[test]
fn a_command_gets_the_tick_that_it_runs_for() {
    let place = Place::file();
    let script = "echo ${LEASEHOLD_TICK-none}";
    let run = |words: &[&str]| {
        let words = ["run", "report"].iter().chain(words);
        let mut command = place.command(words.chain(&["--", "sh", "-c", script]));
        command.env("LEASEHOLD_TICK", "of another run");
        super::run(command).with(0).to_owned()
    };
    assert_eq!(run(&[]), "none");
    assert_eq!(run(&["--every", "80000d"]), "1970-01-01T00:00:00Z");
    assert_eq!(
        run(&["--tick", "2025-11-24T03:00:00Z"]),
        "2025-11-24T03:00:00Z"
    );
}

#[test]
fn a_tick_that_runs_is_told_as_a_key_that_is_held() {
    let place = Place::file();
    let runs = place.hold(["report", "--tick", "7"], "read line; exit 0");
    let run = |words: &[&'static str]| {
        let all = ["run", "report", "--tick", "7"].iter().chain(words);
        super::run(place.command(all.copied().chain(["--", "echo", "again"])))
    };
    let refused = run(&[]);
    assert!(refused.saying(75).contains("is held by"), "{}", refused.err);
    assert_eq!(run(&["--on-held", "exit-0"]).with(0), "");
    assert_eq!(runs.finish().0, 0);
    assert_eq!(run(&[]).with(0), "");
}

#[test]
fn a_command_that_was_asked_to_end_has_not_done_its_tick() {
    let place = Place::file();
    let script = "trap 'exit 0' TERM; echo armed; while :; do sleep 0.05; done";
    let script = format!("echo ready; {script}");
    let words = ["run", "report", "--tick", "7", "--", "sh", "-c", &script];
    let mut command = place.command(words);
    command.stderr(Stdio::piped());
    let mut runs = Going::of(command);
    assert_eq!(runs.line(), "ready");
    assert_eq!(runs.line(), "armed");
    runs.signal(Signal::TERM);
    assert_eq!(runs.wait().0, 143);
    let mut said = String::new();
    let mut pipe = runs.child.stderr.take().unwrap();
    pipe.read_to_string(&mut said).unwrap();
    let message = "leasehold: report: 7 is not done, because signal 15 asked the command to end";
    // The shell may report the end of its `sleep`.
    assert_eq!(said.lines().last(), Some(message));
    assert_eq!(
        place.json(["inspect", "report", "--json"])["done"],
        Value::Null
    );
    let again = place.leasehold(["run", "report", "--tick", "7", "--", "echo", "again"]);
    assert_eq!(again.with(0), "again");
}

/// Without a tick no work remains undone, so the exit code is that of the command.
#[test]
fn a_command_without_a_tick_may_end_well_when_it_is_asked_to() {
    let place = Place::file();
    let script = "trap 'exit 0' TERM; echo armed; while :; do sleep 0.05; done";
    let mut runs = place.hold(["report"], script);
    assert_eq!(runs.line(), "armed");
    runs.signal(Signal::TERM);
    assert_eq!(runs.wait().0, 0);
}

#[test]
fn a_period_is_counted_by_the_clock_of_the_store() {
    let place = Place::file();
    // A period that does not end during the test: some 200 years.
    let run = || place.leasehold(["run", "report", "--every", "80000d", "--", "echo", "ran"]);
    assert_eq!(run().with(0), "ran");
    assert_eq!(run().with(0), "");
    let state = place.json(["inspect", "report", "--json"]);
    assert_eq!(state["done"]["tick"], "1970-01-01T00:00:00Z");
}

/// Once a tick is done, no earlier tick runs.
#[test]
fn a_tick_that_is_far_ahead_is_refused() {
    let place = Place::file();
    for tick in ["9036-11-24", "9036-11-24T03:00:00Z"] {
        let ended = place.leasehold(["run", "report", "--tick", tick, "--", "echo", "never"]);
        assert!(
            ended
                .saying(2)
                .contains("two days ahead of this host's clock"),
            "{}",
            ended.err
        );
        assert_eq!(ended.out, "");
    }
    // A number and a version are not times.
    for (key, tick) in [("number", "90361124"), ("version", "9036.11.24")] {
        let ended = place.leasehold(["run", key, "--tick", tick, "--", "echo", "ran"]);
        assert_eq!(ended.with(0), "ran");
    }
}

#[test]
fn what_is_no_tick_is_refused() {
    let place = Place::file();
    for words in [
        ["--tick", "daily"],
        ["--every", "1ms"],
        ["--kept-for", "7d"],
    ] {
        let [option, value] = words;
        let ended = place.leasehold(["run", "report", option, value, "--", "echo", "never"]);
        ended.saying(2);
        assert_eq!(ended.out, "");
    }
    place
        .leasehold(["run", "report", "--tick", "1", "--", "true"])
        .with(0);
    let other = place.leasehold(["run", "report", "--tick", "1.2.3", "--", "echo", "never"]);
    assert!(
        other.saying(2).contains("use ticks of one kind"),
        "{}",
        other.err
    );
}

/// The years of RFC 3339 have four digits.
#[test]
fn what_is_remembered_for_ever_has_no_end_in_json() {
    let place = Place::file();
    for (key, kept_for, is_shown) in [("report", "30d", true), ("migration", "9000years", false)] {
        let run = [
            "run",
            key,
            "--tick",
            "7",
            "--kept-for",
            kept_for,
            "--",
            "true",
        ];
        place.leasehold(run).with(0);
        let done = &place.json(["inspect", key, "--json"])["done"];
        assert_eq!(done["until"].is_string(), is_shown, "{done}");
        assert_eq!(done["until"].is_null(), !is_shown, "{done}");
    }
}

//! `--max-hold`: a command that hangs does not hold the key for ever.

use std::time::{Duration, Instant};

use super::{
    Place,
    pace::{Late, keeping_pace},
};

#[test]
fn a_command_that_hangs_is_ended_when_its_key_was_held_for_long_enough() {
    let place = Place::file();
    let hangs = "trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done";
    keeping_pace(2, |ttl| {
        let [time, longest] = [ttl, 2 * ttl].map(|seconds| format!("{seconds}s"));
        let start = Instant::now();
        let ended = place.leasehold([
            "run",
            "job",
            "--ttl",
            &time,
            "--max-hold",
            &longest,
            "--",
            "sh",
            "-c",
            hangs,
        ]);
        let said = ended.saying(76);
        if !said.contains("held for its --max-hold") {
            return Err(Late::new(said, Duration::from_secs(ttl) / 2));
        }
        assert!(start.elapsed() > Duration::from_secs(ttl), "too soon");
        if ended.out.trim() != "told" {
            // The command was killed when its grace time was over.
            return Err(Late::new("it told nothing", Duration::from_secs(ttl) / 3));
        }
        assert_eq!(place.json(["inspect", "job", "--json"])["held"], false);
        Ok(())
    });
}

#[test]
fn one_that_ends_before_is_left_alone() {
    let place = Place::file();
    let run = ["run", "job", "--max-hold", "1h", "--", "echo", "done"];
    assert_eq!(place.leasehold(run).with(0), "done");
}

#[test]
fn one_below_the_ttl_is_refused() {
    let place = Place::file();
    let ended = place.leasehold(["run", "job", "--max-hold", "29s", "--", "echo", "never"]);
    let said = ended.saying(2);
    assert!(said.contains("at least the ttl of 30s"), "{said}");
    assert_eq!(ended.out, "");
}

//! Clocks of the store that are ahead, or were.

use chrono::Utc;
use leasehold::store::{LeaseId, SCHEMA};
use leasehold_tests::sentence::LONGEST;
use rusqlite::Connection;
use serde_json::json;

use super::Place;

const DAY: i64 = 24 * 60 * 60 * 1_000;

fn connect(place: &Place) -> Connection {
    assert_eq!(place.leasehold(["prepare"]).code, 0);
    Connection::open(place.0.trim_start_matches("file:")).unwrap()
}

/// The holder was granted the key with a ttl of 10 s, by a clock that was a day ahead, and is dead.
#[test]
fn a_key_that_is_held_until_a_time_that_no_ttl_explains_is_named() {
    let place = Place::file();
    let at = Utc::now().timestamp_millis() + DAY;
    let document = json!({
        "schema": SCHEMA, "fence": 7, "lease": LeaseId::random().to_string(), "owner": "host-7",
        "acquired_at": at, "expires_at": at + 10_000,
    });
    let insert = "INSERT INTO locks (name, document) VALUES ('nightly', ?)";
    let connection = connect(&place);
    connection.execute(insert, [document.to_string()]).unwrap();
    drop(connection);

    let words = "a time that no ttl explains: the server's clock was ahead";
    for command in [&["ls"][..], &["inspect", "nightly"]] {
        let ended = super::run(place.command(command));
        assert!(ended.with(0).contains("clock was ahead"), "{}", ended.all());
        let said = ended.saying(0);
        assert!(said.contains(words), "{said}");
        assert!(said.contains("leasehold evict nightly"), "{said}");
    }
    let held = place.json(["inspect", "nightly", "--json"]);
    assert_eq!(held["holders"][0]["clock_was_ahead"], true, "{held:#}");

    let doctor = |place: &Place| {
        let found = place.json(["doctor", "--json"]);
        let findings = found["findings"].as_array().unwrap();
        let mut of_expiries = findings.iter().filter(|it| it["what"] == "expiries");
        of_expiries.next().unwrap().clone()
    };
    let found = doctor(&place);
    assert_eq!(found["grade"], "mind", "{found:#}");
    assert_eq!(found["value"]["clock_was_ahead"], json!(["nightly"]));
    assert!(found["text"].as_str().unwrap().contains(words), "{found:#}");

    let refused = place.leasehold(["run", "nightly", "--", "true"]);
    assert!(refused.saying(75).contains(words), "{}", refused.all());

    assert_eq!(place.leasehold(["evict", "nightly", "--yes"]).code, 0);
    assert_eq!(doctor(&place)["grade"], "good");
}

/// The clock of a file that was once made with a wrong time of day stays ahead.
#[test]
fn a_tick_by_a_clock_that_is_ahead_is_told() {
    let place = Place::file();
    let connection = connect(&place);
    let run = |key| place.leasehold(["run", key, "--every", "1h", "--", "true"]);
    let ended = run("nightly");
    assert_eq!(ended.saying(0), "", "{}", ended.all());
    let ahead = "UPDATE clock SET base = base + ?1, last = last + ?1";
    // With half an hour more it is told as 1d00h, also if the command is slow.
    let by = DAY + 30 * 60_000;
    connection.execute(ahead, [by]).unwrap();
    let remedy = "to run earlier, use another key";
    // The last key was never locked.
    for key in ["nightly", "hourly"] {
        let ended = run(key);
        let said = ended.saying(0);
        assert!(said.contains("1d00h ahead of this host's"), "{said}");
        assert!(said.contains("correct the one that is wrong"), "{said}");
        assert!(said.ends_with(remedy), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.chars().count() <= LONGEST, "{said}");
    }
    // Now the clock goes back. No host could do this with Linux's clock.
    connection.execute(ahead, [-by]).unwrap();
    for key in ["nightly", "hourly"] {
        let ended = run(key);
        let said = ended.saying(65);
        assert!(said.contains("has not begun yet"), "{said}");
        assert!(said.contains(remedy), "{said}");
    }
}

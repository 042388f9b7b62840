//! Leases that last over several commands, and evictions of one holder.

use std::fs::File;

use rustix::process::Signal;
use serde_json::Value;

use super::{Engine, Place, run, until};

#[test]
fn a_lease_lasts_over_several_commands() {
    on(&Place::file());
    on(&Place::on(Engine::MongoDb));
}

fn on(place: &Place) {
    let acquire = ["acquire", "deploy", "--ttl", "1h", "--owner", "pipeline 7"];
    let acquired = place.leasehold(acquire);
    let ticket = acquired.with(0).to_owned();
    let held = place.leasehold(acquire);
    assert!(held.saying(75).contains("deploy is held by pipeline 7"));

    let renewed = place.leasehold(["renew", &ticket]);
    assert_eq!(renewed.with(0), "deploy is held for another 1h00m");
    place.leasehold(["release", &ticket]).with(0);
    assert_eq!(holders(place), Vec::<Value>::new());
    for task in ["renew", "release"] {
        let lost = place.leasehold([task, &ticket]);
        assert!(lost.saying(76).contains("the lease on deploy is lost"));
        let wrong = place.leasehold([task, "7"]);
        assert!(wrong.saying(2).contains("this is no ticket"));
    }
    // The key of a lost ticket is not taken from its next holder.
    let next = place.leasehold(acquire).with(0).to_owned();
    place.leasehold(["release", &ticket]).saying(76);
    assert_eq!(holders(place).len(), 1);
    place.leasehold(["release", &next]).with(0);
}

/// A command that was started again after a crash need not wait for the lease of the first one.
#[test]
fn an_owner_takes_over_its_own_lease() {
    let place = Place::file();
    let ticket = |more: &[&str]| {
        let acquire = ["acquire", "deploy", "--ttl", "1h"];
        run(place.command([&acquire, more].concat()))
    };
    let old = ticket(&["--owner", "w1"]).with(0).to_owned();
    ticket(&["--owner", "w1"]).saying(75);
    ticket(&["--owner", "w2", "--take-over"]).saying(75);
    ticket(&["--take-over"]).saying(2);
    let again = [
        "run",
        "deploy",
        "--ttl",
        "1h",
        "--owner",
        "w1",
        "--take-over",
        "--",
        "echo",
        "ran",
    ];
    assert_eq!(place.leasehold(again).with(0), "ran");
    place.leasehold(["release", &old]).saying(76);
    assert_eq!(holders(&place), Vec::<Value>::new());
}

#[test]
fn a_lease_whose_ticket_cannot_be_printed_is_released() {
    let place = Place::file();
    let mut acquire = place.command(["acquire", "deploy", "--ttl", "1h"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ended = acquire.stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{said}");
    assert!(said.contains("so the lease is released"), "{said}");
    assert_eq!(holders(&place), Vec::<Value>::new());
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let place = Place::file();
    let holder = place.hold(["deploy"], "cat");
    let waiters = || place.json(["inspect", "deploy", "--json"])["waiters"].clone();
    let mut waiting = place.start(["acquire", "deploy", "--ttl", "1h", "--wait", "1h"]);
    until(|| (waiters().as_array()?.len() == 1).then_some(()));
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.wait(), (143, String::new()));
    assert_eq!(waiters(), Value::Array(Vec::new()));
    assert_eq!(holder.finish().0, 0);
    assert_eq!(holders(&place), Vec::<Value>::new());
}

#[test]
fn an_eviction_takes_the_key_from_the_named_holder_only() {
    let place = &Place::file();
    let acquire = |owner| {
        let words = [
            "acquire", "deploy", "--ttl", "1h", "--shared", "--owner", owner,
        ];
        place.leasehold(words).with(0);
    };
    let evict = |option, value| place.leasehold(["evict", "deploy", "--yes", option, value]);
    for owner in ["one", "two", "three", "four"] {
        acquire(owner);
    }
    let of = |owner: &str, field: &str| {
        let held = holders(place);
        let holder = held.into_iter().find(|it| it["owner"] == owner).unwrap();
        holder[field].to_string().replace('"', "")
    };
    assert!(
        evict("--owner", "nobody")
            .with(1)
            .contains("another holder")
    );
    let (lease, fence) = (of("two", "lease"), of("three", "fence"));
    for (option, value, owner) in [
        ("--owner", "one", "one"),
        ("--lease", &lease, "two"),
        ("--fence", &fence, "three"),
    ] {
        let evicted = evict(option, value);
        let said = format!("{owner} lost deploy, which others hold");
        assert_eq!(evicted.with(0), said);
        assert!(evict(option, value).with(1).contains("another holder"));
    }
    let left = evict("--owner", "four");
    assert_eq!(left.with(0), "deploy is free: four lost it");
    assert_eq!(evict("--owner", "four").with(1), "deploy is free");
}

fn holders(place: &Place) -> Vec<Value> {
    let lock = place.json(["inspect", "deploy", "--json"]);
    lock["holders"].as_array().cloned().unwrap_or_default()
}

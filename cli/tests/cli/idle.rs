//! Holders that keep a key and do not use it.

use std::time::Duration;

use chrono::DateTime;
use leasehold::{
    Key, SqliteStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, RenewAnswer, RenewRequest, Usage},
};

use super::Place;

const TTL: Duration = Duration::from_secs(600);

/// Acquires a key, and tells the store that one of its two holders does not use it. A program that uses the library
/// does the same.
#[tokio::main(flavor = "current_thread")]
async fn hold(place: &Place) {
    let path = place.0.strip_prefix("file:").unwrap();
    let store = SqliteStore::open(path).await.unwrap();
    let key = Key::new("job").unwrap();
    for (owner, usage) in [("busy", Usage::InUse), ("idle", Usage::Idle)] {
        let lease = LeaseId::random();
        let request = AcquireRequest::exclusive(key.clone(), lease, owner.into(), TTL).shared();
        let answer = store.acquire(&request).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
        let renewal = RenewRequest::new(key.clone(), lease, TTL).usage(usage);
        let answers = store.renew(&[renewal]).await.unwrap();
        assert!(matches!(answers[..], [Ok(RenewAnswer::Renewed(_))]));
    }
}

#[test]
fn a_holder_that_is_idle_is_shown() {
    let place = Place::file();
    hold(&place);
    for words in [["ls", "--prefix", "job"].as_slice(), &["inspect", "job"]] {
        let table = super::run(place.command(words));
        let lines: Vec<_> = table.with(0).lines().skip(1).collect();
        let [busy, idle] = &lines[..] else {
            panic!("{words:?} shows {lines:?}");
        };
        assert!(!busy.contains("shared, idle"), "{busy}");
        assert!(idle.contains("shared, idle "), "{idle}");
    }
    let listed = place.json(["ls", "--json"]);
    for lock in [place.json(["inspect", "job", "--json"]), listed[0].clone()] {
        let [busy, idle] = &lock["holders"].as_array().unwrap()[..] else {
            panic!("{lock}");
        };
        assert!(busy["idle_since"].is_null(), "{busy}");
        let time = |value: &serde_json::Value| {
            DateTime::parse_from_rfc3339(value.as_str().unwrap()).unwrap()
        };
        let since = time(&idle["idle_since"]);
        assert!(
            time(&idle["acquired_at"]) <= since && since <= time(&lock["now"]),
            "{lock}"
        );
    }
}

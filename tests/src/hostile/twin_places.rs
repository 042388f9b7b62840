//! A place that stands twice in a document.

use std::time::{Duration, Instant};

use leasehold::{
    Key, Place, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use serde_json::{Value, json};

use super::{KEY, OTHER, OWNER, TTL, at, flat};

/// If a process has two places, its refusal writes nothing if one of them has enough of its time left. Otherwise both
/// get more time.
///
/// `put` writes the document of [`KEY`].
pub async fn are_judged_as_the_rules_say(store: &dyn Store, put: impl AsyncFn(&Value)) {
    // The first two times are in seconds: until when the two places count, and for how long the request wants its place
    // to count.
    for (until, counts_for, are_kept) in [
        ([20, 50], 25, true),
        ([50, 20], 25, true),
        ([20, 40], 60, false),
        ([40, 20], 60, false),
    ] {
        let counts_for = Duration::from_secs(counts_for);
        while !is_judged(store, &put, until, counts_for, are_kept).await {}
    }
}

/// Returns whether the machine was fast enough to tell.
async fn is_judged(
    store: &dyn Store,
    put: impl AsyncFn(&Value),
    until: [i64; 2],
    counts_for: Duration,
    are_kept: bool,
) -> bool {
    let start = Instant::now();
    let place = |until| {
        json!({
            "waiter": OTHER, "owner": OWNER, "mode": "exclusive", "permits": 1,
            "since": at(-5), "until": at(until),
        })
    };
    let mut document = flat();
    document["waiters"] = json!(until.map(place));
    put(&document).await;
    let key = Key::new(KEY).unwrap();
    let places = async || store.inspect(&key).await.unwrap().unwrap().waiters;
    let before = places().await;
    let waiter = LeaseId::parse(OTHER).unwrap();
    let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), OWNER.into(), TTL);
    let request = request.turn(Turn::in_turn(waiter, counts_for));
    let answer = store.acquire(&request).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
    let after = places().await;
    if start.elapsed() > Duration::from_secs(10) {
        return false;
    }
    let is_later = |(before, after): (&Place, &Place)| after.until > before.until;
    let pairs = before.iter().zip(&after);
    let changed: Vec<_> = pairs.map(is_later).collect();
    assert_eq!(changed, [!are_kept; 2], "{until:?}: {after:?}");
    store.leave(&key, waiter).await.unwrap();
    assert_eq!(places().await, []);
    true
}

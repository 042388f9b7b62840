//! Documents with values in the place of the waiting processes that no store writes: which of them count.

use futures::future::join_all;
use leasehold::{
    Key, Store,
    rules::turn::MAX_BIND_TIME,
    store::{AcquireAnswer, AcquireRequest, BatchAnswer, BatchRequest, LeaseId, Turn},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{BOTH, Engine, Fixture, ask, granted},
    GONE, STAYS, in_turn, lock, now, place, put, refused, stored, waiters,
};

/// Values of the field `waiters` in which no place counts.
fn without_places() -> Vec<Value> {
    let mut values = vec![
        json!(null),
        json!([]),
        json!({}),
        json!(7),
        json!(true),
        json!("they"),
        json!([null, 7, "they", [], [[]], {}]),
        // These are no lists of places.
        place(json!({})),
        json!([[place(json!({}))]]),
    ];
    let nothing = [
        json!(null),
        json!(true),
        json!(""),
        json!([]),
        json!({}),
        json!([7]),
    ];
    for field in ["waiter", "mode", "permits", "since", "until"] {
        let all = nothing
            .iter()
            .map(|nothing| json!([place(json!({ field: nothing }))]));
        values.extend(all);
    }
    for changes in [
        json!({ "waiter": GONE.replace('4', "A") }),
        json!({ "waiter": GONE.replace('-', "") }),
        json!({ "waiter": format!("{GONE}\n") }),
        json!({ "waiter": [GONE] }),
        json!({ "mode": "SHARED" }),
        json!({ "mode": ["shared"] }),
        json!({ "permits": 1.0 }),
        json!({ "permits": 1.5 }),
        json!({ "permits": "1" }),
        json!({ "permits": u64::MAX }),
        json!({ "since": now().to_string() }),
        json!({ "until": (now() + 50_000).to_string() }),
        json!({ "until": now() }),
        json!({ "until": -1e300 }),
        // The place ends later than a place can.
        json!({ "until": now() + 600_000 }),
        json!({ "until": 1e300 }),
        json!({ "until": u64::MAX }),
    ] {
        values.push(json!([place(changes)]));
    }
    values
}

/// Values of the field in which one place counts.
fn with_a_place() -> Vec<Value> {
    let dead = place(json!({ "until": now() }));
    let mut values = vec![
        json!([place(json!({})), dead]),
        json!([7, dead, {}, place(json!({}))]),
    ];
    for changes in [
        json!({ "owner": null }),
        json!({ "owner": 7 }),
        json!({ "until": (now() + 50_000) as f64 }),
        json!({ "until": (now() + 50_000) as f64 + 0.5 }),
        json!({ "since": -1e300 }),
        json!({ "since": u64::MAX }),
        json!({ "since": 7.5 }),
        json!({ "mode": "permits", "permits": -1 }),
        json!({ "mode": "permits", "permits": i64::MAX }),
        json!({ "of": "a later version" }),
    ] {
        values.push(json!([place(changes)]));
    }
    values
}

/// The answers to the request alone, in a batch, and as one that is likely to be refused.
async fn answers(
    fixture: &Fixture,
    store: &dyn Store,
    document: impl Fn() -> Value,
    request: &AcquireRequest,
) -> Vec<AcquireAnswer> {
    put(fixture, &document()).await;
    let mut answers = vec![store.acquire(request).await.unwrap()];
    put(fixture, &document()).await;
    let fresh = request.clone().fresh().likely_held();
    answers.push(store.acquire(&fresh).await.unwrap());
    put(fixture, &document()).await;
    let mut other = ask();
    other.key = Key::new(format!("other {}", other.lease)).unwrap();
    let batch = [request.clone().fresh(), other].map(|it| BatchRequest::Acquire(it.into()));
    match &store.batch(&batch).await.unwrap()[..] {
        [Ok(BatchAnswer::Acquire(answer)), _] => answers.push(answer.clone()),
        other => panic!("{other:?}"),
    }
    answers
}

#[tokio::test]
async fn what_is_no_place_that_counts_keeps_nobody_from_a_key() {
    join_all(BOTH.map(what_is_no_place_keeps_nobody_on)).await;
}

async fn what_is_no_place_keeps_nobody_on(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let store = fixture.store();
    for value in without_places() {
        put(&fixture, &lock(&value, true)).await;
        assert_eq!(waiters(&store).await, [], "{value}");
        for (request, is_free) in [
            (ask(), true),
            (ask().shared(), true),
            (ask().shared(), false),
        ] {
            let answers = answers(&fixture, &store, || lock(&value, is_free), &request).await;
            for answer in answers {
                let is_granted = matches!(answer, AcquireAnswer::Granted(_));
                assert!(is_granted, "{value}: {answer:?}");
            }
            let (document, _) = stored(&fixture).await;
            let left = document["waiters"].as_array().is_none_or(Vec::is_empty);
            assert!(left, "{value}: {document}");
        }
        // A process that comes to wait is the only one in the queue.
        put(&fixture, &lock(&value, false)).await;
        let waiter = LeaseId::random();
        let held = refused(&store, &in_turn(waiter, STAYS)).await;
        assert_eq!(held.ahead(), 0, "{value}");
        assert_eq!(waiters(&store).await, [waiter], "{value}");
        let (document, _) = stored(&fixture).await;
        assert_eq!(document["waiters"].as_array().unwrap().len(), 1, "{value}");
        // A process that is not in the queue has no place to leave.
        put(&fixture, &lock(&value, false)).await;
        let before = stored(&fixture).await;
        let gone = LeaseId::parse(GONE).unwrap();
        let is_there = value.to_string().contains(&format!("\"{GONE}\""));
        if !is_there {
            store.leave(&ask().key, gone).await.unwrap();
            assert_eq!(stored(&fixture).await, before, "{value}");
        }
    }
}

#[tokio::test]
async fn what_is_a_place_that_counts_keeps_others_from_a_key() {
    join_all(BOTH.map(what_is_a_place_keeps_others_on)).await;
}

async fn what_is_a_place_keeps_others_on(engine: Engine) {
    let fixture = Fixture::prepared(engine).await;
    let store = fixture.store();
    let gone = LeaseId::parse(GONE).unwrap();
    for number in 0..with_a_place().len() {
        let value = with_a_place().swap_remove(number);
        put(&fixture, &lock(&value, false)).await;
        let before = stored(&fixture).await;
        assert_eq!(waiters(&store).await, [gone], "{value}");
        let held = refused(&store, &ask().shared()).await;
        assert_eq!((held.ahead(), held.holders().len()), (1, 1), "{value}");
        assert_eq!(stored(&fixture).await, before, "{value}");
        for request in [ask(), ask().shared()] {
            loop {
                let start = Instant::now();
                let answers = answers(&fixture, &store, || lock(&value, true), &request).await;
                // The key is kept only for a moment.
                if start.elapsed() > MAX_BIND_TIME {
                    continue;
                }
                for answer in answers {
                    let AcquireAnswer::Held(held) = answer else {
                        panic!("{value}: {answer:?}");
                    };
                    assert_eq!((held.ahead(), held.holders().len()), (1, 0), "{value}");
                    let binds = held.binds_for();
                    assert!(
                        !binds.is_zero() && binds <= MAX_BIND_TIME,
                        "{value}: {binds:?}"
                    );
                }
                break;
            }
            let barging = request.clone().turn(Turn::Barging);
            granted(&store, &barging).await;
            assert_eq!(waiters(&store).await, [gone], "{value}");
        }
        put(&fixture, &lock(&value, false)).await;
        let waiter = LeaseId::random();
        assert_eq!(refused(&store, &in_turn(waiter, STAYS)).await.ahead(), 1);
        assert_eq!(waiters(&store).await, [gone, waiter], "{value}");
        store.leave(&ask().key, gone).await.unwrap();
        assert_eq!(waiters(&store).await, [waiter], "{value}");
        store.leave(&ask().key, waiter).await.unwrap();
        assert_eq!(stored(&fixture).await.0["waiters"], Value::Null, "{value}");
    }
}

//! The documents, and how they have to be judged.

use serde_json::{Value, json};

use leasehold::store::SCHEMA;

use super::{
    Has, KEY, LAST_FENCE, LEASE, Mine, OTHER, OWNER,
    Verdict::{self, Lock, NoLock, OtherVersion},
};

/// The field that marks a time.
const TIME: &str = "seconds from now";

/// A time, this many seconds from now.
pub fn at(seconds: i64) -> Value {
    json!({ TIME: seconds })
}

/// The value, with each of its times replaced by what this function makes of the seconds from now.
pub fn with_times(value: &Value, time: &impl Fn(i64) -> Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get(TIME).and_then(Value::as_i64) {
            Some(seconds) => time(seconds),
            None => {
                let fields = fields.iter();
                let fields = fields.map(|(name, value)| (name.clone(), with_times(value, time)));
                Value::Object(fields.collect())
            }
        },
        Value::Array(values) => values.iter().map(|value| with_times(value, time)).collect(),
        other => other.clone(),
    }
}

/// A lock with one exclusive lease.
pub fn flat() -> Value {
    json!({
        "key": KEY, "schema": SCHEMA, "fence": 7, "lease": LEASE, "owner": OWNER,
        "acquired_at": at(-60), "expires_at": at(6_000),
    })
}

/// A lock with several holders.
pub fn several() -> Value {
    let holder = |lease: &str| {
        json!({
            "lease": lease, "owner": OWNER, "mode": "shared", "permits": 1, "fence": 7,
            "acquired_at": at(-60), "expires_at": at(6_000),
        })
    };
    json!({
        "key": KEY, "schema": SCHEMA, "fence": 7, "expires_at": at(6_000),
        "holders": [holder(LEASE), holder(OTHER)],
    })
}

/// A lock that nobody holds.
pub(super) fn free() -> Value {
    json!({ "key": KEY, "schema": SCHEMA, "fence": 7, "released_at": at(-60) })
}

pub(super) fn with(mut document: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    document
}

pub(super) fn without(mut document: Value, field: &str) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.remove(field);
    }
    document
}

fn with_first(field: &str, value: Value) -> Value {
    let mut document = several();
    document["holders"][0][field] = value;
    document
}

/// A lock with one holder in a list.
pub fn alone() -> Value {
    let mut document = several();
    document["holders"].as_array_mut().map(Vec::pop);
    document
}

/// A lock whose two holders have the same lease. The first of them expires at this time.
fn twins(expires_at: Value) -> Value {
    let mut document = with_first("expires_at", expires_at);
    document["holders"][1]["lease"] = json!(LEASE);
    document
}

fn with_both(field: &str, value: Value) -> Value {
    let mut document = with_first(field, value.clone());
    document["holders"][1][field] = value;
    document
}

/// The shapes that every store can have.
pub fn shapes() -> Vec<(Verdict, Value)> {
    let mut shapes = foreign();
    shapes.extend(damaged());
    shapes.extend(sound_shapes());
    shapes.extend(free_ones());
    shapes.extend(at_the_last_fence());
    shapes
}

/// Documents of other applications, and of other versions.
fn foreign() -> Vec<(Verdict, Value)> {
    vec![
        (NoLock, json!({ "key": KEY })),
        (NoLock, json!({ "key": KEY, "expires_at": at(-60) })),
        (
            NoLock,
            json!({ "key": KEY, "fence": 7, "expires_at": at(6_000) }),
        ),
        (NoLock, without(flat(), "schema")),
        (NoLock, without(several(), "schema")),
        (NoLock, without(free(), "schema")),
        (NoLock, with(flat(), json!({ "schema": "leasehold" }))),
        (NoLock, with(flat(), json!({ "schema": "" }))),
        (
            NoLock,
            with(free(), json!({ "schema": "LEASEHOLD.LOCK.1" })),
        ),
        (
            OtherVersion,
            with(flat(), json!({ "schema": "leasehold.lock.2" })),
        ),
        (
            OtherVersion,
            with(free(), json!({ "schema": "leasehold.lock.10" })),
        ),
        (
            OtherVersion,
            json!({ "key": KEY, "schema": "leasehold.lock.2" }),
        ),
    ]
}

/// Documents of this version that are damaged.
fn damaged() -> Vec<(Verdict, Value)> {
    let documents = [
        // The fence is not valid.
        with(flat(), json!({ "fence": 1_i64 << 53 })),
        with(free(), json!({ "fence": i64::MAX })),
        with(several(), json!({ "fence": i64::MAX })),
        with_first("fence", json!(i64::MAX)),
        // Somebody holds the key, but the document does not say who.
        with(free(), json!({ "expires_at": at(6_000) })),
        without(flat(), "lease"),
        with(flat(), json!({ "lease": "they" })),
        with(flat(), json!({ "lease": "" })),
        with(flat(), json!({ "lease": LEASE.replace('1', "A") })),
        with(flat(), json!({ "lease": format!("{LEASE}\n") })),
        with(flat(), json!({ "lease": LEASE.replace('-', "") })),
        with(flat(), json!({ "lease": LEASE.replace('-', "é") })),
        with_first("lease", json!("they")),
        with_first("lease", Value::Null),
        with_first("mode", json!("intent")),
        with_first("mode", json!("SHARED")),
        with_first("mode", Value::Null),
        with_first("permits", Value::Null),
        with_first("expires_at", Value::Null),
        with(several(), json!({ "holders": Value::Null })),
        with(several(), json!({ "holders": [] })),
        // All holders that the document names have expired.
        with_both("expires_at", at(-60)),
        with(several(), json!({ "expires_at": at(9_000) })),
        // A holder that the document names expires later than the document.
        with(several(), json!({ "expires_at": at(3_000) })),
        with_first("expires_at", at(9_000)),
        with(alone(), json!({ "expires_at": at(3_000) })),
        with_both("expires_at", at(9_000)),
        twins(at(6_000)),
        twins(at(-60)),
    ];
    documents.map(|document| (NoLock, document)).into()
}

/// Locks that somebody holds, as they should be, and with fields in them that decide nothing.
pub fn sound_shapes() -> Vec<(Verdict, Value)> {
    let unowned = |has| Has {
        owned: false,
        ..has
    };
    let of_fence = |has, fence| Has { fence, ..has };
    let over = Has {
        mine: Mine::Over,
        ..Has::BOTH
    };
    let permits = Has {
        mode: "permits",
        ..Has::BOTH
    };
    // If a document has both forms, the one of a single lease counts.
    let holders = several()["holders"].clone();
    vec![
        (Lock(Has::SOLE), flat()),
        (Lock(Has::BOTH), several()),
        (
            Lock(Has {
                other: false,
                ..Has::BOTH
            }),
            alone(),
        ),
        (Lock(permits), with_both("mode", json!("permits"))),
        (Lock(Has::SOLE), with(flat(), json!({ "holders": holders }))),
        (Lock(unowned(Has::SOLE)), without(flat(), "owner")),
        (
            Lock(Has {
                timed: false,
                ..Has::SOLE
            }),
            without(flat(), "acquired_at"),
        ),
        (Lock(of_fence(Has::SOLE, 0)), without(flat(), "fence")),
        (
            Lock(unowned(of_fence(Has::SOLE, 0))),
            without(without(flat(), "fence"), "owner"),
        ),
        (
            Lock(of_fence(Has::SOLE, -7)),
            with(flat(), json!({ "fence": -7, "note": "nightly" })),
        ),
        (Lock(unowned(Has::BOTH)), with_first("owner", Value::Null)),
        (Lock(Has::BOTH), with_first("fence", Value::Null)),
        (Lock(over), with_first("expires_at", at(-60))),
        (Lock(Has::BOTH), with_first("permits", json!(-1))),
    ]
}

/// Locks that nobody holds. What the document says of former holders does not matter to other
/// requests.
fn free_ones() -> Vec<(Verdict, Value)> {
    let of_fence = |has, fence| Has { fence, ..has };
    let past = json!({ "expires_at": at(-1) });
    vec![
        (Lock(Has::NOBODY), free()),
        (
            Lock(of_fence(Has::NOBODY, 0)),
            json!({ "key": KEY, "schema": SCHEMA }),
        ),
        (Lock(Has::NOBODY), without(free(), "released_at")),
        (Lock(Has::NOBODY), with(free(), past.clone())),
        // The clock was set back since the release.
        (
            Lock(Has {
                kept: true,
                ..Has::NOBODY
            }),
            with(free(), json!({ "released_at": at(6_000) })),
        ),
        (Lock(Has::OVER), with(flat(), past.clone())),
        (Lock(Has::OVER), with(several(), past.clone())),
        (Lock(Has::OVER), with(alone(), past.clone())),
        // A person has freed the key, and left the list unchanged.
        (
            Lock(Has::OVER),
            with(with_both("expires_at", at(9_000)), past.clone()),
        ),
        (Lock(Has::OVER), without(flat(), "expires_at")),
        (Lock(Has::OVER), without(several(), "expires_at")),
        (Lock(Has::OVER), without(alone(), "expires_at")),
        (
            Lock(Has::NOBODY),
            with(with(flat(), past.clone()), json!({ "lease": "they" })),
        ),
        (
            Lock(Has::NOBODY),
            with(with_first("mode", json!("intent")), past.clone()),
        ),
        (Lock(Has::NOBODY), with(twins(at(6_000)), past.clone())),
        (Lock(Has::NOBODY), without(twins(at(-60)), "expires_at")),
        (
            Lock(Has::NOBODY),
            with(with(several(), past), json!({ "holders": [] })),
        ),
    ]
}

/// Locks without a fence for another grant.
fn at_the_last_fence() -> Vec<(Verdict, Value)> {
    let mut shapes = Vec::new();
    for (has, document) in [
        (Has::SOLE, flat()),
        (Has::BOTH, several()),
        (
            Has {
                other: false,
                ..Has::BOTH
            },
            alone(),
        ),
        (Has::NOBODY, free()),
        (Has::OVER, without(flat(), "expires_at")),
        (
            Has::NOBODY,
            with(free(), json!({ "evicted": several()["holders"] })),
        ),
    ] {
        for fence in [LAST_FENCE - 1, LAST_FENCE] {
            let has = Has {
                fence,
                kept: true,
                ..has
            };
            shapes.push((Lock(has), with(document.clone(), json!({ "fence": fence }))));
        }
    }
    shapes
}

/// The shapes that only a store without checks of field types can have.
pub fn untyped_shapes() -> Vec<(Verdict, Value)> {
    let untimed = |has| {
        Lock(Has {
            timed: false,
            ..has
        })
    };
    let mut shapes = Vec::new();
    for nonsense in [json!("7"), json!(true), json!([7]), json!({ "a": 7 })] {
        for field in ["schema", "fence", "expires_at"] {
            for document in [flat(), several(), free()] {
                shapes.push((NoLock, with(document, json!({ field: nonsense }))));
            }
        }
        shapes.push((NoLock, with(flat(), json!({ "lease": nonsense }))));
        shapes.push((NoLock, with(several(), json!({ "holders": [nonsense] }))));
        for field in ["lease", "mode", "permits", "fence", "expires_at"] {
            shapes.push((NoLock, with_first(field, nonsense.clone())));
        }
        shapes.push((
            untimed(Has::SOLE),
            with(flat(), json!({ "acquired_at": nonsense })),
        ));
        shapes.push((
            untimed(Has::BOTH),
            with_first("acquired_at", nonsense.clone()),
        ));
        shapes.push((Lock(Has::SOLE), with(flat(), json!({ "note": nonsense }))));
        shapes.push((Lock(Has::BOTH), with_first("note", nonsense.clone())));
        shapes.push((
            Lock(Has::NOBODY),
            with(free(), json!({ "released_at": nonsense })),
        ));
    }
    for schema in [json!(1), json!(1.0), json!([SCHEMA])] {
        shapes.push((NoLock, with(flat(), json!({ "schema": schema }))));
    }
    shapes.push((NoLock, with(flat(), json!({ "lease": [LEASE] }))));
    shapes.push((NoLock, with_first("mode", json!(["shared"]))));
    for nonsense in [
        json!(7),
        json!(true),
        json!({}),
        several()["holders"][0].clone(),
    ] {
        let unowned = Lock(Has {
            owned: false,
            ..Has::SOLE
        });
        shapes.push((unowned, with(flat(), json!({ "owner": nonsense }))));
        shapes.push((NoLock, with(several(), json!({ "holders": nonsense }))));
    }
    for (fence, told, kept) in [
        (json!(7.0), 7, false),
        (json!(7.5), 7, false),
        (json!(-1e300), i64::MIN, false),
        (json!(6e15), 6_000_000_000_000_000, true),
        (json!((LAST_FENCE - 1) as f64), LAST_FENCE - 1, true),
        (json!(LAST_FENCE as f64), LAST_FENCE, true),
    ] {
        let of_fence = |has| {
            Lock(Has {
                fence: told,
                kept,
                ..has
            })
        };
        shapes.push((of_fence(Has::SOLE), with(flat(), json!({ "fence": fence }))));
        shapes.push((
            of_fence(Has::NOBODY),
            with(free(), json!({ "fence": fence })),
        ));
    }
    shapes.push((NoLock, with(free(), json!({ "fence": 1e300 }))));
    shapes.push((NoLock, with_first("permits", json!(1.5))));
    shapes.push((NoLock, with_first("permits", json!("1"))));
    shapes
}

/// Locks for which nobody waits: what is in `waiters` is no place, or a place that does not count.
pub fn queue_shapes() -> Vec<(Verdict, Value)> {
    let place = |changes| {
        let place = json!({
            "waiter": OTHER, "owner": "another", "mode": "exclusive", "permits": 1,
            "since": at(-5), "until": at(30),
        });
        with(place, changes)
    };
    let mut queues = [
        json!("they"),
        json!(7),
        json!({}),
        json!([]),
        place(json!({})),
        json!([7, "they", Value::Null, [], {}]),
        // The place is over, or it ends later than a place can.
        json!([place(json!({ "until": at(-1) }))]),
        json!([place(json!({ "until": at(6_000) }))]),
    ]
    .to_vec();
    for field in ["waiter", "mode", "permits", "since", "until"] {
        queues.push(json!([without(place(json!({})), field)]));
        for nonsense in [
            json!("they"),
            json!(true),
            json!(1.5),
            json!([7]),
            json!({}),
        ] {
            let is_time = nonsense.is_number() && matches!(field, "since" | "until");
            if !is_time {
                queues.push(json!([place(json!({ field: nonsense }))]));
            }
        }
    }
    let just_released = with(free(), json!({ "released_at": at(-1) }));
    let locks = [
        (Has::SOLE, flat()),
        (Has::BOTH, several()),
        (Has::NOBODY, just_released),
    ];
    let shapes = locks.iter().flat_map(|(has, lock)| {
        let waited_for = |queue: &Value| with(lock.clone(), json!({ "waiters": queue }));
        queues
            .iter()
            .map(move |queue| (Lock(*has), waited_for(queue)))
    });
    shapes.collect()
}

//! Documents with the field `done`, which says which tick is done, in a valid or invalid way.

use serde_json::{Value, json};

use super::{
    Has, LEASE, Last, Mine, OTHER,
    Verdict::{self, Lock, NoLock, OtherVersion},
    shapes::{at, flat, free, several, with, without},
};

/// The number of the tick that the requests are for, and of the one that is done.
pub(super) const TICK: i64 = 7;

/// The field for a tick that was done by another lease.
fn done() -> Value {
    json!({
        "kind": "counter", "tick": TICK, "at": at(-60), "by": "they", "lease": OTHER, "until": at(6_000),
    })
}

fn changed(changes: Value) -> Value {
    with(done(), changes)
}

/// What is in `done`, what that means, and whether it keeps the document.
fn all() -> Vec<(Last, Value, bool)> {
    let number = Last::Number;
    let mut all = vec![
        (Last::Nothing, Value::Null, false),
        (number(TICK), done(), true),
        (number(TICK - 1), changed(json!({ "tick": TICK - 1 })), true),
        (number(i64::MAX), changed(json!({ "tick": i64::MAX })), true),
        (number(i64::MIN), changed(json!({ "tick": i64::MIN })), true),
        // The tick is known until the document is removed, but it does not keep the document any
        // more.
        (number(TICK), changed(json!({ "until": at(-1) })), false),
        (
            number(TICK - 1),
            changed(json!({ "tick": TICK - 1, "until": at(-1) })),
            false,
        ),
    ];
    for kind in ["time", "date", "version"] {
        let other = changed(json!({ "kind": kind }));
        all.push((Last::OtherKind, other, true));
    }
    // These fields decide nothing.
    for field in ["at", "by", "lease"] {
        all.push((number(TICK), without(done(), field), true));
        all.push((number(TICK), changed(json!({ field: Value::Null })), true));
        for nonsense in [json!("somebody"), json!(true), json!([7]), json!({})] {
            let changed = changed(json!({ field: nonsense }));
            all.push((number(TICK), changed, true));
        }
    }
    let mut damaged = vec![
        json!("they"),
        json!(TICK),
        json!(true),
        json!([]),
        json!({}),
        json!([done()]),
        changed(json!({ "kind": "week" })),
        changed(json!({ "kind": "COUNTER" })),
        changed(json!({ "kind": "" })),
        changed(json!({ "kind": TICK })),
        changed(json!({ "kind": ["counter"] })),
        changed(json!({ "tick": TICK.to_string() })),
        changed(json!({ "tick": 6.5 })),
        changed(json!({ "tick": 7.0 })),
        changed(json!({ "tick": 1e300 })),
        changed(json!({ "tick": [TICK] })),
        changed(json!({ "until": "tomorrow" })),
        changed(json!({ "until": true })),
        changed(json!({ "until": [at(-1)] })),
        json!({ "tick": TICK, "by": "they" }),
    ];
    for field in ["kind", "tick", "until"] {
        damaged.push(without(done(), field));
        damaged.push(changed(json!({ field: Value::Null })));
    }
    all.extend(damaged.into_iter().map(|it| (Last::Unreadable, it, true)));
    all
}

/// Locks with and without holders, each with the field `done`.
pub fn tick_shapes() -> Vec<(Verdict, Value)> {
    let past = with(flat(), json!({ "expires_at": at(-1) }));
    let over = Has {
        mine: Mine::Over,
        ..Has::SOLE
    };
    // Some locks get all values of the field, and others only a part, because there are many.
    let locks = [
        (Has::SOLE, flat(), 1),
        (Has::NOBODY, free(), 1),
        (Has::BOTH, several(), 4),
        (over, past, 4),
    ];
    let all = all();
    let shapes = locks.iter().flat_map(|(has, lock, step)| {
        all.iter().step_by(*step).map(move |(last, done, kept)| {
            let has = Has {
                last: *last,
                kept: *kept,
                ..*has
            };
            (Lock(has), with(lock.clone(), json!({ "done": done })))
        })
    });
    shapes.chain(no_locks()).collect()
}

/// Documents of other versions, and damaged ones, in which the tick of the requests was done a moment ago by [`LEASE`].
fn no_locks() -> impl Iterator<Item = (Verdict, Value)> {
    let done = json!({ "done": changed(json!({ "at": at(-1), "lease": LEASE })) });
    let documents = [
        (
            OtherVersion,
            flat(),
            json!({ "schema": "leasehold.lock.2" }),
        ),
        (
            OtherVersion,
            free(),
            json!({ "schema": "leasehold.lock.2" }),
        ),
        (NoLock, free(), json!({ "fence": 1_i64 << 53 })),
        (NoLock, flat(), json!({ "lease": "they" })),
        (NoLock, several(), json!({ "holders": [] })),
    ];
    let shapes =
        documents.map(|(verdict, lock, change)| (verdict, with(with(lock, change), done.clone())));
    shapes.into_iter()
}

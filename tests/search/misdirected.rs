//! Answers with documents that a server makes up: other documents than the request was for, and locks that make no
//! sense.

use std::sync::Arc;

use leasehold::{Error, Store};
use leasehold_tests::{
    every,
    liar::{Lie, Reply},
};
use serde_json::{Value, json};

use super::{
    LONG, leases,
    nonsense::{INDEX, WAIT, each, http, lock, noop, of_each, stores},
};

/// Each answer shows a lock of the lease that asks, so it would be a grant, a renewal or a release. But it is about
/// another document, or about one in another index, and therefore none of these.
#[tokio::test]
async fn an_answer_of_another_document_is_an_error_of_every_operation() {
    let others = [
        json!({ "_id": "other" }),
        json!({ "_index": "other" }),
        json!({ "_id": "other", "_index": "other" }),
        json!({ "_id": null }),
        json!({ "_index": null }),
        json!({ "_id": 7, "_index": [INDEX] }),
        // The control: the answer is about the document of the request.
        json!({}),
    ];
    for other in others {
        let is_right = other == json!({});
        for result in ["created", "updated", "noop", "deleted"] {
            let mut update = noop(&lock());
            update["result"] = json!(result);
            update["deleted"] = json!(1);
            if other.get("_index").is_some() {
                update["hits"]["hits"][0]["_index"] = other["_index"].clone();
            }
            for (name, value) in other.as_object().unwrap() {
                update[name] = value.clone();
            }
            let what = format!("{result} of {other}");
            for store in stores(mine(update)).await {
                let mut outcomes = every::of_a_handle(&leases(store.clone()), WAIT).await;
                outcomes.extend(every::of_a_holder(&*store).await);
                let granted = outcomes
                    .iter()
                    .any(|(name, outcome)| *name == "store acquire" && outcome.is_ok());
                assert_eq!(
                    granted,
                    is_right && result != "deleted",
                    "{what}: {outcomes:?}"
                );
                if is_right {
                    continue;
                }
                for (name, outcome) in outcomes {
                    match outcome {
                        // These operations do not name an id, and the index of a hit may be the right one.
                        Ok(()) if ["purge", "list", "release_owner"].contains(&name) => {}
                        Ok(()) => panic!("{}: {name} takes {what} for an answer", store.name()),
                        Err(Error::TimedOut { .. } | Error::WaitTimedOut { .. }) => {}
                        Err(error) => {
                            assert!(error.is_ambiguous(), "{name}, {what}: {error:?}");
                            let source = std::error::Error::source(&error).unwrap().to_string();
                            // A hit whose index is no text makes no sense at all.
                            let is_told = ["not to what was asked", "makes no sense"];
                            let is_told = is_told.iter().any(|it| source.contains(it));
                            assert!(is_told, "{name}: {source}");
                        }
                    }
                }
            }
        }
    }
}

/// Each field in turn has a type or size that it cannot have. Operations that read the field return an error, and none
/// calculates with it.
#[tokio::test]
async fn a_lock_with_a_senseless_field_is_an_error_and_no_panic() {
    let senseless = [
        json!(null),
        json!(true),
        json!({}),
        json!([]),
        json!([[]]),
        json!("9"),
        json!(-1.5),
        json!(1e300),
        json!(u64::MAX),
    ];
    let numbers = [json!(-1.5), json!(1e300), json!(u64::MAX)];
    let mut locks = Vec::new();
    for value in &senseless {
        let makes_sense = |field| match field {
            // A missing fence counts as 0, and a fraction is dropped.
            "fence" => value.is_null() || *value == json!(-1.5),
            // Any number is a time.
            "expires_at" => value.is_null() || numbers.contains(value),
            "holders" => *value == json!([]),
            _ => false,
        };
        for field in ["schema", "fence", "expires_at", "holders"] {
            let mut lock = lock();
            lock[field] = value.clone();
            if !makes_sense(field) {
                locks.push(lock);
            }
        }
        for field in ["lease", "mode", "permits", "fence", "expires_at"] {
            let mut lock = lock();
            lock["holders"][0][field] = value.clone();
            let is_missing = field == "expires_at" && value.is_null();
            if is_missing || !makes_sense(field) {
                locks.push(lock);
            }
        }
    }
    for lock in locks {
        for store in stores(each(noop(&lock))).await {
            let leases = leases(store.clone());
            for error in [
                leases.inspect("key").await.map(drop),
                leases.try_acquire("key", LONG).shared().await.map(drop),
                leases.evict("key").await.map(drop),
            ] {
                let error = error.unwrap_err();
                let typed = matches!(
                    error,
                    Error::NotALock { .. } | Error::UnsupportedSchema { .. }
                );
                assert!(typed, "{}, {lock}: {error:?}", store.name());
            }
            every::of_a_holder(&*store).await;
        }
    }
}

/// The extreme values of numbers and of calendars, in fields for times and counts.
#[tokio::test]
async fn times_and_counts_without_measure_are_no_panic() {
    const LAST: i64 = 8_210_266_876_799_999;
    let numbers = [i64::MIN, -LAST, -1, 0, 1, LAST, i64::MAX];
    let fields: [&[&str]; 4] = [
        &["now", "written_at"],
        &["fence", "expires_at"],
        &["fence", "acquired_at", "expires_at", "permits"],
        &["granted_at", "used", "granted", "over_at"],
    ];
    for one in numbers {
        for other in numbers {
            let mut lock = lock();
            lock["limiter"] = json!(1);
            lock["last"] = json!("00000000-0000-4000-8000-000000000000");
            for (place, fields) in fields.iter().enumerate() {
                for field in *fields {
                    let number = json!(if place < 2 { one } else { other });
                    match place {
                        2 => lock["holders"][0][field] = number,
                        _ => lock[field] = number,
                    }
                }
            }
            for result in ["noop", "updated"] {
                let mut update = noop(&lock);
                update["result"] = json!(result);
                for store in stores(mine(update)).await {
                    every::of_a_holder(&*store).await;
                    every::of_a_handle(&leases(store), WAIT).await;
                }
            }
        }
    }
}

/// A lie that tells every lease that asks that the lock is its own.
fn mine(update: Value) -> Lie {
    Arc::new(move |asked: &[u8]| {
        let text = of_each(&update, asked);
        let asked = String::from_utf8_lossy(asked);
        let mut parts = asked.split("\"lease\":\"").skip(1);
        let lease = parts.next().and_then(|it| it.get(..36));
        let nobody = "00000000-0000-4000-8000-000000000000";
        let text = text.replace(nobody, lease.unwrap_or(nobody));
        Reply::Says(http("200 OK", text.as_bytes()))
    })
}

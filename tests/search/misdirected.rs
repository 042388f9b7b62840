//! Answers about other documents than the request was for, by a server that makes them up.

use leasehold::Error;
use leasehold_tests::every;
use serde_json::json;

use super::{
    leases,
    nonsense::{INDEX, WAIT, lock, mine, noop, store},
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
            let store = store(mine(update)).await;
            let mut outcomes = every::of_a_handle(&leases(store.clone()), WAIT).await;
            outcomes.extend(every::of_a_holder(&store).await);
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
                    Ok(()) => panic!("{name} takes {what} for an answer"),
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

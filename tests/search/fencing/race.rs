//! Several holders at once, of which one is stale.

use elasticsearch::http::Method::Put;
use futures::future::join_all;
use leasehold::{Error, Fence};
use serde_json::json;

use super::{
    super::{BOTH, Fixture, LONG, leases},
    Documents, Guard, seen,
};

/// A holder is paused past its expiry. The test goes from its first lease to its last write.
#[tokio::test]
async fn a_holder_that_was_paused_is_refused() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        documents.put("42", json!({ "total": 1 })).await;
        let locks = Fixture::prepared(engine).await;
        let leases = leases(locks.store());
        let paused = leases.acquire("order:42", LONG).await.unwrap();
        let stale = documents.guard(paused.fence().get());
        assert_eq!(stale.claim("42").await.unwrap().unwrap()["total"], 1);
        // The lease ends without its holder's knowledge.
        leases.evict("order:42").await.unwrap();
        let lease = leases.acquire("order:42", LONG).await.unwrap();
        let guard = documents.guard(lease.fence().get());
        let mut document = guard.claim("42").await.unwrap().unwrap();
        let error = stale
            .update("42", &json!({ "total": 7 }))
            .await
            .unwrap_err();
        assert_eq!(seen(&error), Some(lease.fence().get()));
        document["total"] = json!(2);
        guard.index("42", &document).await.unwrap();
        assert_eq!(documents.source("42").await["total"], 2);
    }
}

/// After `claim` no stale holder can change the document that its caller has read.
#[tokio::test]
async fn only_who_claims_before_reading_reads_what_stays() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        for claims in [true, false] {
            documents.put("a", json!({ "total": 1 })).await;
            let [stale, newer] = [7, 8].map(|fence| documents.guard(fence));
            let read = if claims {
                newer.claim("a").await.unwrap().unwrap()
            } else {
                documents.source("a").await
            };
            let landed = stale.update("a", &json!({ "total": 5 })).await.is_ok();
            let stays = documents.source("a").await["total"] == read["total"];
            assert_eq!((landed, stays), (!claims, claims));
            newer.update("a", &json!({ "by": "newer" })).await.unwrap();
        }
    }
}

/// Writers with fences in no order: first one half of them at once, together with the greatest of all, and then the
/// others at once. Returns what is wrong with the result.
async fn race<F: Future<Output = Result<(), Error>>>(
    documents: &Documents,
    write: impl Fn(Guard, i64) -> F,
) -> Vec<String> {
    const WRITERS: i64 = 48;
    let mut fences: Vec<i64> = (1..WRITERS).collect();
    fastrand::shuffle(&mut fences);
    fences.insert(fastrand::usize(..fences.len() / 2), WRITERS);
    let mut wrong = Vec::new();
    for (half, fences) in fences.chunks(fences.len() / 2).enumerate() {
        let write = async |&fence: &i64| (fence, write(documents.guard(fence), fence).await);
        for (fence, outcome) in join_all(fences.iter().map(write)).await {
            match outcome {
                // This write came before that of the greatest fence.
                Ok(()) if half == 0 => {}
                Ok(()) => wrong.push(format!("{fence} came after {WRITERS}")),
                Err(Error::Fenced {
                    seen: Some(seen), ..
                }) if seen.get() > fence => {}
                Err(error) => wrong.push(format!("{fence}: {error:?}")),
            }
        }
        let left = documents.source("a").await;
        if left != json!({ "by": WRITERS, Fence::FIELD: WRITERS }) {
            wrong.push(format!("half {half} left {left}"));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_the_newest_is_the_last() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        // The first writers race to create the document.
        let whole = async |guard: Guard, fence| guard.index("a", &json!({ "by": fence })).await;
        let wrong = race(&documents, whole).await;
        assert!(wrong.is_empty(), "{wrong:?}");

        for claims in [true, false] {
            documents.put("a", json!({ "by": 0 })).await;
            let steps = async |guard: Guard, fence| {
                if claims {
                    guard.claim("a").await?;
                }
                guard.update("a", &json!({ "by": fence })).await.map(drop)
            };
            let wrong = race(&documents, steps).await;
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_comparison_the_newest_is_not_the_last() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let plain = async |_: Guard, fence: i64| {
            let document = json!({ "by": fence, Fence::FIELD: fence });
            documents.put("a", document).await;
            Ok(())
        };
        let wrong = race(&documents, plain).await;
        assert!(
            wrong.iter().any(|it| it.contains("half 1 left")),
            "{wrong:?}"
        );
    }
}

/// This is what the documentation says of versions.
#[tokio::test]
async fn a_fence_is_a_version_where_only_whole_documents_are_written() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let put = async |fence: i64| {
            let path = format!(
                "{}/_doc/a?version={fence}&version_type=external_gte",
                documents.0.alias
            );
            let answer = documents.0.ask(Put, &path, json!({ "by": fence })).await;
            answer["status"].as_i64()
        };
        for (fence, refused) in [(8, None), (8, None), (7, Some(409)), (9, None)] {
            assert_eq!(put(fence).await, refused);
        }
        assert_eq!(documents.source("a").await["by"], 9);
    }
}

//! Which keys other processes wait for: the requests, and the documents and answers that make no sense.

use std::{sync::Arc, time::Duration};

use elasticsearch::http::Method::{Delete, Put};
use leasehold::{
    Error, Key, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use leasehold_tests::{
    liar::{Reply, always},
    proxy::Proxy,
};
use serde_json::{Value, json};

use super::{
    BOTH, Fixture, LONG, ask, granted, look,
    nonsense::{self, INDEX},
    patience::{asks_again, until_quick},
};

/// For how long a place counts that a test relies on.
const STAYS: Duration = Duration::from_secs(50);

fn keys<const N: usize>(names: [&str; N]) -> [Key; N] {
    names.map(|name| Key::new(name).unwrap())
}

/// Those of these keys that a look tells to be waited for.
async fn waited_for(store: &dyn Store, keys: &[Key]) -> Result<Vec<Key>, Error> {
    let looks: Vec<_> = keys.iter().map(look).collect();
    let answers = store.look(&looks).await?;
    assert_eq!(answers.len(), keys.len());
    let told = keys.iter().zip(answers).filter(|(_, it)| it.is_waited_for);
    Ok(told.map(|(key, _)| key.clone()).collect())
}

/// Gives the key to one process, and lets another wait for it.
async fn awaited(store: &dyn Store, key: &Key) {
    let ask = |turn| {
        let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "me".into(), LONG);
        request.turn(turn)
    };
    granted(store, &ask(Turn::Behind)).await;
    let (waiter, counts_for) = (LeaseId::random(), STAYS);
    let asked = store.acquire(&ask(Turn::in_turn(waiter, counts_for))).await;
    assert!(matches!(asked, Ok(AcquireAnswer::Held(_))), "{asked:?}");
}

/// A store that has had no answer yet but to the question where its locks are, and a proxy that counts its requests.
async fn fresh(fixture: &Fixture, keys: &[Key]) -> (Proxy, Arc<dyn Store>) {
    until_quick(async || {
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.bare_store_at(&format!("http://{}", proxy.address));
        match waited_for(&*store, keys).await {
            Err(error) if asks_again(&error) => None,
            told => told.unwrap().is_empty().then_some((proxy, store)),
        }
    })
    .await
}

#[tokio::test]
async fn that_nobody_waits_is_told_without_the_time() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let alias = fixture.write_alias().replace('-', "%2D");
        let [held, gone, waits, dots, limiter] = keys(["held", "gone", "waits", "..", "limiter:"]);
        let mut request = ask();
        request.key = held.clone();
        granted(&fixture.store(), &request).await;
        for key in [&waits, &dots, &limiter] {
            awaited(&fixture.store(), key).await;
        }
        let quiet = [held, gone];
        let (proxy, store) = fresh(&fixture, &quiet).await;
        proxy.http_requests();
        let sent = |expected: &[&str]| {
            let requests = proxy.http_requests();
            assert_eq!(requests.len(), expected.len(), "{requests:?}");
            for (request, path) in requests.iter().zip(expected) {
                let path = format!("POST /{alias}/{path}?");
                assert!(request.starts_with(&path), "{requests:?}");
            }
        };
        assert_eq!(waited_for(&*store, &quiet).await.unwrap(), []);
        sent(&["_mget"]);
        assert_eq!(waited_for(&*store, &[]).await.unwrap(), []);
        sent(&[]);

        // No answer has told the time yet. The answer to the second request tells it.
        let all = [&quiet[..], &[waits.clone(), dots.clone(), limiter.clone()]].concat();
        let expected = [waits, dots, limiter];
        assert_eq!(waited_for(&*store, &all).await.unwrap(), expected);
        sent(&["_mget", "_bulk"]);
        assert_eq!(waited_for(&*store, &all).await.unwrap(), expected);
        sent(&["_mget"]);
    }
}

/// Documents with a live place that are no locks, or locks of another version. They are left out, by a store that knows
/// the time and by one that does not.
#[tokio::test]
async fn what_is_no_lock_is_not_waited_for() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let [good, foreign, later, damaged, dead, text] =
            keys(["good", "foreign", "later", "damaged", "dead", "text"]);
        awaited(&fixture.store(), &good).await;
        let now = chrono::Utc::now().timestamp_millis();
        let until = now + 30_000;
        let place = |until: i64| {
            let waiter = LeaseId::random().to_string();
            json!([{ "waiter": waiter, "owner": "me", "mode": "exclusive", "permits": 1, "since": now, "until": until }])
        };
        let schema = "leasehold.lock.1";
        for (key, document) in [
            (
                &foreign,
                json!({ "schema": "theirs", "waiters": place(until) }),
            ),
            (
                &later,
                json!({ "schema": "leasehold.lock.2", "waiters": place(until) }),
            ),
            (
                &damaged,
                json!({ "schema": schema, "expires_at": until, "lease": "x", "waiters": place(until) }),
            ),
            (
                &dead,
                json!({ "schema": schema, "waiters": place(now - 30_000) }),
            ),
            (&text, json!({ "schema": schema, "waiters": ["me", {}] })),
        ] {
            let path = format!("{}/_doc/{key}", fixture.index());
            let put = fixture.ask(Put, &path, document).await;
            assert_eq!(put["result"], "created", "{put}");
        }
        let all = [&good, &foreign, &later, &damaged, &dead, &text].map(Key::clone);
        let store = fixture.store();
        for _ in 0..2 {
            assert_eq!(
                waited_for(&*store, &all).await.unwrap(),
                std::slice::from_ref(&good)
            );
        }
    }
}

#[tokio::test]
async fn without_the_index_nothing_is_told() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let store = fixture.store();
        let key = ask().key;
        awaited(&store, &key).await;
        fixture.ask(Delete, &fixture.index(), Value::Null).await;
        for _ in 0..2 {
            let error = waited_for(&*store, std::slice::from_ref(&key)).await;
            let error = error.unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        }
        fixture.prepare().await.unwrap();
        let told = waited_for(&*store, std::slice::from_ref(&key)).await;
        assert_eq!(told.unwrap(), []);
    }
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_an_error() {
    let found = |id: &str, index: &str| json!({ "_index": index, "_id": id, "found": false });
    for (docs, is_right) in [
        (json!([found("key", INDEX)]), true),
        (json!([found("other", INDEX)]), false),
        (json!([found("key", "other")]), false),
        (json!([]), false),
        (json!([found("key", INDEX), found("key", INDEX)]), false),
        (json!([{}]), false),
        (json!({}), false),
        (json!(null), false),
        (
            json!([{ "_index": INDEX, "_id": "key", "error": { "type": "shard_failed" } }]),
            false,
        ),
    ] {
        let body = json!({ "docs": docs }).to_string();
        let reply = Reply::Says(nonsense::http("200 OK", body.as_bytes()));
        let store = nonsense::store(always(reply)).await;
        match waited_for(&store, &[ask().key]).await {
            Ok(told) => assert!(is_right && told.is_empty(), "{docs}: {told:?}"),
            Err(error) => {
                assert!(!is_right, "{docs}: {error:?}");
                assert!(
                    matches!(error, Error::Interrupted { .. }),
                    "{docs}: {error:?}"
                );
            }
        }
    }
}

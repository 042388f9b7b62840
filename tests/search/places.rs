//! The index of the locks changes while processes run: rollovers, moves, deletions, and missing copies of shards.

use std::sync::Arc;

use elasticsearch::http::Method::{Delete, Get, Post, Put};
use futures::future::join_all;
use leasehold::{
    Attempt, ElasticsearchStore, Error, OpenSearchStore, Store,
    store::{AcquireAnswer, ReleaseAnswer, ReleaseRequest},
};
use leasehold_tests::proxy::Proxy;
use serde_json::{Value, json};

use super::{
    BOTH, Engine, Fixture, LONG, ask, elasticsearch,
    fencing::Documents,
    granted, leases, opensearch,
    patience::{
        Patient, answered_error, asks_again, until_answered, until_quick, with_short_waits,
    },
};

/// The mapping of the locks of this fixture.
async fn mapping(fixture: &Fixture) -> Value {
    let path = format!("{}/_mapping", fixture.index());
    let shown = fixture.ask(Get, &path, Value::Null).await;
    shown[fixture.index()]["mappings"].clone()
}

/// Rolls the alias over to an index that has the mapping of locks, as a careful template would give it: either by the
/// API, which takes the alias from the old index, or with the alias on both indices and the new one to write to.
async fn roll_over(fixture: &Fixture, by_api: bool) -> String {
    let next = format!("{}-2", fixture.alias);
    let mut index = json!({ "mappings": mapping(fixture).await });
    let answer = if by_api {
        let path = format!("{}/_rollover/{next}", fixture.alias);
        fixture.ask(Post, &path, index).await
    } else {
        index["aliases"] = json!({ &fixture.alias: { "is_write_index": true } });
        fixture.ask(Put, &next, index).await
    };
    assert_eq!(answer["acknowledged"], true, "{answer}");
    next
}

#[tokio::test]
async fn a_rollover_under_a_held_lease_makes_no_second_holder() {
    for engine in BOTH {
        for by_api in [true, false] {
            let fixture = Fixture::prepared(engine).await;
            let before = leases(fixture.store());
            let lease = before.acquire("key", LONG).await.unwrap();
            let next = roll_over(&fixture, by_api).await;

            // This process starts after the rollover.
            let after = leases(fixture.store());
            let refused = after.try_acquire("key", LONG).await;
            let granted = matches!(refused, Ok(Attempt::Acquired(_)));
            assert!(
                !granted,
                "{engine:?}: two hold one key, by the API: {by_api}"
            );
            let error = refused.map(drop).unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(&next) && text.contains(&fixture.index()),
                "{text}"
            );
            let error = fixture.prepare().await.unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");

            // The processes that ran before go on.
            lease.renew().await.unwrap();
            let held = before.try_acquire("key", LONG).await.unwrap();
            assert!(matches!(held, Attempt::Held(_)), "{held:?}");
            let other = before.acquire("other", LONG).await.unwrap();
            other.release().await.unwrap();
            let locks = leases(fixture.store());
            assert!(locks.inspect("key").await.is_err());

            // As soon as the alias is back, the new process agrees with them.
            fixture.ask(Delete, &next, Value::Null).await;
            fixture.prepare().await.unwrap();
            let held = after.try_acquire("key", LONG).await.unwrap();
            assert!(matches!(held, Attempt::Held(_)), "{held:?}");
            lease.release().await.unwrap();
        }
    }
}

/// The write alias moves at one moment, for all processes. A request for the old index is then answered by the new one,
/// and that does not count as an answer.
#[tokio::test]
async fn a_move_to_another_index_is_told_and_then_followed() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (running, shared) = (fixture.store(), ask().shared());
        granted(&*running, &ask_for("old")).await;
        granted(&*running, &shared).await;
        let (old, new) = (fixture.index(), format!("{}-moved", fixture.alias));
        let index = json!({ "mappings": mapping(&fixture).await });
        fixture.ask(Put, &new, index).await;
        let turn = json!({ "actions": [
            { "add": { "index": new, "aliases": [fixture.alias, fixture.write_alias()] } },
            { "remove": { "index": old, "aliases": [fixture.alias, fixture.write_alias()] } },
        ] });
        let turned = fixture.ask(Post, "_aliases", turn).await;
        assert_eq!(turned["acknowledged"], true, "{turned}");

        // That the new index has no such document does not count as an answer either.
        let release = ReleaseRequest::new(shared.key.clone(), shared.lease);
        let error = running.release(&release).await.unwrap_err();
        assert!(error.is_ambiguous(), "{error:?}");
        let told = std::error::Error::source(&error).unwrap().to_string();
        assert!(told.contains(&format!("[{new}]")), "{told}");
        assert_eq!(
            running.release(&release).await.unwrap(),
            ReleaseAnswer::NotHeld
        );

        // From now on all locks are in the new index.
        let request = ask_for("new");
        granted(&*running, &request).await;
        let held = fixture.store().acquire(&ask_for("new")).await.unwrap();
        assert!(matches!(held, AcquireAnswer::Held(_)), "{held:?}");
        let path = format!("{new}/_doc/new");
        let stored = fixture.ask(Get, &path, Value::Null).await;
        assert_eq!(stored["_source"]["lease"], request.lease.to_string());
    }
}

/// Moves both aliases to a new, empty index, and returns its name.
async fn move_to_an_empty_index(fixture: &Fixture) -> String {
    let (old, new) = (fixture.index(), format!("{}-empty", fixture.alias));
    let index = json!({ "mappings": mapping(fixture).await });
    fixture.ask(Put, &new, index).await;
    let aliases = [fixture.alias.clone(), fixture.write_alias()];
    let turn = json!({ "actions": [
        { "add": { "index": new, "aliases": aliases } },
        { "remove": { "index": old, "aliases": aliases } },
    ] });
    let turned = fixture.ask(Post, "_aliases", turn).await;
    assert_eq!(turned["acknowledged"], true, "{turned}");
    new
}

/// It is an error after which the same request is sent again, or its lease is released.
#[tokio::test]
async fn an_acquire_that_another_index_answers_is_no_grant() {
    for engine in BOTH {
        for shared in [false, true] {
            let fixture = Fixture::prepared(engine).await;
            let running = fixture.store();
            granted(&*running, &ask_for("before")).await;
            let new = move_to_an_empty_index(&fixture).await;
            let mut request = ask_for("key");
            if shared {
                request = request.shared();
            }
            let error = running.acquire(&request).await.unwrap_err();
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
            let told = std::error::Error::source(&error).unwrap().to_string();
            assert!(told.contains(&format!("[{new}]")), "{told}");
            granted(&*running, &request).await;
            let held = fixture.store().acquire(&ask_for("key")).await.unwrap();
            assert!(matches!(held, AcquireAnswer::Held(_)), "{held:?}");
        }
    }
}

/// The page says that this move ends every lease, and that the holders learn of it with their next renewal.
#[tokio::test]
async fn a_move_to_an_empty_index_ends_every_lease() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let before = leases(fixture.store());
        let lease = before.acquire("key", LONG).await.unwrap();
        move_to_an_empty_index(&fixture).await;
        let after = leases(fixture.store());
        let next = after.acquire("key", LONG).await.unwrap();
        assert!(next.fence() > lease.fence());
        let lost = lease.renew().await.unwrap_err();
        assert!(
            matches!(lost, Error::Lost { .. }) && !lease.is_live(),
            "{lost:?}"
        );
        next.release().await.unwrap();
    }
}

/// The steps of the page: nobody can write to the old index, its documents are copied, both aliases move at once.
#[tokio::test]
async fn a_move_as_the_page_says_makes_no_second_holder() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (holder, other) = (leases(fixture.store()), leases(fixture.store()));
        let lease = holder.acquire("key", LONG).await.unwrap();
        let refused = async || {
            let attempt = other.try_acquire("key", LONG).await;
            assert!(
                !matches!(attempt, Ok(Attempt::Acquired(_))),
                "{engine:?}: {attempt:?}"
            );
        };
        refused().await;
        let (old, new) = (fixture.index(), format!("{}-moved", fixture.alias));
        let block = json!({ "index.blocks.write": true });
        fixture.ask(Put, &format!("{old}/_settings"), block).await;
        refused().await;
        let index = json!({ "mappings": mapping(&fixture).await });
        fixture.ask(Put, &new, index).await;
        let refresh = format!("{old}/_refresh");
        fixture.ask(Post, &refresh, Value::Null).await;
        let copy = json!({ "source": { "index": old }, "dest": { "index": new } });
        fixture.ask(Post, "_reindex", copy).await;
        refused().await;
        let aliases = [fixture.alias.clone(), fixture.write_alias()];
        let turn = json!({ "actions": [
            { "add": { "index": new, "aliases": aliases } },
            { "remove": { "index": old, "aliases": aliases } },
        ] });
        fixture.ask(Post, "_aliases", turn).await;
        refused().await;
        fixture.check().await.unwrap();
        refused().await;
        lease.renew().await.unwrap();
        assert!(lease.is_live());
        lease.release().await.unwrap();
    }
}

fn ask_for(key: &str) -> leasehold::store::AcquireRequest {
    let mut request = ask();
    request.key = leasehold::Key::new(key).unwrap();
    request
}

/// A deletion of the index ends all leases. Only `prepare` creates an index.
#[tokio::test]
async fn an_index_that_is_deleted_is_not_created_by_those_who_used_it() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let (running, other) = (leases(fixture.store()), leases(fixture.store()));
        let lease = running.acquire("key", LONG).await.unwrap();
        other
            .acquire("other", LONG)
            .await
            .unwrap()
            .detach()
            .unwrap();
        fixture.ask(Delete, &fixture.index(), Value::Null).await;
        for leases in [&running, &other] {
            for _ in 0..2 {
                let error = leases
                    .try_acquire("third", LONG)
                    .await
                    .map(drop)
                    .unwrap_err();
                assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                let error = leases
                    .try_acquire("third", LONG)
                    .shared()
                    .await
                    .map(drop)
                    .unwrap_err();
                assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            }
        }
        for name in [
            fixture.index(),
            fixture.alias.clone(),
            fixture.write_alias(),
        ] {
            let found = fixture.ask(Get, &name, Value::Null).await;
            assert_eq!(found["status"], 404, "{found}");
        }

        // As soon as there is an index again, both processes agree on it.
        fixture.prepare().await.unwrap();
        let second = other.acquire("key", LONG).await.unwrap();
        let held = running.try_acquire("key", LONG).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)), "{held:?}");
        let lost = lease.renew().await.unwrap_err();
        assert!(
            matches!(lost, Error::Lost { .. }) && !lease.is_live(),
            "{lost:?}"
        );
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_crowd_that_comes_first_asks_once_where_the_locks_are() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let asked =
            |requests: &[String]| requests.iter().filter(|it| it.starts_with("GET ")).count();
        let (proxy, store) = until_quick(async || {
            let proxy = Proxy::to(fixture.host()).await;
            let store = fixture.bare_store_at(&format!("http://{}", proxy.address));
            let requests: Vec<_> = (0..50).map(|_| ask().shared()).collect();
            for answer in join_all(requests.iter().map(|it| store.acquire(it))).await {
                match answer {
                    Ok(AcquireAnswer::Granted(_)) => {}
                    Err(error) if asks_again(&error) => return None,
                    other => panic!("{other:?}"),
                }
            }
            Some((proxy, store))
        })
        .await;
        assert_eq!(asked(&proxy.http_requests()), 1);
        store.acquire(&ask()).await.unwrap();
        assert_eq!(asked(&proxy.http_requests()), 0);
    }
}

/// The lost answer is not remembered as a failure: the next request asks again.
#[tokio::test]
async fn a_lost_answer_to_where_the_locks_are_is_asked_for_again() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let proxy = Proxy::to(fixture.host()).await;
        let store = fixture.bare_store_at(&format!("http://{}", proxy.address));
        proxy.lose_the_answer_to("master_timeout");
        let error = store.acquire(&ask()).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        granted(&Patient(store), &ask()).await;
    }
}

/// The write waits for a second copy of its shard, but there is only one node.
#[tokio::test]
async fn copies_that_are_missing_are_waited_for_if_the_user_says_so() {
    join_all(BOTH.map(copies_are_waited_for)).await;
}

async fn copies_are_waited_for(engine: Engine) {
    let fixture = Fixture::new(engine);
    let url = format!("http://{}", with_short_waits(fixture.host()).await);
    let store = |copies: Option<u32>| -> Arc<dyn Store> {
        macro_rules! with_copies {
            ($store:expr) => {
                match copies {
                    Some(copies) => Arc::new(Patient($store.wait_for_active_shards(copies))),
                    None => Arc::new(Patient($store)),
                }
            };
        }
        match engine {
            Engine::OpenSearch => {
                with_copies!(OpenSearchStore::new(opensearch(&url), &fixture.alias))
            }
            _ => with_copies!(ElasticsearchStore::new(elasticsearch(&url), &fixture.alias)),
        }
    };
    let prepared = until_answered(async || match engine {
        Engine::OpenSearch => {
            let store = OpenSearchStore::new(opensearch(&fixture.url), &fixture.alias);
            store.replicas(1).prepare().await
        }
        _ => fixture.on_elasticsearch().replicas(1).prepare().await,
    });
    prepared.await.unwrap();
    for request in [ask(), ask().shared()] {
        let error = answered_error(&*store(Some(2)), &request).await;
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        let told = std::error::Error::source(&error).unwrap().to_string();
        assert!(told.contains("active copies"), "{told}");
        assert!(store(None).inspect(&request.key).await.unwrap().is_none());
    }
    granted(&*store(Some(1)), &ask_for("one copy")).await;
    granted(&*store(None), &ask_for("as the index has it")).await;
}

/// A claim in one index does not guard the document in another.
#[tokio::test]
async fn a_guard_whose_alias_leads_elsewhere_says_so() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let fixture = documents.fixture();
        documents.put("a", json!({ "total": 1 })).await;
        let guard = documents.guard(7);
        assert!(guard.claim("a").await.unwrap().is_some());
        let next = format!("{}-2", fixture.alias);
        let path = format!("{}/_rollover/{next}", fixture.alias);
        let rolled = fixture.ask(Post, &path, json!({})).await;
        assert_eq!(rolled["acknowledged"], true, "{rolled}");
        let errors = [
            guard.claim("a").await.map(drop).unwrap_err(),
            guard.index("a", &json!({ "total": 2 })).await.unwrap_err(),
            guard.delete("b").await.map(drop).unwrap_err(),
        ];
        for error in errors {
            let told = std::error::Error::source(&error).unwrap().to_string();
            assert!(
                error.is_ambiguous() && told.contains(&format!("[{next}]")),
                "{error:?}"
            );
        }
    }
}

/// The refusal names the alias that is missing. The guard must not take that name for the index of its documents.
#[tokio::test]
async fn a_guard_that_came_before_its_alias_works_when_that_is_there() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let fixture = documents.fixture();
        documents.put("a", json!({ "total": 1 })).await;
        let guard = documents.guard(7);
        let actions = |action: &str| {
            let alias = json!({ "index": fixture.index(), "alias": fixture.alias });
            json!({ "actions": [{ action: alias }] })
        };
        let removed = fixture.ask(Post, "_aliases", actions("remove")).await;
        assert_eq!(removed["acknowledged"], true, "{removed}");
        guard.claim("a").await.map(drop).unwrap_err();
        let added = fixture.ask(Post, "_aliases", actions("add")).await;
        assert_eq!(added["acknowledged"], true, "{added}");
        assert!(guard.claim("a").await.unwrap().is_some());
    }
}

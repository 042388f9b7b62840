//! `prepare`: repeated, by many processes at once, where something is in the way, and after a
//! failure.

use std::sync::Arc;

use elasticsearch::http::Method::{Get, Post, Put};
use leasehold::{Error, Filter, Store, store::ListRequest};
use leasehold_tests::liar::{Liar, Reply};
use serde_json::{Value, json};

use super::{
    BOTH, Engine, Fixture, LONG, ask, granted, leases, look, nonsense::http, refusals,
    told::is_told,
};

#[tokio::test]
async fn prepare_can_be_repeated_and_by_many_at_once() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let first = leases(fixture.store());
        for _ in 0..2 {
            let prepared = futures::future::join_all((0..4).map(|_| fixture.prepare_once()));
            for outcome in prepared.await {
                outcome.unwrap();
            }
        }
        let lease = first.acquire("key", LONG).await.unwrap();
        fixture.prepare().await.unwrap();
        lease.release().await.unwrap();

        let shown = fixture.ask(Get, &fixture.index(), Value::Null).await;
        let index = &shown[fixture.index()];
        assert_eq!(index["mappings"]["dynamic"], "strict");
        let aliases = json!({ &fixture.alias: {}, fixture.write_alias(): {} });
        assert_eq!(index["aliases"], aliases);
        let settings = &index["settings"]["index"];
        assert_eq!(settings["number_of_shards"], "1");
        assert_eq!(settings["translog"]["durability"], "request");
        assert_eq!(settings["auto_expand_replicas"], "0-1");
        assert_eq!(settings["default_pipeline"], "_none");
        assert_eq!(settings["final_pipeline"], "_none");
    }
}

#[tokio::test]
async fn the_replicas_can_be_chosen() {
    let fixture = Fixture::new(Engine::Elasticsearch);
    fixture
        .on_elasticsearch()
        .replicas(2)
        .prepare()
        .await
        .unwrap();
    let shown = fixture.ask(Get, &fixture.index(), Value::Null).await;
    let settings = &shown[fixture.index()]["settings"]["index"];
    assert_eq!(settings["number_of_replicas"], "2");
}

/// No operation creates an index: the mapping that the engine would guess would be wrong.
#[tokio::test]
async fn without_it_every_operation_says_so_and_creates_nothing() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let leases = leases(fixture.store());
        let errors = [
            leases.acquire("key", LONG).await.map(drop).unwrap_err(),
            leases.acquire("key", LONG).shared().await.unwrap_err(),
            leases
                .limiter("key", 1, LONG)
                .try_permit()
                .await
                .unwrap_err(),
            leases.inspect("key").await.map(drop).unwrap_err(),
            leases.inspect(".").await.map(drop).unwrap_err(),
            leases.evict("key").await.map(drop).unwrap_err(),
            leases.remove_expired("key").await.map(drop).unwrap_err(),
            leases.purge(LONG).await.map(drop).unwrap_err(),
            leases.release_owner("me").await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            assert!(error.to_string().contains("call prepare()"), "{error}");
            is_told(&error, &fixture.host());
            assert!(!error.is_retryable());
        }
        let found = fixture.ask(Get, &fixture.alias, Value::Null).await;
        assert_eq!(found["status"], 404, "{found}");

        // The store does not remember the failure.
        fixture.prepare().await.unwrap();
        leases
            .acquire("key", LONG)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_index_of_somebody_else_is_left_alone() {
    for engine in BOTH {
        // There is an index by the name of the alias.
        let fixture = Fixture::new(engine);
        fixture.ask(Put, &fixture.alias, json!({})).await;
        let error = fixture.prepare().await.unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        let leases = leases(fixture.store());
        let error = leases.acquire("key", LONG).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");

        // There is an index by the name of ours, with another alias or with ours.
        for with_ours in [false, true] {
            let fixture = Fixture::new(engine);
            let mapping = json!({ "properties": { "total": { "type": "long" } } });
            let alias = if with_ours { &fixture.alias } else { "theirs" };
            let theirs = json!({ "mappings": mapping, "aliases": { alias: {} } });
            let index = fixture.index();
            fixture.ask(Put, &index, theirs).await;
            let error = fixture.prepare().await.unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            let shown = fixture.ask(Get, &index, Value::Null).await;
            assert_eq!(shown[&index]["mappings"], mapping);
            assert_eq!(shown[&index]["aliases"], json!({ alias: {} }));
        }
    }
}

/// This is what an alias is for: the locks move to another index, and no process has to be told.
#[tokio::test]
async fn an_index_that_was_moved_is_found_by_its_alias() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        let lease = leases.acquire("key", LONG).await.unwrap();

        let (old, new) = (fixture.index(), format!("{}-moved", fixture.alias));
        let shown = fixture
            .ask(Get, &format!("{old}/_mapping"), Value::Null)
            .await;
        fixture
            .ask(Put, &new, json!({ "mappings": shown[&old]["mappings"] }))
            .await;
        fixture
            .ask(Post, &format!("{old}/_refresh"), Value::Null)
            .await;
        let copy = json!({ "source": { "index": old }, "dest": { "index": new } });
        fixture.ask(Post, "_reindex", copy).await;
        let turn = json!({ "actions": [
            { "add": { "index": new, "alias": fixture.alias } },
            { "remove_index": { "index": old } },
        ] });
        fixture.ask(Post, "_aliases", turn).await;

        fixture.prepare().await.unwrap();
        lease.renew().await.unwrap();
        let shown = fixture
            .ask(Get, &format!("_alias/{}", fixture.alias), Value::Null)
            .await;
        let behind: Vec<_> = shown.as_object().unwrap().keys().collect();
        assert_eq!(behind, [&new]);

        // An alias on several indices takes no writes, and a third index would not change that.
        fixture
            .ask(Put, &old, json!({ "aliases": { &fixture.alias: {} } }))
            .await;
        let error = fixture.prepare().await.unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        is_told(&error, &fixture.host());
    }
}

#[tokio::test]
async fn a_mapping_that_has_no_place_for_a_lock_is_named() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let strict = json!({
            "mappings": { "dynamic": "strict", "properties": { "total": { "type": "long" } } },
            "aliases": { &fixture.alias: {} },
        });
        fixture.ask(Put, &fixture.index(), strict).await;
        for error in refusals(&leases(fixture.store())).await {
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        }
    }
}

/// A grant with a note would be refused where the mapping lacks the field. So the index is refused before any lease is
/// granted in it.
#[tokio::test]
async fn an_index_that_lacks_a_field_has_to_be_prepared_again() {
    for engine in BOTH {
        let model = Fixture::prepared(engine).await;
        let described = model.ask(Get, &model.index(), Value::Null).await;
        let mut mappings = described[model.index()]["mappings"].clone();
        for place in ["/properties", "/properties/holders/properties"] {
            let fields = mappings.pointer_mut(place).unwrap();
            fields.as_object_mut().unwrap().remove("note");
        }
        let fixture = Fixture::new(engine);
        let older = json!({
            "mappings": mappings,
            "aliases": { &fixture.alias: {}, fixture.write_alias(): {} },
        });
        fixture.ask(Put, &fixture.index(), older).await;
        let store = fixture.store();
        for outcome in [
            fixture.check().await,
            store.acquire(&ask()).await.map(drop),
            store.look(&[look(&ask().key)]).await.map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("no field note") && text.contains("call prepare()"),
                "{text}"
            );
        }
        fixture.prepare().await.unwrap();
        granted(&store, &ask().note("nightly")).await;
    }
}

/// An older version made the mapping, and what is missing is added.
#[tokio::test]
async fn a_mapping_of_ours_is_brought_up_to_date() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let older = json!({
            "mappings": { "dynamic": "strict", "_meta": { "leasehold_schema": 1 } },
            "aliases": { &fixture.alias: {} },
        });
        fixture.ask(Put, &fixture.index(), older).await;
        fixture.prepare().await.unwrap();
        let leases = leases(fixture.store());
        leases
            .acquire("key", LONG)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_cluster_that_forbids_inline_scripts_says_what_to_do() {
    let fixture = Fixture::secured(Engine::ElasticsearchSecured).await;
    let inline = fixture.on_elasticsearch();
    let refused = inline.prepare().await.unwrap_err();
    for error in refusals(&leases(inline)).await.into_iter().chain([refused]) {
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        assert!(error.to_string().contains("stored_scripts()"), "{error}");
    }

    let stored = fixture.on_elasticsearch().stored_scripts();
    stored.prepare().await.unwrap();
    leases(stored)
        .acquire("key", LONG)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Scripts belong to the cluster, so this test is on a cluster where no test stores them.
#[tokio::test]
async fn a_script_that_is_not_stored_is_named() {
    let fixture = Fixture::prepared(Engine::Elasticsearch).await;
    let named = fixture.on_elasticsearch().stored_scripts();
    for error in refusals(&leases(named)).await {
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
    }
}

/// An operator may close an index to writes. That is no fault of the client, so it retries.
#[tokio::test]
async fn a_read_only_index_is_waited_for() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let settings = format!("{}/_settings", fixture.index());
        let leases = leases(fixture.store());
        fixture
            .ask(Put, &settings, json!({ "index.blocks.write": true }))
            .await;
        for error in refusals(&leases).await {
            assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
        }
        fixture
            .ask(Put, &settings, json!({ "index.blocks.write": false }))
            .await;
        leases
            .acquire("key", LONG)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// A proxy shows nothing of an index, for example. The lock that `prepare` has tried is removed all the same.
#[tokio::test]
async fn a_search_that_does_not_find_the_lock_of_a_trial_is_told_with_the_host() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let liar = Liar::to(fixture.host()).await;
        liar.lie(Arc::new(|request: &[u8]| {
            if !String::from_utf8_lossy(request).contains("/_search") {
                return Reply::Honest;
            }
            let none = json!({
                "timed_out": false, "_shards": { "total": 1, "successful": 1, "failed": 0 },
                "hits": { "total": { "value": 0, "relation": "eq" }, "hits": [] },
            });
            Reply::Says(http("200 OK", none.to_string().as_bytes()))
        }));
        let behind = Fixture {
            url: format!("http://{}", liar.address),
            ..fixture.clone()
        };
        let error = behind.prepare_once().await.unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        is_told(&error, &behind.host());
        let all = ListRequest::new(Filter::new(), None, 10);
        let left = fixture.store().list(&all).await.unwrap();
        assert!(left.locks.is_empty(), "{left:?}");
    }
}

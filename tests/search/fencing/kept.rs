//! Indices that do not keep the fence of a document. A guard refuses them before its first write, because each late write
//! would pass.

use elasticsearch::http::Method::{Post, Put};
use leasehold::Fence;
use serde_json::{Value, json};

use super::{
    super::{BOTH, Engine, Fixture},
    Documents, cause, seen,
};

/// The documents of an index with these mappings, settings and options of its alias.
async fn made(engine: Engine, index: Value, alias: Value) -> Documents {
    let fixture = Fixture::new(engine);
    let mut index = index;
    index["aliases"] = json!({ &fixture.alias: alias });
    let created = fixture.ask(Put, &fixture.index(), index).await;
    assert_eq!(created["acknowledged"], true, "{created}");
    Documents::named(fixture)
}

/// Whether a late write passes: a newer holder has written the document, and the index has dropped what it does not keep.
async fn is_refused(documents: &Documents, advice: &str) {
    let fixture = documents.fixture();
    for name in [&fixture.alias, &fixture.index()] {
        let guard = documents.guard_of(&fixture.url, name, 8);
        for outcome in guard.everything("a").await {
            let error = outcome.unwrap_err();
            assert!(!error.is_retryable(), "{error:?}");
            let text = cause(&error);
            assert!(
                text.contains(advice) && text.contains(&fixture.index()),
                "{text}"
            );
            assert!(text.contains(&fixture.host()), "{text}");
        }
    }
    let nothing = documents.get("a").await;
    assert_ne!(nothing["found"], true, "it was written: {nothing}");
}

#[tokio::test]
async fn an_index_without_the_whole_source_is_refused_before_the_first_write() {
    for engine in BOTH {
        for source in [
            json!({ "enabled": false }),
            json!({ "excludes": [Fence::FIELD] }),
            json!({ "excludes": ["lease*"] }),
            json!({ "excludes": ["*"] }),
            json!({ "includes": ["total"] }),
        ] {
            let index = json!({ "mappings": { "_source": source } });
            let documents = made(engine, index, json!({})).await;
            is_refused(&documents, "no whole _source").await;
        }
        let routed = json!({ "mappings": { "_routing": { "required": true } } });
        is_refused(&made(engine, routed, json!({})).await, "requires a routing").await;
    }
}

/// A second document with the same id could be in each of the shards.
#[tokio::test]
async fn an_alias_with_a_routing_is_refused_before_the_first_write() {
    for engine in BOTH {
        let index = json!({ "settings": { "number_of_shards": 2, "number_of_replicas": 0 } });
        let documents = made(engine, index, json!({ "routing": "7" })).await;
        let outcomes = documents.guard(8).everything("a").await;
        for outcome in outcomes {
            let text = cause(&outcome.unwrap_err());
            assert!(text.contains("take the routing from it"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_synthetic_source_has_to_map_the_fence() {
    let made = async |mappings: Value| {
        let mut mappings = mappings;
        mappings["_source"] = json!({ "mode": "synthetic" });
        made(
            Engine::Elasticsearch,
            json!({ "mappings": mappings }),
            json!({}),
        )
        .await
    };
    let mapped = |kind: &str| json!({ "properties": { Fence::FIELD: { "type": kind } } });
    for mappings in [
        json!({}),
        json!({ "dynamic": false }),
        json!({ "dynamic": "runtime" }),
        json!({ "dynamic": "strict" }),
        mapped("keyword"),
        mapped("double"),
    ] {
        is_refused(&made(mappings).await, "map leasehold_fence as a long").await;
    }
    let documents = made(mapped("long")).await;
    let guard = documents.guard(8);
    guard.index("a", &json!({ "by": "newer" })).await.unwrap();
    // Only a refreshed document is put together anew.
    let refresh = format!("{}/_refresh", documents.fixture().alias);
    documents.fixture().ask(Post, &refresh, Value::Null).await;
    assert_eq!(documents.source("a").await[Fence::FIELD], 8);
    for outcome in documents.guard(7).everything("a").await {
        assert_eq!(seen(&outcome.unwrap_err()), Some(8));
    }
}

/// It puts its documents together anew too, whatever the mapping says of the source.
#[tokio::test]
async fn a_time_series_has_to_map_the_fence() {
    let index = json!({
        "settings": { "index": {
            "mode": "time_series", "routing_path": ["kind"], "number_of_replicas": 0,
            "time_series": { "start_time": "2020-01-01T00:00:00Z", "end_time": "2040-01-01T00:00:00Z" },
        } },
        "mappings": { "properties": {
            "@timestamp": { "type": "date" },
            "kind": { "type": "keyword", "time_series_dimension": true },
        } },
    });
    let documents = made(Engine::Elasticsearch, index, json!({})).await;
    is_refused(&documents, "map leasehold_fence as a long").await;
}

/// The engines do not run pipelines for updates in a bulk, so none can drop the fence, or change it.
#[tokio::test]
async fn no_pipeline_drops_a_fence() {
    for engine in BOTH {
        for setting in ["default_pipeline", "final_pipeline"] {
            for processor in [
                json!({ "remove": { "field": Fence::FIELD, "ignore_missing": true } }),
                json!({ "set": { "field": Fence::FIELD, "value": 1 } }),
                json!({ "script": { "source": "ctx.remove('leasehold_fence'); ctx.by = 'pipeline'" } }),
                json!({ "script": { "source": "ctx._id = 'other'" } }),
            ] {
                let documents = Documents::new(engine).await;
                documents.put("old", json!({ "total": 1 })).await;
                let fixture = documents.fixture();
                let pipeline = format!("_ingest/pipeline/{}", fixture.alias);
                let stored = json!({ "processors": [processor] });
                fixture.ask(Put, &pipeline, stored).await;
                let settings = format!("{}/_settings", fixture.index());
                let set = json!({ format!("index.{setting}"): fixture.alias });
                let set = fixture.ask(Put, &settings, set).await;
                assert_eq!(set["acknowledged"], true, "{set}");
                let [newer, late] = [8, 7].map(|fence| documents.guard(fence));
                for id in ["old", "new"] {
                    newer.index(id, &json!({ "by": "newer" })).await.unwrap();
                    assert!(newer.update(id, &json!({ "more": 1 })).await.unwrap());
                    let written = json!({ "by": "newer", "more": 1, Fence::FIELD: 8 });
                    assert_eq!(documents.source(id).await, written, "{processor}");
                    for outcome in late.everything(id).await {
                        assert_eq!(seen(&outcome.unwrap_err()), Some(8), "{processor}");
                    }
                    assert_eq!(documents.source(id).await, written, "{processor}");
                }
            }
        }
    }
}

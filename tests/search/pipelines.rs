//! Ingest pipelines, which can change what is written: its id, its index and its fields.

use elasticsearch::http::Method::{Delete, Put};
use leasehold::{
    Attempt, Error, Key, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId},
};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, ask, fencing::Documents, leases};

const SETTINGS: [&str; 2] = ["default_pipeline", "final_pipeline"];

/// Makes the id of each document from its content, as pipelines against duplicates do.
fn writes_ids() -> Value {
    json!({ "script": { "source": "ctx._id = ctx._id + '-' + ctx.written_at" } })
}

/// Keeps the id, and empties a list, as pipelines that clean documents do.
fn empties_holders() -> Value {
    json!({ "set": { "field": "holders", "value": [] } })
}

/// Stores a pipeline with this one processor, by the name of the fixture's alias.
async fn store_pipeline(fixture: &Fixture, processor: Value) {
    let path = format!("_ingest/pipeline/{}", fixture.alias);
    let stored = fixture
        .ask(Put, &path, json!({ "processors": [processor] }))
        .await;
    assert_eq!(stored["acknowledged"], true, "{stored}");
}

/// Sets this pipeline on the index, or removes it.
async fn set_pipeline(fixture: &Fixture, setting: &str, pipeline: &str) {
    let path = format!("{}/_settings", fixture.index());
    let setting = format!("index.{setting}");
    let set = fixture.ask(Put, &path, json!({ setting: pipeline })).await;
    assert_eq!(set["acknowledged"], true, "{set}");
}

/// How many of two new processes hold one key at the same time.
async fn holders(fixture: &Fixture) -> usize {
    let mut held = Vec::new();
    for _ in 0..2 {
        let process = leases(fixture.store());
        if let Ok(Attempt::Acquired(lease)) = process.try_acquire("key", LONG).await {
            held.push(lease);
        }
    }
    held.iter().filter(|lease| lease.is_live()).count()
}

fn names(error: &Error, text: &str) -> bool {
    let source = std::error::Error::source(error).map(ToString::to_string);
    error.to_string().contains(text) || source.is_some_and(|source| source.contains(text))
}

#[tokio::test]
async fn a_template_with_a_pipeline_makes_no_two_holders() {
    let mut more = Vec::new();
    for engine in BOTH {
        for setting in SETTINGS {
            for processor in [writes_ids(), empties_holders()] {
                let fixture = Fixture::new(engine);
                store_pipeline(&fixture, processor.clone()).await;
                let template = format!("_index_template/{}", fixture.alias);
                let settings = json!({ format!("index.{setting}"): fixture.alias });
                let put = json!({
                    "index_patterns": [format!("{}*", fixture.alias)],
                    "priority": 1_000,
                    "template": { "settings": settings },
                });
                let put = fixture.ask(Put, &template, put).await;
                assert_eq!(put["acknowledged"], true, "{put}");
                fixture.prepare().await.unwrap();
                let holders = holders(&fixture).await;
                fixture.ask(Delete, &template, Value::Null).await;
                if holders != 1 {
                    more.push(format!("{engine:?}, {setting}, {processor}: {holders}"));
                }
            }
        }
    }
    assert_eq!(more, [""; 0], "holders of one key");
}

#[tokio::test]
async fn an_index_with_a_pipeline_is_refused_until_it_has_none() {
    for engine in BOTH {
        for setting in SETTINGS {
            for processor in [writes_ids(), empties_holders()] {
                let fixture = Fixture::prepared(engine).await;
                store_pipeline(&fixture, processor.clone()).await;
                set_pipeline(&fixture, setting, &fixture.alias).await;
                let store = fixture.store();
                let shared = ask().shared();
                let errors = [
                    fixture.prepare().await.unwrap_err(),
                    fixture.check().await.unwrap_err(),
                    store.acquire(&ask()).await.unwrap_err(),
                    store.acquire(&shared).await.unwrap_err(),
                ];
                for error in errors {
                    assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
                    let text = error.to_string();
                    let setting = format!("index.{setting} of the index {}", fixture.index());
                    assert!(
                        text.contains(&setting) && text.contains("set it to _none"),
                        "{text}"
                    );
                    assert!(text.contains(&fixture.alias), "{text}");
                }
                assert_eq!(
                    holders(&fixture).await,
                    0,
                    "{engine:?}, {setting}, {processor}"
                );

                // The store does not remember the failure.
                set_pipeline(&fixture, setting, "_none").await;
                let answer = store.acquire(&ask()).await.unwrap();
                assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
                fixture.check().await.unwrap();
                fixture.prepare().await.unwrap();
            }
        }
    }
}

/// The id in the answer shows it. A bulk is not written through the pipeline, so there the grant is stored under its
/// own id.
#[tokio::test]
async fn a_pipeline_that_writes_ids_is_found_by_processes_that_run() {
    for engine in BOTH {
        for setting in SETTINGS {
            for shared in [false, true] {
                let fixture = Fixture::prepared(engine).await;
                let request = |key: &str| {
                    let key = Key::new(key).unwrap();
                    let request =
                        AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG);
                    if shared { request.reentrant() } else { request }
                };
                let processes = [fixture.store(), fixture.store()];
                for store in &processes {
                    store.acquire(&request("before")).await.unwrap();
                }
                store_pipeline(&fixture, writes_ids()).await;
                set_pipeline(&fixture, setting, &fixture.alias).await;
                let mut granted = 0;
                for store in &processes {
                    let mut request = request("key");
                    request.owner = LeaseId::random().to_string().into();
                    match store.acquire(&request).await {
                        Ok(AcquireAnswer::Granted(_)) => granted += 1,
                        Ok(AcquireAnswer::Held(_) | AcquireAnswer::Done(_)) => {}
                        Err(error) => {
                            assert!(!shared && error.is_ambiguous(), "{error:?}");
                            assert!(names(&error, "[key-1"), "{error:?}");
                            // The next request asks again where the locks are.
                            let again = store.acquire(&request).await.unwrap_err();
                            assert!(matches!(again, Error::NotPrepared { .. }), "{again:?}");
                            assert!(names(&again, &fixture.alias), "{again:?}");
                        }
                    }
                }
                assert_eq!(granted, usize::from(shared), "{engine:?}, {setting}");
            }
        }
    }
}

/// The key was locked before, so its document exists under its own id.
#[tokio::test]
async fn a_key_that_was_locked_before_is_not_granted_through_a_pipeline() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        let before = leases.acquire("key", LONG).await.unwrap();
        before.release().await.unwrap();
        store_pipeline(&fixture, writes_ids()).await;
        set_pipeline(&fixture, "final_pipeline", &fixture.alias).await;
        let error = leases.acquire("key", LONG).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        assert!(names(&error, &fixture.alias), "{error:?}");
    }
}

/// `Leases` retries the acquire, and the last error names the pipeline.
#[tokio::test]
async fn an_acquire_that_met_a_pipeline_ends_with_its_name() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let leases = leases(fixture.store());
        leases
            .acquire("before", LONG)
            .await
            .unwrap()
            .detach()
            .unwrap();
        store_pipeline(&fixture, writes_ids()).await;
        set_pipeline(&fixture, "default_pipeline", &fixture.alias).await;
        let error = leases.acquire("key", LONG).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        assert!(names(&error, &fixture.alias), "{error:?}");
    }
}

/// The pipelines of an application's index belong to the application. A document whose id such a pipeline has written
/// is not the guarded document.
#[tokio::test]
async fn a_guarded_document_is_written_under_its_own_id_or_not_at_all() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let fixture = documents.fixture();
        documents.put("a", json!({ "total": 1 })).await;
        let path = json!({ "script": { "source": "ctx._id = 'b'" } });
        store_pipeline(fixture, path).await;
        set_pipeline(fixture, "default_pipeline", &fixture.alias).await;
        let guard = documents.guard(7);
        let error = guard
            .index("new", &json!({ "total": 2 }))
            .await
            .unwrap_err();
        assert!(error.is_ambiguous() && names(&error, "[b]"), "{error:?}");
        // For an existing document the engine finds that the write is not to the document that was read.
        let errors = [
            guard.claim("a").await.map(drop).unwrap_err(),
            guard.index("a", &json!({ "total": 2 })).await.unwrap_err(),
            guard
                .update("a", &json!({ "total": 3 }))
                .await
                .map(drop)
                .unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Contention { .. }), "{error:?}");
        }
        assert_eq!(documents.source("a").await, json!({ "total": 1 }));
        // A pipeline that keeps the id is no problem.
        let stamp = json!({ "set": { "field": "by", "value": "pipeline" } });
        store_pipeline(fixture, stamp).await;
        guard.index("a", &json!({ "total": 4 })).await.unwrap();
        assert_eq!(documents.source("a").await["by"], "pipeline");
    }
}

//! Ingest pipelines, which can change what is written: its id, its index and its fields.

use elasticsearch::http::Method::{Delete, Put};
use leasehold::{
    Attempt, Error, Key, Store,
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, ReleaseRequest,
    },
};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, ask, fencing::Documents, granted, leases, told::is_told};

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
                    is_told(&error, &fixture.host());
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

/// The engines do not run pipelines for the updates in a bulk. So processes that run go on as before.
#[tokio::test]
async fn a_pipeline_that_writes_ids_changes_nothing_for_processes_that_run() {
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
                for key in ["before", "new"] {
                    let mut granted = 0;
                    for store in &processes {
                        let mut request = request(key);
                        request.owner = LeaseId::random().to_string().into();
                        let answer = store.acquire(&request).await.unwrap();
                        granted += usize::from(matches!(answer, AcquireAnswer::Granted(_)));
                    }
                    let free = usize::from(key == "new");
                    assert_eq!(granted, free, "{engine:?}, {setting}");
                }
            }
        }
    }
}

/// What the processes have written is what the next one finds, whatever a pipeline would make of it. The pipelines come
/// while the processes run, so nobody looks whether there are any.
#[tokio::test]
async fn a_pipeline_that_changes_the_fields_of_a_lock_makes_no_two_holders() {
    let processors = [
        json!({ "set": { "field": "expires_at", "value": 1 } }),
        json!({ "remove": { "field": ["expires_at", "holders"], "ignore_missing": true } }),
        json!({ "set": { "field": "lease", "value": LeaseId::random().to_string() } }),
        json!({ "script": { "source": "ctx.fence = 1; ctx.waiters = []; ctx.owner = 'you'" } }),
    ];
    let mut wrong = Vec::new();
    for engine in BOTH {
        for setting in SETTINGS {
            for processor in &processors {
                let fixture = Fixture::prepared(engine).await;
                let processes = [fixture.store(), fixture.store()];
                let before = ask_for("before");
                for store in &processes {
                    store.acquire(&ask_for("other")).await.unwrap();
                }
                granted(&processes[0], &before).await;
                let release = ReleaseRequest::new(before.key.clone(), before.lease);
                processes[0].release(&release).await.unwrap();
                store_pipeline(&fixture, processor.clone()).await;
                set_pipeline(&fixture, setting, &fixture.alias).await;
                for (key, shared) in [("new", false), ("before", false), ("shared", true)] {
                    let mut first = ask_for(key);
                    if shared {
                        first = first.shared();
                    }
                    let answers = [
                        processes[0].acquire(&first).await,
                        processes[1].acquire(&ask_for(key)).await,
                    ];
                    let is_right = matches!(
                        answers,
                        [Ok(AcquireAnswer::Granted(_)), Ok(AcquireAnswer::Held(_))]
                    );
                    if !is_right {
                        wrong.push(format!("{engine:?}, {setting}, {processor}: {answers:?}"));
                    }
                    if shared {
                        // A conversion is written as it is, too.
                        let upgrade = ConvertRequest::upgrade(first.key.clone(), first.lease);
                        let upgraded = processes[0].convert(&upgrade).await;
                        let held = processes[1].acquire(&ask_for(key).shared()).await;
                        let is_right = matches!(upgraded, Ok(ConvertAnswer::Converted(_)))
                            && matches!(held, Ok(AcquireAnswer::Held(_)));
                        if !is_right {
                            wrong.push(format!(
                                "{engine:?}, {setting}, {processor}: {upgraded:?}, {held:?}"
                            ));
                        }
                    }
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

fn ask_for(key: &str) -> AcquireRequest {
    let key = Key::new(key).unwrap();
    AcquireRequest::exclusive(key, LeaseId::random(), "me".into(), LONG)
}

/// A pipeline that lets no document pass stops all grants of new keys, and running processes say why.
#[tokio::test]
async fn a_pipeline_that_lets_nothing_pass_is_named_by_processes_that_run() {
    for engine in BOTH {
        for setting in SETTINGS {
            for processor in [
                json!({ "drop": {} }),
                json!({ "fail": { "message": "no" } }),
            ] {
                let fixture = Fixture::prepared(engine).await;
                let store = fixture.store();
                granted(&store, &ask_for("before")).await;
                store_pipeline(&fixture, processor).await;
                set_pipeline(&fixture, setting, &fixture.alias).await;
                let first = store.acquire(&ask_for("key")).await.unwrap_err();
                assert!(first.is_ambiguous(), "{first:?}");
                let again = store.acquire(&ask_for("key")).await.unwrap_err();
                assert!(matches!(again, Error::NotPrepared { .. }), "{again:?}");
                assert!(again.to_string().contains(&fixture.alias), "{again:?}");
                is_told(&again, &fixture.host());
            }
        }
    }
}

/// The pipelines of an application's index belong to the application. They see nothing of a guarded write.
#[tokio::test]
async fn a_guarded_document_is_written_as_it_is_and_under_its_own_id() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let fixture = documents.fixture();
        documents.put("a", json!({ "total": 1 })).await;
        let path = json!({ "script": { "source": "ctx._id = 'b'" } });
        let stamp = json!({ "set": { "field": "by", "value": "pipeline" } });
        for processor in [path, stamp] {
            store_pipeline(fixture, processor).await;
            set_pipeline(fixture, "default_pipeline", &fixture.alias).await;
            let guard = documents.guard(7);
            for id in ["a", "new"] {
                guard.index(id, &json!({ "total": 2 })).await.unwrap();
                assert!(guard.update(id, &json!({ "more": 3 })).await.unwrap());
                let claimed = guard.claim(id).await.unwrap().unwrap();
                let written = json!({ "total": 2, "more": 3, leasehold::Fence::FIELD: 7 });
                assert_eq!(claimed, written);
                assert_eq!(documents.source(id).await, written);
            }
            assert!(guard.delete("new").await.unwrap());
        }
    }
}

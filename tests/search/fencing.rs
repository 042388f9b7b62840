//! Documents of an application that refuse a stale holder, call by call.

mod index;
mod kept;
pub mod pauses;
mod race;

use std::time::Duration;

use elasticsearch::{
    Elasticsearch,
    http::Method::{Get, Post, Put},
};
use leasehold::{Error, Fence, fencing::GuardedIndex};
use opensearch::OpenSearch;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{BOTH, Engine, Fixture, elasticsearch, opensearch};

/// A guard on one of the engines.
#[derive(Clone, Debug)]
pub enum Guard {
    Elasticsearch(GuardedIndex<Elasticsearch>),
    OpenSearch(GuardedIndex<OpenSearch>),
}

/// Calls a method of the guard, and repeats it while the error is that the mapping of a field was not made in time, as
/// on a busy machine. Nothing was written in that case.
macro_rules! call {
    ($guard:expr, $method:ident($($argument:expr),*)) => {
        loop {
            let answer = match $guard {
                Guard::Elasticsearch(guard) => guard.$method($($argument),*).await,
                Guard::OpenSearch(guard) => guard.$method($($argument),*).await,
            };
            match answer {
                Err(Error::Interrupted { source, .. })
                    if source.to_string().contains("waiting for a dynamic mapping") =>
                {
                    sleep(Duration::from_millis(100)).await;
                }
                answer => break answer,
            }
        }
    };
}

impl Guard {
    pub async fn claim(&self, id: &str) -> Result<Option<Value>, Error> {
        call!(self, claim(id))
    }

    pub async fn index(&self, id: &str, document: &Value) -> Result<(), Error> {
        call!(self, index(id, document))
    }

    pub async fn update(&self, id: &str, partial: &Value) -> Result<bool, Error> {
        call!(self, update(id, partial))
    }

    pub async fn delete(&self, id: &str) -> Result<bool, Error> {
        call!(self, delete(id))
    }

    /// The outcome of each method.
    pub async fn everything(&self, id: &str) -> [Result<(), Error>; 4] {
        let document = json!({ "by": "everything" });
        [
            self.claim(id).await.map(drop),
            self.index(id, &document).await,
            self.update(id, &document).await.map(drop),
            self.delete(id).await.map(drop),
        ]
    }
}

/// An index of the application: an alias by the name of the fixture, and the index behind it.
pub struct Documents(Fixture);

impl Documents {
    pub async fn new(engine: Engine) -> Self {
        // A new field would wait for its mapping, which may time out on a busy machine. A field that is mapped could
        // not change its type.
        Self::mapped(engine, json!({ "dynamic": false })).await
    }

    async fn mapped(engine: Engine, mappings: Value) -> Self {
        let fixture = Fixture::new(engine);
        let alias = &fixture.alias;
        let index = json!({ "mappings": mappings, "aliases": { alias: {} } });
        let created = fixture.ask(Put, &fixture.index(), index).await;
        assert_eq!(created["acknowledged"], true, "{created}");
        Self(fixture)
    }

    pub fn fixture(&self) -> &Fixture {
        &self.0
    }

    /// The documents behind the alias of a fixture, which may be none.
    pub fn named(fixture: Fixture) -> Self {
        Self(fixture)
    }

    /// A guard whose client has this address.
    pub fn guard_at(&self, url: &str, fence: i64) -> Guard {
        self.guard_of(url, &self.0.alias, fence)
    }

    pub fn guard(&self, fence: i64) -> Guard {
        self.guard_of(&self.0.url, &self.0.alias, fence)
    }

    fn guard_of(&self, url: &str, name: &str, fence: i64) -> Guard {
        let fence = Fence::new(fence);
        match self.0.engine {
            Engine::OpenSearch => {
                Guard::OpenSearch(GuardedIndex::new(opensearch(url), name, fence))
            }
            _ => Guard::Elasticsearch(GuardedIndex::new(elasticsearch(url), name, fence)),
        }
    }

    /// A write that no fence guards.
    pub async fn put(&self, id: &str, document: Value) {
        let path = format!("{}/_doc/{id}", self.0.alias);
        loop {
            let answer = self.0.ask(Put, &path, document.clone()).await;
            if answer["error"]["type"] != "mapper_exception" {
                assert!(answer["error"].is_null(), "{answer}");
                return;
            }
            // The mapping was not made in time, as may happen to the guard.
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The document with its sequence number; null if there is none.
    async fn get(&self, id: &str) -> Value {
        let path = format!("{}/_doc/{id}", self.0.alias);
        self.0.ask(Get, &path, Value::Null).await
    }

    pub async fn source(&self, id: &str) -> Value {
        self.get(id).await["_source"].take()
    }
}

/// The newer fence that the error tells a stale holder.
fn seen(error: &Error) -> Option<i64> {
    match error {
        Error::Fenced { seen, .. } => seen.map(Fence::get),
        other => panic!("{other:?}"),
    }
}

/// The text of the source of an [`Error::Store`].
fn cause(error: &Error) -> String {
    match error {
        Error::Store { source, .. } => source.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_document_that_has_seen_no_fence_takes_any() {
    for engine in BOTH {
        let documents = Documents::mapped(engine, json!({})).await;
        for before in [
            json!({ "total": 1 }),
            json!({ "total": 1, Fence::FIELD: null }),
        ] {
            for id in ["claimed", "indexed", "updated", "deleted"] {
                documents.put(id, before.clone()).await;
            }
            let guard = documents.guard(-5);
            let claimed = guard.claim("claimed").await.unwrap().unwrap();
            assert_eq!(claimed, json!({ "total": 1, Fence::FIELD: -5 }));
            assert_eq!(documents.source("claimed").await, claimed);
            guard
                .index("indexed", &json!({ "name": "n" }))
                .await
                .unwrap();
            let indexed = json!({ "name": "n", Fence::FIELD: -5 });
            assert_eq!(documents.source("indexed").await, indexed);
            assert!(
                guard
                    .update("updated", &json!({ "name": "n" }))
                    .await
                    .unwrap()
            );
            let updated = json!({ "total": 1, "name": "n", Fence::FIELD: -5 });
            assert_eq!(documents.source("updated").await, updated);
            assert!(guard.delete("deleted").await.unwrap());
            assert_eq!(documents.get("deleted").await["found"], false);
        }
        let field = documents
            .0
            .ask(
                Get,
                &format!("{}/_mapping", documents.0.index()),
                Value::Null,
            )
            .await;
        let field = &field[documents.0.index()]["mappings"]["properties"][Fence::FIELD];
        assert_eq!(
            *field,
            json!({ "type": "long" }),
            "as the documentation says"
        );
    }
}

#[tokio::test]
async fn the_same_and_a_newer_holder_pass_and_an_older_one_changes_nothing() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        // The fences are as large as those of leases, and next to each other.
        let fences = [0, 1, 2].map(|more| 1_790_000_000_000 * 1_024 + more);
        let [old, same, new] = fences.map(|fence| documents.guard(fence));
        same.index("a", &json!({ "by": "same" })).await.unwrap();
        for _ in 0..2 {
            for outcome in &same.everything("a").await[..3] {
                outcome.clone().unwrap();
            }
            same.index("a", &json!({ "by": "same" })).await.unwrap();
        }
        let before = documents.get("a").await;
        for outcome in old.everything("a").await {
            let error = outcome.unwrap_err();
            assert_eq!(seen(&error), Some(fences[1]));
            assert!(!error.is_retryable() && !error.is_ambiguous());
            assert!(error.to_string().contains("stop"), "{error}");
        }
        assert_eq!(documents.get("a").await, before);
        for outcome in new.everything("a").await {
            outcome.unwrap();
        }
    }
}

#[tokio::test]
async fn a_document_that_is_not_there_is_an_answer() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let guard = documents.guard(7);
        assert_eq!(guard.claim("a").await.unwrap(), None);
        assert!(!guard.update("a", &json!({ "total": 1 })).await.unwrap());
        assert!(!guard.delete("a").await.unwrap());
        assert_eq!(documents.get("a").await["found"], false);
        guard.index("a", &json!({ "total": 1 })).await.unwrap();
        assert_eq!(documents.source("a").await["total"], 1);
        // The documentation warns of this: a deletion removes the fence with the document.
        assert!(guard.delete("a").await.unwrap());
        documents.guard(6).index("a", &json!({})).await.unwrap();
    }
}

/// Lists keep their empty objects too. A filter of the answer would drop these.
#[tokio::test]
async fn a_document_comes_back_whole() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let guard = documents.guard(7);
        let mut document = json!({
            "list": [{}, [], null, { "a": {} }], "empty": {}, "none": null, "float": 0.1,
            "great": u64::MAX, "text": "' \" \\ \n é 锁", "a.b": 1,
        });
        guard.index("a", &document).await.unwrap();
        document[Fence::FIELD] = json!(7);
        assert_eq!(guard.claim("a").await.unwrap().unwrap(), document);
        assert!(guard.update("a", &json!({})).await.unwrap());
        assert_eq!(documents.source("a").await, document);
        let newer = documents.guard(8).claim("a").await.unwrap().unwrap();
        document[Fence::FIELD] = json!(8);
        assert_eq!(newer, document);
    }
}

/// The control is the engine's own merge.
#[tokio::test]
async fn an_update_merges_as_the_engine_does() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let before = json!({
            "deep": { "er": { "kept": 1, "new": 2 }, "list": [1, 2] }, "kept": "k", "gone": { "a": 1 },
        });
        let partial = json!({
            "deep": { "er": { "new": { "a": null } }, "list": [3] }, "gone": null, "more": { "b": [{}] },
        });
        for id in ["ours", "theirs"] {
            documents.put(id, before.clone()).await;
        }
        documents.guard(7).update("ours", &partial).await.unwrap();
        let path = format!("{}/_update/theirs", documents.0.alias);
        documents
            .0
            .ask(Post, &path, json!({ "doc": partial }))
            .await;
        let mut theirs = documents.source("theirs").await;
        assert_eq!(
            theirs["deep"]["er"],
            json!({ "kept": 1, "new": { "a": null } })
        );
        theirs[Fence::FIELD] = json!(7);
        assert_eq!(documents.source("ours").await, theirs);
    }
}

#[tokio::test]
async fn a_document_cannot_bring_a_fence_of_its_own() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let guard = documents.guard(7);
        for forged in [json!(9), json!(null), json!("text"), json!({ "a": 1 })] {
            let forged = json!({ Fence::FIELD: forged });
            guard.index("a", &forged).await.unwrap();
            assert_eq!(documents.source("a").await[Fence::FIELD], 7);
            guard.update("a", &forged).await.unwrap();
            assert_eq!(documents.source("a").await[Fence::FIELD], 7);
        }
    }
}

#[tokio::test]
async fn a_field_that_is_no_whole_number_is_refused_and_left_alone() {
    for engine in BOTH {
        let documents = Documents::new(engine).await;
        let guard = documents.guard(7);
        for theirs in [
            json!("3"),
            json!(3.0),
            json!({}),
            json!([3]),
            json!(true),
            json!(u64::MAX),
        ] {
            documents.put("a", json!({ Fence::FIELD: theirs })).await;
            let before = documents.get("a").await;
            for outcome in guard.everything("a").await {
                let error = outcome.unwrap_err();
                assert!(cause(&error).contains("no whole number"), "{error:?}");
                assert!(!error.is_retryable());
            }
            assert_eq!(documents.get("a").await, before);
        }
    }
}

/// The document has the fence all the same, as the documentation says.
#[tokio::test]
async fn a_document_of_another_type_is_named() {
    let documents = Documents::new(Engine::Elasticsearch).await;
    documents.put("a", json!({ "total": "much" })).await;
    let Guard::Elasticsearch(guard) = documents.guard(7) else {
        unreachable!("it is of Elasticsearch");
    };
    let error = guard.claim::<Vec<u8>>("a").await.unwrap_err();
    assert!(cause(&error).contains("invalid type"), "{error:?}");
    assert_eq!(documents.source("a").await[Fence::FIELD], 7);
}

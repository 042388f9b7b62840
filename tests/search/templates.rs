//! Index templates of others that match the index of the locks. `prepare` says what they have made of it.

use elasticsearch::http::Method::{Delete, Get, Post, Put};
use leasehold::Error;
use serde_json::{Value, json};

use super::{BOTH, Engine, Fixture, LONG, leases};

/// The most characters of a message.
const LONGEST: usize = 300;

/// Stores an index template for the index of a fixture, either alone or as a component of another one.
async fn store_template(fixture: &Fixture, template: &Value, is_component: bool) {
    let alias = &fixture.alias;
    let mut whole = json!({ "index_patterns": [format!("{alias}*")], "priority": 1_000 });
    if is_component {
        let path = format!("_component_template/{alias}");
        let put = fixture
            .ask(Put, &path, json!({ "template": template }))
            .await;
        assert_eq!(put["acknowledged"], true, "{put}");
        whole["composed_of"] = json!([alias]);
    } else {
        whole["template"] = template.clone();
    }
    let path = format!("_index_template/{alias}");
    let put = fixture.ask(Put, &path, whole).await;
    assert_eq!(put["acknowledged"], true, "{put}");
}

async fn remove_template(fixture: &Fixture) {
    for kind in ["_index_template", "_component_template"] {
        let path = format!("{kind}/{}", fixture.alias);
        fixture.ask(Delete, &path, Value::Null).await;
    }
}

/// How many documents are in the index of the locks.
async fn documents(fixture: &Fixture) -> Value {
    let refresh = format!("{}/_refresh", fixture.index());
    fixture.ask(Post, &refresh, Value::Null).await;
    let count = format!("{}/_count", fixture.index());
    fixture.ask(Get, &count, Value::Null).await["count"].take()
}

#[tokio::test]
async fn a_template_with_which_no_lock_works_is_named_by_prepare() {
    let runtime = json!({ "key": { "type": "keyword", "script": { "source": "emit('k')" } } });
    let mut wrong = Vec::new();
    for engine in BOTH {
        for (template, problem) in [
            (
                json!({ "mappings": { "_source": { "enabled": false } } }),
                "_source",
            ),
            (
                json!({ "mappings": { "_source": { "excludes": ["note", "lease"] } } }),
                "_source",
            ),
            (
                json!({ "mappings": { "_source": { "includes": ["key"] } } }),
                "_source",
            ),
            (
                json!({ "mappings": { "_source": { "mode": "synthetic" } } }),
                "synthetic source",
            ),
            (
                json!({ "mappings": { "_routing": { "required": true } } }),
                "a routing",
            ),
            (
                json!({ "mappings": { "enabled": false } }),
                "is not enabled",
            ),
            (
                json!({ "mappings": { "runtime": runtime } }),
                "a runtime field",
            ),
            (
                json!({ "settings": { "index.blocks.write": true } }),
                "index.blocks.write",
            ),
            (
                json!({ "settings": { "index.blocks.read_only": true } }),
                "index.blocks.read_only",
            ),
            (
                json!({ "settings": { "index.mapping.total_fields.limit": 5 } }),
                "total fields",
            ),
        ] {
            // OpenSearch 2.5 takes no template with these.
            let is_new = template["mappings"]["runtime"].is_object()
                || template["mappings"]["_source"]["mode"].is_string();
            if is_new && matches!(engine, Engine::OpenSearch) {
                continue;
            }
            // A component of a template is the same to the index.
            let kinds: &[bool] = match template["mappings"]["_source"]["enabled"] {
                Value::Bool(_) => &[false, true],
                _ => &[false],
            };
            for &is_component in kinds {
                let fixture = Fixture::new(engine);
                store_template(&fixture, &template, is_component).await;
                // The second call finds the index that the first one has made.
                let prepared = [fixture.prepare_once().await, fixture.prepare_once().await];
                remove_template(&fixture).await;
                let open = json!({ "index.blocks.read_only": false });
                let settings = format!("{}/_settings", fixture.index());
                fixture.ask(Put, &settings, open).await;
                fixture.ask(Delete, &fixture.index(), Value::Null).await;
                for prepared in prepared {
                    let told = told(prepared);
                    if !told.contains(problem) || told.chars().count() > LONGEST {
                        wrong.push(format!("{engine:?}, {template}: {told}"));
                    }
                }
                // Without the template all is well.
                fixture.prepare().await.unwrap();
                let lease = leases(fixture.store()).acquire("key", LONG).await.unwrap();
                lease.release().await.unwrap();
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// The message, and what it is about if that is another sentence.
fn told(prepared: Result<(), Error>) -> String {
    match prepared {
        Ok(()) => "it is prepared".to_owned(),
        Err(error) => match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// What a template cannot change, because the request that creates the index says it.
#[tokio::test]
async fn a_template_that_the_index_does_not_take_from_is_no_problem() {
    for engine in BOTH {
        for template in [
            json!({ "settings": { "index.number_of_shards": 3 } }),
            json!({ "settings": { "index.translog.durability": "async" } }),
            json!({ "settings": { "index.default_pipeline": "p", "index.final_pipeline": "p" } }),
            json!({ "mappings": { "dynamic": false, "properties": { "key": { "type": "text" } } } }),
        ] {
            let fixture = Fixture::new(engine);
            store_template(&fixture, &template, false).await;
            let prepared = fixture.prepare().await;
            remove_template(&fixture).await;
            prepared.unwrap_or_else(|error| panic!("{engine:?}, {template}: {error}"));
            let lease = leases(fixture.store()).acquire("key", LONG).await.unwrap();
            lease.release().await.unwrap();
        }
    }
}

/// `prepare` takes a lock to see that locks work.
#[tokio::test]
async fn prepare_leaves_no_lock_behind() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        for _ in 0..3 {
            fixture.prepare().await.unwrap();
        }
        futures::future::join_all((0..4).map(|_| fixture.prepare()))
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        assert_eq!(documents(&fixture).await, 0);
    }
}

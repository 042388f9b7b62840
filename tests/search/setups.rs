//! Indices in which locks would not work. They are refused, and the error names the reason.

use elasticsearch::http::Method::{Get, Post, Put};
use leasehold::{Error, Store};
use serde_json::{Value, json};

use super::{BOTH, Fixture, LONG, leases, told::is_told};

/// Makes an index behind the aliases of a fixture, with changes to what `prepare` makes.
async fn odd_index(fixture: &Fixture, change: impl Fn(&mut Value)) {
    let model = Fixture::prepared(fixture.engine).await;
    let alias = &fixture.alias;
    let described = model.ask(Get, &model.alias, Value::Null).await;
    let (_, description) = described.as_object().unwrap().iter().next().unwrap();
    let mut index = json!({
        "mappings": description["mappings"],
        "settings": { "index": { "number_of_shards": 1, "number_of_replicas": 0 } },
        "aliases": { alias: {}, format!("{alias}-write"): {} },
    });
    change(&mut index);
    let created = fixture.ask(Put, &format!("{alias}-v1"), index).await;
    assert_eq!(created["acknowledged"], true, "{created}");
}

async fn is_refused(fixture: &Fixture, problem: &str) {
    let store = fixture.store();
    let attempt = leases(store.clone()).try_acquire("key", LONG).await;
    for outcome in [
        fixture.check().await,
        fixture.prepare().await,
        attempt.map(drop),
        store
            .inspect(&leasehold::Key::new("key").unwrap())
            .await
            .map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::NotPrepared { .. }),
            "{problem}: {error:?}"
        );
        assert!(error.to_string().contains(problem), "{problem}: {error}");
        is_told(&error, &fixture.host());
        // Who takes another name has two sets of locks.
        assert!(!error.to_string().contains("name that no other"), "{error}");
    }
}

#[tokio::test]
async fn an_index_that_is_of_no_use_for_locks_is_refused() {
    for engine in BOTH {
        let set = |place: &'static str, value: Value| {
            move |index: &mut Value| {
                let (parent, field) = place.rsplit_once('/').unwrap();
                index.pointer_mut(parent).unwrap()[field] = value.clone();
            }
        };
        for (place, value, problem) in [
            ("/mappings/_source", json!({ "enabled": false }), "_source"),
            (
                "/mappings/_source",
                json!({ "excludes": ["note"] }),
                "_source",
            ),
            ("/mappings/_routing", json!({ "required": true }), "routing"),
            (
                "/mappings/_meta",
                json!({ "leasehold_schema": 2 }),
                "a later version",
            ),
            (
                "/mappings/_meta",
                json!({ "owner": "team" }),
                "without the mapping",
            ),
            (
                "/settings/index/translog",
                json!({ "durability": "async" }),
                "durability",
            ),
        ] {
            let fixture = Fixture::new(engine);
            odd_index(&fixture, set(place, value)).await;
            is_refused(&fixture, problem).await;
        }
    }
}

/// The alias exists, but nothing can be written to it.
#[tokio::test]
async fn an_alias_without_a_write_index_is_named() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let write_alias = format!("{}-write", fixture.alias);
        odd_index(&fixture, |index| {
            index["aliases"][&write_alias] = json!({ "is_write_index": false });
        })
        .await;
        let store = fixture.store();
        for outcome in [
            fixture.prepare().await,
            fixture.check().await,
            leases(store).try_acquire("key", LONG).await.map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
            assert!(error.to_string().contains("is_write_index"), "{error}");
            is_told(&error, &fixture.host());
        }
    }
}

#[tokio::test]
async fn a_closed_index_is_named() {
    for engine in BOTH {
        let fixture = Fixture::prepared(engine).await;
        let close = format!("{}/_close", fixture.alias);
        let closed = fixture.ask(Post, &close, Value::Null).await;
        assert_eq!(closed["acknowledged"], true, "{closed}");
        is_refused(&fixture, "closed").await;
    }
}

#[tokio::test]
async fn what_others_have_noted_in_the_mapping_stays() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let meta = json!({ "owner": "team", "leasehold_schema": 1 });
        odd_index(&fixture, |index| index["mappings"]["_meta"] = meta.clone()).await;
        fixture.prepare().await.unwrap();
        let described = fixture.ask(Get, &fixture.alias, Value::Null).await;
        let (_, description) = described.as_object().unwrap().iter().next().unwrap();
        assert_eq!(description["mappings"]["_meta"], meta);
    }
}

//! Indices in which locks would not work. They are refused, and the error names the reason.

use elasticsearch::http::Method::{Get, Post, Put};
use leasehold::{
    Error, Filter, Store,
    store::{AcquireAnswer, ListRequest},
};
use serde_json::{Value, json};

use super::{BOTH, Engine, Fixture, LONG, ask, granted, leases, told::is_told};

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
        let told = error.to_string();
        assert!(told.contains(problem), "{problem}: {told}");
        is_told(&error, &fixture.host());
        // Who takes another name has two sets of locks.
        assert!(!told.contains("name that no other"), "{told}");
    }
}

/// Changes the write alias of a fixture.
async fn set_write_alias(fixture: &Fixture, options: Value) {
    let mut alias = json!({ "index": fixture.index(), "alias": fixture.write_alias() });
    for (name, value) in options.as_object().unwrap() {
        alias[name] = value.clone();
    }
    let actions = json!({ "actions": [{ "add": alias }] });
    let changed = fixture.ask(Post, "_aliases", actions).await;
    assert_eq!(changed["acknowledged"], true, "{changed}");
}

/// With several shards, an alias with a routing leads to another shard than one without it.
#[tokio::test]
async fn a_routing_on_the_write_alias_makes_no_two_holders() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        odd_index(&fixture, |index| {
            index["settings"]["index"]["number_of_shards"] = json!(5);
        })
        .await;
        let held = ask();
        granted(&fixture.store(), &held).await;
        // Some of them lead to the shard with the lock.
        for routing in ["a", "b", "c", "d", "e", "f"] {
            set_write_alias(&fixture, json!({ "routing": routing })).await;
            let answer = fixture.store().acquire(&ask()).await;
            assert!(answer.is_err(), "{engine:?}, {routing}: {answer:?}");
            is_refused(&fixture, "has a routing").await;
        }
        set_write_alias(&fixture, json!({})).await;
        let answer = fixture.store().acquire(&ask()).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
    }
}

/// The routing of one kind of request alone is no less of a problem.
#[tokio::test]
async fn every_routing_on_the_write_alias_is_refused() {
    for engine in BOTH {
        for kind in ["index_routing", "search_routing"] {
            let fixture = Fixture::prepared(engine).await;
            set_write_alias(&fixture, json!({ kind: "a" })).await;
            is_refused(&fixture, "has a routing").await;
        }
    }
}

/// A list of all locks, and a purge.
async fn looks(store: &dyn Store) -> [Result<usize, Error>; 2] {
    let page = store.list(&ListRequest::new(Filter::new(), None, 10)).await;
    let purged = store.purge(std::time::Duration::ZERO).await;
    [
        page.map(|page| page.locks.len()),
        purged.map(|purged| purged as usize),
    ]
}

/// A list that leaves locks out is not told from one that has all of them.
#[tokio::test]
async fn what_hides_locks_from_lists_and_purges_is_refused() {
    for engine in BOTH {
        let filter = json!({ "filter": { "term": { "owner": "somebody else" } } });
        let runtime = json!({ "runtime": { "key": {
            "type": "keyword", "script": { "source": "emit('another key')" },
        } } });
        for hidden_by in ["a filter", "a runtime field"] {
            let fixture = Fixture::prepared(engine).await;
            granted(&fixture.store(), &ask()).await;
            assert_eq!(looks(&fixture.store()).await.map(Result::unwrap), [1, 0]);
            match hidden_by {
                "a filter" => set_write_alias(&fixture, filter.clone()).await,
                // OpenSearch 2.5 has no runtime fields.
                _ if matches!(engine, Engine::OpenSearch) => continue,
                _ => {
                    let path = format!("{}/_mapping", fixture.index());
                    let put = fixture.ask(Put, &path, runtime.clone()).await;
                    assert_eq!(put["acknowledged"], true, "{put}");
                }
            }
            for looked in looks(&fixture.store()).await {
                assert!(looked.is_err(), "{engine:?}, {hidden_by}: {looked:?}");
            }
            is_refused(&fixture, hidden_by).await;
        }
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
            ("/mappings/enabled", json!(false), "is not enabled"),
            (
                "/mappings/properties/key",
                json!({ "type": "keyword", "ignore_above": 100 }),
                "maps key",
            ),
            (
                "/mappings/properties/holders/type",
                json!("nested"),
                "maps holders.owner",
            ),
            (
                "/mappings/properties/schema",
                json!({ "type": "keyword", "index": false }),
                "maps schema",
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

/// An empty index has no holder, so the next process is granted the key. The holder learns of it with its next renewal.
#[tokio::test]
async fn who_has_a_lock_in_an_index_that_is_replaced_learns_of_it() {
    for engine in BOTH {
        let (fixture, empty) = (
            Fixture::prepared(engine).await,
            Fixture::prepared(engine).await,
        );
        let (leases, other) = (leases(fixture.store()), leases(fixture.store()));
        let lease = leases.acquire("key", LONG).await.unwrap();
        let (old, new) = (fixture.index(), empty.index());
        let moves = [fixture.alias.clone(), fixture.write_alias()].map(|alias| {
            let of = |index: &str| json!({ "index": index, "alias": alias });
            [json!({ "remove": of(&old) }), json!({ "add": of(&new) })]
        });
        let actions = json!({ "actions": moves.as_flattened() });
        let moved = fixture.ask(Post, "_aliases", actions).await;
        assert_eq!(moved["acknowledged"], true, "{moved}");
        other.acquire("key", LONG).await.unwrap().detach().unwrap();
        // The first operation on the new index fails, and can be retried.
        let told = loop {
            match lease.renew().await {
                Err(error) if error.is_retryable() => {}
                told => break told,
            }
        };
        assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    }
}

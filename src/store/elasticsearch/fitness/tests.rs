//! Tests of the conditions, on descriptions of indices.

use super::*;

/// With longer names, and the sentence around it, a message still has at most 300 characters.
const MAX_MESSAGE: usize = 140;

fn statements() -> Statements {
    Statements::of_locks("locks".into())
}

fn ours() -> Value {
    json!({
        "aliases": { "locks": {}, "locks-write": {} },
        "mappings": mapping(),
        "settings": { "index": { "default_pipeline": "_none", "final_pipeline": "_none" } },
    })
}

fn located(description: Value) -> Result<String, String> {
    statements().located(&json!({ "locks-v1": description }))
}

#[test]
fn an_index_of_ours_is_found() {
    assert_eq!(located(ours()).unwrap(), "locks-v1");
    // An index that the user has created, without the settings for pipelines.
    let mut plain = ours();
    plain["settings"]["index"] = json!({ "number_of_shards": "1" });
    assert_eq!(located(plain).unwrap(), "locks-v1");
}

#[test]
fn what_is_in_the_way_is_named() {
    for (place, value, problem) in [
        (
            "/settings/index/default_pipeline",
            json!("dedup"),
            "index.default_pipeline",
        ),
        (
            "/settings/index/final_pipeline",
            json!("dedup"),
            "index.final_pipeline",
        ),
        (
            "/settings/index/final_pipeline",
            json!(["_none"]),
            "index.final_pipeline",
        ),
        ("/mappings/_meta", json!({}), "without the mapping"),
        (
            "/mappings/_meta",
            json!({ "leasehold_schema": 2 }),
            "a later version",
        ),
        ("/mappings/_source", json!({ "enabled": false }), "_source"),
        (
            "/mappings/_source",
            json!({ "excludes": ["note"] }),
            "_source",
        ),
        ("/mappings/_routing", json!({ "required": true }), "routing"),
        (
            "/settings/index/translog",
            json!({ "durability": "async" }),
            "durability",
        ),
        (
            "/settings/index/verified_before_close",
            json!("true"),
            "closed",
        ),
        (
            "/aliases/locks-write",
            json!({ "is_write_index": false }),
            "is_write_index",
        ),
        (
            "/mappings/_source",
            json!({ "mode": "synthetic" }),
            "_source",
        ),
        ("/mappings/enabled", json!(false), "not enabled"),
        (
            "/mappings/runtime",
            json!({ "key": { "type": "keyword" } }),
            "key is a runtime field",
        ),
        (
            "/settings/index/lifecycle",
            json!({ "name": "hot" }),
            "hot, a policy",
        ),
        ("/settings/index/mode", json!("time_series"), "index.mode"),
        (
            "/settings/index/mapping",
            json!({ "source": { "mode": "synthetic" } }),
            "index.mapping.source.mode",
        ),
        (
            "/settings/index/derived_source",
            json!({ "enabled": "true" }),
            "index.derived_source",
        ),
        (
            "/settings/index/search",
            json!({ "default_pipeline": "mine" }),
            "index.search.default_pipeline",
        ),
        (
            "/aliases/locks-write",
            json!({ "index_routing": "x", "search_routing": "x" }),
            "a routing",
        ),
        (
            "/aliases/locks-write",
            json!({ "search_routing": "x" }),
            "a routing",
        ),
        (
            "/aliases/locks-write",
            json!({ "filter": { "term": { "owner": "me" } } }),
            "a filter",
        ),
        ("/aliases", json!({ "locks": {} }), "the alias locks-write"),
        ("/aliases", json!({ "locks-write": {} }), "the alias locks"),
    ] {
        let mut index = ours();
        let (parent, field) = place.rsplit_once('/').unwrap();
        index.pointer_mut(parent).unwrap()[field] = value;
        let told = located(index).unwrap_err();
        assert!(told.contains(problem) && told.contains("locks-"), "{told}");
        assert!(told.len() < MAX_MESSAGE, "{} bytes: {told}", told.len());
    }
}

/// Lists and purges would miss locks, and nobody would notice.
#[test]
fn a_field_by_which_a_search_misses_locks_is_named() {
    let date = "epoch_millis";
    for (field, definition) in [
        ("key", json!({ "type": "text" })),
        ("key", json!({ "type": "keyword", "ignore_above": 256 })),
        (
            "key",
            json!({ "type": "keyword", "normalizer": "lowercase" }),
        ),
        ("key", json!({ "type": "keyword", "index": false })),
        ("key", json!({ "type": "alias", "path": "owner" })),
        ("schema", json!({ "type": "keyword", "doc_values": false })),
        ("expires_at", json!({ "type": "date" })),
        (
            "expires_at",
            json!({ "type": "date", "format": date, "null_value": 0 }),
        ),
        (
            "holders",
            json!({ "type": "nested", "properties": { "owner": { "type": "keyword" } } }),
        ),
        (
            "holders",
            json!({ "enabled": false, "properties": { "owner": { "type": "keyword" } } }),
        ),
    ] {
        for dynamic in ["strict", "false"] {
            let mut index = ours();
            index["mappings"]["dynamic"] = json!(dynamic);
            index["mappings"]["properties"][field] = definition.clone();
            let told = located(index).unwrap_err();
            assert!(told.contains(field) && told.contains("locks-v1"), "{told}");
            assert!(told.len() < MAX_MESSAGE, "{} bytes: {told}", told.len());
        }
    }
    let mut with_more = ours();
    let key = json!({ "type": "keyword", "ignore_above": 2_147_483_647, "store": true });
    with_more["mappings"]["properties"]["key"] = key;
    with_more["mappings"]["runtime"] = json!({ "day_of_week": { "type": "keyword" } });
    assert!(located(with_more).is_ok());
}

#[test]
fn a_searched_field_that_is_not_mapped_is_named_whatever_is_dynamic() {
    for field in SEARCHED {
        for dynamic in [json!("strict"), json!("false"), json!("true"), Value::Null] {
            let mut index = ours();
            let top = field.split('.').next().unwrap();
            let mappings = index["mappings"].as_object_mut().unwrap();
            mappings["properties"].as_object_mut().unwrap().remove(top);
            mappings.insert("dynamic".to_owned(), dynamic);
            let told = located(index).unwrap_err();
            assert!(told.contains(&format!("no field {top}")), "{told}");
        }
    }
}

/// An earlier version has made the mapping. `prepare` adds what is missing, so it does not refuse the index.
#[test]
fn a_field_that_the_mapping_lacks_is_named() {
    for (place, field) in [
        ("/properties", "note"),
        ("/properties/holders/properties", "holders.note"),
    ] {
        let mut older = ours();
        let fields = older["mappings"].pointer_mut(place).unwrap();
        fields.as_object_mut().unwrap().remove("note");
        assert!(statements().fit_for_locks("locks-v1", &older).is_ok());
        let told = located(older.clone()).unwrap_err();
        assert!(told.contains(&format!("no field {field}")), "{told}");
        // The cluster adds the field by itself, or stores it without parsing it.
        older["mappings"]["dynamic"] = json!("false");
        assert!(located(older).is_ok());
    }
}

#[test]
fn two_indices_are_none() {
    let two = statements().located(&json!({ "locks-v1": ours(), "locks-2": ours() }));
    let told = two.unwrap_err();
    assert!(
        told.contains("locks-v1") && told.contains("locks-2"),
        "{told}"
    );
    for nonsense in [json!({}), json!([]), json!(null), json!("locks-v1")] {
        assert!(statements().located(&nonsense).is_err());
    }
}

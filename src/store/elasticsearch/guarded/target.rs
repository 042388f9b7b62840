//! The index of guarded documents, and whether it keeps a fence: pure functions of what the cluster says about it.
//!
//! A script reads the fence of a document from its `_source`. If the index does not keep the field there, each write
//! finds no fence, and every late write passes.

use serde_json::{Value, json};

use super::super::{fitness::is_filtered, server::name};
use crate::model::Fence;

/// Where the documents are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The index that the name leads to.
    pub(super) index: String,
    /// Whether the name is that of an alias.
    pub(super) is_alias: bool,
}

/// The index that this name leads to, if it keeps fences.
///
/// # Errors
///
/// The problem, and what to do about it.
pub(super) fn target(given: &str, answer: &Value) -> Result<Target, String> {
    let target = named(given, answer)?;
    keeps_fences(&answer[&target.index], given).map_err(|problem| {
        let index = name(&target.index);
        format!("no fence can guard the index {index}: {problem}")
    })?;
    Ok(target)
}

fn named(given: &str, answer: &Value) -> Result<Target, String> {
    if answer[given].is_object() {
        return Ok(Target {
            index: given.to_owned(),
            is_alias: false,
        });
    }
    let found: Vec<_> = answer.as_object().into_iter().flatten().collect();
    let is_alone = found.len() == 1;
    let writes = |it: &Value| {
        let alias = it["aliases"].get(given);
        alias.is_some_and(|alias| alias["is_write_index"].as_bool().unwrap_or(is_alone))
    };
    match found.iter().find(|(_, it)| writes(it)) {
        Some((index, _)) => Ok(Target {
            index: (*index).clone(),
            is_alias: true,
        }),
        None => Err(format!(
            "{} is neither an index nor an alias with a write index: give the name of one",
            name(given)
        )),
    }
}

fn keeps_fences(index: &Value, given: &str) -> Result<(), String> {
    let (mappings, settings) = (&index["mappings"], &index["settings"]["index"]);
    let field = Fence::FIELD;
    let source = &mappings["_source"];
    let own_mode = source["mode"].as_str();
    let mode = own_mode.or(settings["mapping"]["source"]["mode"].as_str());
    if source["enabled"] == json!(false) || mode == Some("disabled") || is_filtered(source) {
        return Err(
            "its mapping keeps no whole _source, so that a document loses fields when it is changed: use an index that does"
                .to_owned(),
        );
    }
    let is_made_up = match mode {
        Some(mode) => mode == "synthetic",
        // These modes have no stored source by default.
        None => matches!(settings["mode"].as_str(), Some("time_series" | "logsdb")),
    };
    let is_derived = settings["derived_source"]["enabled"] == json!("true");
    // Such a source is put together from the mapped fields, and a number of another type may come back as another one.
    if (is_made_up || is_derived) && mappings["properties"][field]["type"] != json!("long") {
        return Err(format!(
            "its _source is synthetic and keeps only what is mapped: map {field} as a long"
        ));
    }
    if mappings["_routing"]["required"] == json!(true) {
        return Err("its mapping requires a routing, which guarded documents have not".to_owned());
    }
    let is_routed = !index["aliases"][given]["index_routing"].is_null();
    if is_routed && settings["number_of_shards"] != json!("1") {
        return Err(format!(
            "the alias {} has a routing, so that a second document with the same id can be in another shard: take the \
             routing from it",
            name(given)
        ));
    }
    if settings["verified_before_close"] == json!("true") {
        return Err("it is closed: open it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Value {
        json!({
            "aliases": {}, "mappings": { "dynamic": "false" },
            "settings": { "index": { "number_of_shards": "3" } },
        })
    }

    fn aliased(alias: Value) -> Value {
        let mut index = index();
        index["aliases"]["orders"] = alias;
        index
    }

    #[test]
    fn a_name_leads_to_one_index() {
        let led = |answer: Value| target("orders", &answer);
        let alias = |index: &str| {
            Ok(Target {
                index: index.to_owned(),
                is_alias: true,
            })
        };
        assert_eq!(led(json!({ "a": aliased(json!({})) })), alias("a"));
        let writes = aliased(json!({ "is_write_index": true }));
        let two = json!({ "a": aliased(json!({})), "b": writes });
        assert_eq!(led(two), alias("b"));
        let found = led(json!({ "orders": index() })).unwrap();
        assert_eq!((&*found.index, found.is_alias), ("orders", false));
        for nothing in [
            json!({ "a": aliased(json!({})), "b": aliased(json!({})) }),
            json!({ "a": aliased(json!({ "is_write_index": false })) }),
            // The index behind a data stream.
            json!({ ".ds-orders-1": index() }),
        ] {
            assert!(led(nothing.clone()).is_err(), "{nothing}");
        }
    }

    #[test]
    fn an_index_that_drops_the_field_is_refused() {
        let long = json!({ "leasehold_fence": { "type": "long" } });
        for (place, value, problem) in [
            (
                "/mappings/_source",
                json!({ "enabled": false }),
                "no whole _source",
            ),
            (
                "/mappings/_source",
                json!({ "mode": "disabled" }),
                "no whole _source",
            ),
            (
                "/mappings/_source",
                json!({ "excludes": ["x"] }),
                "no whole _source",
            ),
            (
                "/mappings/_source",
                json!({ "includes": ["x"] }),
                "no whole _source",
            ),
            (
                "/mappings/_source",
                json!({ "mode": "synthetic" }),
                "map leasehold_fence",
            ),
            (
                "/settings/index/mapping",
                json!({ "source": { "mode": "synthetic" } }),
                "map leasehold_fence",
            ),
            (
                "/settings/index/mode",
                json!("logsdb"),
                "map leasehold_fence",
            ),
            (
                "/settings/index/derived_source",
                json!({ "enabled": "true" }),
                "map leasehold_fence",
            ),
            ("/mappings/_routing", json!({ "required": true }), "routing"),
            (
                "/aliases/orders",
                json!({ "index_routing": "1" }),
                "routing",
            ),
            (
                "/settings/index/verified_before_close",
                json!("true"),
                "open it",
            ),
        ] {
            let mut odd = aliased(json!({}));
            let (parent, field) = place.rsplit_once('/').unwrap();
            odd.pointer_mut(parent).unwrap()[field] = value.clone();
            let told = target("orders", &json!({ "a": odd })).unwrap_err();
            assert!(told.contains(problem), "{place} {value}: {told}");
            // A field that is mapped is kept by a synthetic source.
            odd["mappings"]["properties"] = long.clone();
            let is_kept = target("orders", &json!({ "a": odd })).is_ok();
            assert_eq!(is_kept, problem == "map leasehold_fence", "{place} {value}");
        }
        for fit in [
            json!({}),
            json!({ "mode": "stored" }),
            json!({ "excludes": [] }),
        ] {
            let mut index = index();
            index["mappings"]["_source"] = fit;
            assert!(target("orders", &json!({ "orders": index })).is_ok());
        }
        let mut one = aliased(json!({ "index_routing": "1" }));
        one["settings"]["index"]["number_of_shards"] = json!("1");
        assert!(target("orders", &json!({ "a": one })).is_ok());
    }
}

//! The conditions that an index must meet for locks. (`setup.rs` makes an index that meets them.)

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::{
    setup::{NO_PIPELINE, VERSION, VERSION_FIELD, mapping},
    statements::Statements,
};
use crate::model::MAX_KEY_BYTES;

/// What helps if the mapping of an index is of no use, which cannot be changed.
const ANEW: &str = "delete it and correct its index template";

/// The fields by which lists and purges find documents, and by which they sort them.
const SEARCHED: [&str; 10] = [
    "key",
    "schema",
    "expires_at",
    "released_at",
    "owner",
    "holders.owner",
    "limiter",
    "over_at",
    "window",
    "kind",
];

const INGEST: &str = "an ingest pipeline: set it to _none";
const UNCHANGEABLE: &str =
    "so that no lock can be changed: delete it and correct its index template";

/// The settings that make an index unfit for locks, without `index.`, unless they are missing or have the value beside
/// them; and what any other value does, and what helps.
const SETTINGS: [(&str, &str, &str); 8] = [
    ("default_pipeline", NO_PIPELINE, INGEST),
    ("final_pipeline", NO_PIPELINE, INGEST),
    (
        "translog.durability",
        "request",
        "so that a lock that was granted may be lost: set it to request",
    ),
    (
        "lifecycle.name",
        "",
        "a policy that can delete the index with its locks: remove it",
    ),
    ("mode", "standard", UNCHANGEABLE),
    ("mapping.source.mode", "stored", UNCHANGEABLE),
    ("derived_source.enabled", "false", UNCHANGEABLE),
    (
        "search.default_pipeline",
        NO_PIPELINE,
        "a search pipeline that can hide locks from lists: set it to _none",
    ),
];

impl Statements {
    /// The one index that both aliases lead to, by the answer to [`get_index`](Self::get_index), if that index is fit
    /// for locks. Otherwise the problem.
    pub(crate) fn located(&self, answer: &Value) -> Result<String, String> {
        let found: Vec<_> = answer.as_object().into_iter().flatten().collect();
        let (index, description) = match &*found {
            [] => return Err(format!("there is no index behind {}", self.alias)),
            [one] => *one,
            several => {
                let names = several.iter().map(|(name, _)| name.as_str());
                return Err(several_indices(names));
            }
        };
        if let Some(missing) = missing_aliases(description, &self.aliases()).first() {
            return Err(format!("the index {index} has not the alias {missing}"));
        }
        self.fit_for_locks(index, description)?;
        if let Some(field) = missing_field(&description["mappings"]) {
            return Err(format!(
                "the mapping of the index {index} has no field {field}: an earlier version of leasehold has set it up"
            ));
        }
        Ok(index.clone())
    }

    /// Whether this index is still fit for locks, by the answer to [`get_index`](Self::get_index). It is not if no
    /// alias leads to it.
    pub(crate) fn is_fit_for_locks(&self, index: &str, answer: &Value) -> bool {
        let description = &answer[index];
        description.is_object() && self.fit_for_locks(index, description).is_ok()
    }

    /// Checks that an index is fit for locks, with the write alias, if it has one. The error is the problem.
    pub(crate) fn fit_for_locks(&self, index: &str, description: &Value) -> Result<(), String> {
        alias_is_fit(&self.target, &description["aliases"][&self.target])?;
        mapping_is_fit(index, &description["mappings"])?;
        settings_are_fit(index, &description["settings"]["index"])
    }
}

/// The problem if aliases are on several indices.
pub(super) fn several_indices<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = Vec::from_iter(names).join(" and ");
    format!(
        "its aliases lead to several indices, {names}: take them from all but the one that has the locks"
    )
}

/// The aliases that an index lacks.
pub(crate) fn missing_aliases<'a>(description: &Value, aliases: &[&'a str]) -> Vec<&'a str> {
    let mut missing = aliases.to_vec();
    missing.retain(|alias| description["aliases"].get(alias).is_none());
    missing
}

/// Whether operations through this alias reach the documents that they reach by the name of the index.
fn alias_is_fit(name: &str, alias: &Value) -> Result<(), String> {
    let routings = ["index_routing", "search_routing"];
    let problem = if alias["is_write_index"] == json!(false) {
        "has is_write_index false, so that nothing can be written to it: set it to true"
    } else if routings.iter().any(|it| !alias[it].is_null()) {
        "has a routing, so that two may hold one key on two shards: remove it"
    } else if !alias["filter"].is_null() {
        "has a filter, which hides locks from lists and purges: remove it"
    } else {
        return Ok(());
    };
    Err(format!("the alias {name} {problem}"))
}

fn mapping_is_fit(index: &str, mappings: &Value) -> Result<(), String> {
    let Some(version) = mappings["_meta"][VERSION_FIELD].as_i64() else {
        return Err(format!(
            "the index {index} is there, without the mapping of locks"
        ));
    };
    if version > VERSION {
        return Err(format!(
            "the index {index} was set up by a later version of leasehold (its mapping has the version {version}, and \
             this one knows {VERSION}): upgrade leasehold here"
        ));
    }
    let source = &mappings["_source"];
    let is_whole = matches!(source["mode"].as_str(), None | Some("stored"));
    if source["enabled"] == json!(false) || is_filtered(source) || !is_whole {
        return Err(format!(
            "the index {index} keeps no whole _source, so that no lock can be changed: {ANEW}"
        ));
    }
    if mappings["_routing"]["required"] == json!(true) {
        return Err(format!(
            "the index {index} requires a routing, which locks have not: {ANEW}"
        ));
    }
    if mappings["enabled"] == json!(false) {
        return Err(format!(
            "the mapping of the index {index} is not enabled, which hides locks from lists: {ANEW}"
        ));
    }
    let ours = mapping();
    for field in SEARCHED {
        if !mappings["runtime"][field].is_null() {
            return Err(format!(
                "{field} is a runtime field of the index {index}, which hides locks from lists: remove it from the mapping"
            ));
        }
        let (Some(ours), Some(theirs)) = (field_of(&ours, field), field_of(mappings, field)) else {
            continue;
        };
        if !is_found_as(&ours, &theirs) {
            return Err(format!(
                "the index {index} maps {field} in another way than leasehold, which hides locks from lists: {ANEW}"
            ));
        }
    }
    Ok(())
}

/// Whether a `_source` leaves out some of the fields of a document.
pub(super) fn is_filtered(source: &Value) -> bool {
    let filters = ["includes", "excludes"].map(|filter| source[filter].as_array());
    filters.into_iter().flatten().any(|it| !it.is_empty())
}

fn settings_are_fit(index: &str, settings: &Value) -> Result<(), String> {
    if settings["verified_before_close"] == json!("true") {
        return Err(format!("the index {index} is closed: open it"));
    }
    for (name, harmless, problem) in SETTINGS {
        let pointer = format!("/{}", name.replace('.', "/"));
        let value = settings.pointer(&pointer).unwrap_or(&Value::Null);
        let is_harmless = |value: &str| value.eq_ignore_ascii_case(harmless);
        if value.is_null() || value.as_str().is_some_and(is_harmless) {
            continue;
        }
        let value = value.as_str().unwrap_or("?");
        return Err(format!(
            "index.{name} of the index {index} is {value}, {problem}"
        ));
    }
    Ok(())
}

/// A field that their mapping lacks, and without which something does not work. A search never finds a document by a
/// field that is not mapped, and with `strict`, a document with such a field is refused.
fn missing_field(theirs: &Value) -> Option<String> {
    if theirs["dynamic"] == json!("strict")
        && let Some(written) = missing_in(&mapping(), theirs)
    {
        return Some(written);
    }
    let mut searched = SEARCHED.into_iter();
    let missing = searched.find(|field| field_of(theirs, field).is_none());
    missing.map(str::to_owned)
}

/// A field of our mapping, or of an object in it, that their mapping lacks.
fn missing_in(ours: &Value, theirs: &Value) -> Option<String> {
    let mut fields = ours["properties"].as_object().into_iter().flatten();
    fields.find_map(|(name, field)| match theirs["properties"].get(name) {
        None => Some(name.clone()),
        Some(found) => missing_in(field, found).map(|inner| format!("{name}.{inner}")),
    })
}

/// The definition of a field, and those of the objects around it, from the outermost to the field itself.
fn field_of<'a>(mapping: &'a Value, path: &str) -> Option<Vec<&'a Value>> {
    let mut around = mapping;
    let mut found = Vec::new();
    for name in path.split('.') {
        let inner = |kind| around.get(kind).and_then(|fields: &Value| fields.get(name));
        around = inner("properties").or_else(|| inner("fields"))?;
        found.push(around);
    }
    Some(found)
}

/// Whether a search finds the same documents by a field, and in the same order, as if it was defined as ours.
fn is_found_as(ours: &[&Value], theirs: &[&Value]) -> bool {
    let is_same = |(ours, theirs): (&&Value, &&Value)| {
        let kind = |field: &Value| field["type"].as_str().unwrap_or("object").to_owned();
        let is_shown = |flag: &&str| theirs[flag] != json!(false);
        let is_whole = theirs["ignore_above"]
            .as_u64()
            .is_none_or(|it| it >= MAX_KEY_BYTES as u64);
        kind(ours) == kind(theirs)
            && ours["format"] == theirs["format"]
            && ["enabled", "index", "doc_values"].iter().all(is_shown)
            && ["normalizer", "null_value", "script"]
                .iter()
                .all(|it| theirs[it].is_null())
            && is_whole
    };
    ours.iter().zip(theirs).all(is_same)
}

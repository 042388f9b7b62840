//! The statements that set up an index, and the conditions that an index must meet.

use serde_json::{Value, json};

use super::{
    scripts::Script,
    statements::{Body, HttpRequest, Method, Query, Statements, encoded},
};

/// The version of the mapping. `prepare` writes it into the mapping, and into the name of a new index.
const VERSION: i64 = 1;
/// The field of `_meta` by which `prepare` recognises its own mappings.
const VERSION_FIELD: &str = "leasehold_schema";
/// The settings that name ingest pipelines. A template may have them too; those of the index take precedence.
const PIPELINES: [&str; 2] = ["default_pipeline", "final_pipeline"];
/// The value of these settings that means "no pipeline".
const NO_PIPELINE: &str = "_none";
/// How long a node waits for the master, which knows the indices.
const MASTER_TIMEOUT: &str = "5s";

impl Statements {
    /// The name of a new index.
    pub(crate) fn index(&self) -> String {
        format!("{}-v{VERSION}", self.alias())
    }

    /// Stores a script in the cluster.
    pub(crate) fn store_script(&self, script: &Script) -> HttpRequest {
        HttpRequest {
            method: Method::Put,
            path: format!("_scripts/{}", script.stored_name()),
            query: Query::new(),
            body: Body::Json(json!({
                "script": { "lang": "painless", "source": script.source() },
            })),
        }
    }

    /// Creates the index with its aliases.
    pub(crate) fn create_index(&self, replicas: Option<u32>) -> HttpRequest {
        let mut settings = json!({
            // One shard, because locks are small and a list reads all of them.
            "number_of_shards": 1,
            // With this an acknowledged write is on disk, whatever the cluster's default is.
            "translog.durability": "request",
        });
        for pipeline in PIPELINES {
            settings[pipeline] = json!(NO_PIPELINE);
        }
        match replicas {
            Some(replicas) => settings["number_of_replicas"] = json!(replicas),
            // One replica, as soon as there is a second node for it.
            None => settings["auto_expand_replicas"] = json!("0-1"),
        }
        let [alias, write_alias] = self.aliases();
        HttpRequest {
            method: Method::Put,
            path: encoded(&self.index()),
            query: Query::new(),
            body: Body::Json(json!({
                "settings": { "index": settings },
                "mappings": mapping(),
                "aliases": { alias: {}, write_alias: {} },
            })),
        }
    }

    /// Adds the missing fields of the mapping to an existing index with this description. Its own `_meta` stays. The
    /// cluster refuses that if a field is mapped differently.
    pub(crate) fn put_mapping(&self, index: &str, description: &Value) -> HttpRequest {
        let mut mapping = mapping();
        let theirs = description["mappings"]["_meta"].as_object();
        if let (Some(meta), Some(theirs)) = (mapping["_meta"].as_object_mut(), theirs) {
            for (name, value) in theirs {
                meta.entry(name).or_insert_with(|| value.clone());
            }
        }
        HttpRequest {
            method: Method::Put,
            path: format!("{}/_mapping", encoded(index)),
            query: Query::new(),
            body: Body::Json(mapping),
        }
    }

    /// The user's alias, and the one that operations are sent to.
    pub(crate) fn aliases(&self) -> [&str; 2] {
        [self.alias(), self.write_alias()]
    }

    /// Adds these aliases to an existing index.
    pub(crate) fn put_aliases(&self, index: &str, aliases: &[&str]) -> HttpRequest {
        let add = |alias: &&str| json!({ "add": { "index": index, "alias": alias } });
        let actions: Vec<_> = aliases.iter().map(add).collect();
        HttpRequest {
            method: Method::Post,
            path: "_aliases".to_owned(),
            query: Query::new(),
            body: Body::Json(json!({ "actions": actions })),
        }
    }

    /// Asks for an index, or for all that have an alias: their aliases, mappings and settings.
    pub(crate) fn describe(&self, index_or_alias: &str) -> HttpRequest {
        description_of(encoded(index_or_alias))
    }

    /// Asks for all indices that the aliases lead to.
    pub(crate) fn get_index(&self) -> HttpRequest {
        description_of(self.both())
    }

    pub(super) fn both(&self) -> String {
        self.aliases().map(encoded).join(",")
    }

    /// The one index that both aliases lead to, by the answer to [`get_index`](Self::get_index), if that index is fit
    /// for locks. Otherwise the problem.
    pub(crate) fn located(&self, answer: &Value) -> Result<String, String> {
        let found: Vec<_> = answer.as_object().into_iter().flatten().collect();
        let [alias, _] = self.aliases();
        let (index, description) = match &*found {
            [] => return Err(format!("there is no index behind {alias}")),
            [one] => *one,
            several => {
                let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
                return Err(format!(
                    "the aliases lead to several indices, {}: take them from all but the one that has the locks",
                    names.join(" and "),
                ));
            }
        };
        if let Some(missing) = missing_aliases(description, &self.aliases()).first() {
            return Err(format!("the index {index} has not the alias {missing}"));
        }
        self.fit_for_locks(index, description)?;
        let mappings = &description["mappings"];
        // Without `strict`, the field of a document need not be in the mapping.
        if mappings["dynamic"] == json!("strict")
            && let Some(field) = missing_field(&mapping(), mappings)
        {
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

    /// Checks that an index is fit for locks, and that its write alias, if it has one, can be written to. The error is
    /// the problem.
    pub(crate) fn fit_for_locks(&self, index: &str, description: &Value) -> Result<(), String> {
        let [_, write_alias] = self.aliases();
        if description["aliases"][write_alias]["is_write_index"] == json!(false) {
            return Err(format!(
                "the alias {write_alias} of the index {index} has is_write_index false, so that nothing can be \
                 written to it: set it to true"
            ));
        }
        fit_for_locks(index, description)
    }
}

fn description_of(names: String) -> HttpRequest {
    HttpRequest {
        method: Method::Get,
        path: names,
        query: vec![("master_timeout", MASTER_TIMEOUT.into())],
        body: Body::None,
    }
}

/// The aliases that an index lacks.
pub(crate) fn missing_aliases<'a>(description: &Value, aliases: &[&'a str]) -> Vec<&'a str> {
    let mut missing = aliases.to_vec();
    missing.retain(|alias| description["aliases"].get(alias).is_none());
    missing
}

/// As [`fit_for_locks`](Statements::fit_for_locks), but without a look at the aliases.
fn fit_for_locks(index: &str, description: &Value) -> Result<(), String> {
    let mappings = &description["mappings"];
    match mappings["_meta"][VERSION_FIELD].as_i64() {
        Some(..=VERSION) => {}
        Some(later) => {
            return Err(format!(
                "the index {index} was set up by a later version of leasehold (its mapping has the version {later}, and \
                 this one knows {VERSION}): upgrade leasehold here"
            ));
        }
        None => {
            return Err(format!(
                "the index {index} is there, without the mapping of locks"
            ));
        }
    }
    let source = &mappings["_source"];
    let filtered = ["includes", "excludes"].map(|filter| source[filter].as_array());
    if source["enabled"] == json!(false) || filtered.into_iter().flatten().any(|it| !it.is_empty())
    {
        return Err(format!(
            "the mapping of the index {index} keeps no whole _source, without which a lock cannot be changed: give the \
             locks an index of their own"
        ));
    }
    if mappings["_routing"]["required"] == json!(true) {
        return Err(format!(
            "the mapping of the index {index} requires a routing, which locks have not: give the locks an index of \
             their own"
        ));
    }
    let settings = &description["settings"]["index"];
    let durability = settings["translog"]["durability"].as_str();
    if durability.is_some_and(|it| it.eq_ignore_ascii_case("async")) {
        return Err(format!(
            "index.translog.durability of the index {index} is async, so that a lock that was granted may be lost: set \
             it to request"
        ));
    }
    if settings["verified_before_close"] == json!("true") {
        return Err(format!("the index {index} is closed: open it"));
    }
    for setting in PIPELINES {
        match &settings[setting] {
            Value::Null => {}
            Value::String(name) if name == NO_PIPELINE => {}
            other => {
                let name = other.as_str().unwrap_or("?");
                return Err(format!(
                    "index.{setting} of the index {index} is the ingest pipeline {name}, which can \
                     change locks and their ids, so that two hold one key: set it to {NO_PIPELINE}"
                ));
            }
        }
    }
    Ok(())
}

/// A field of our mapping, or of an object in it, that their mapping lacks. A document with that field would be
/// refused.
fn missing_field(ours: &Value, theirs: &Value) -> Option<String> {
    let mut fields = ours["properties"].as_object().into_iter().flatten();
    fields.find_map(|(name, field)| match theirs["properties"].get(name) {
        None => Some(name.clone()),
        Some(found) => missing_field(field, found).map(|inner| format!("{name}.{inner}")),
    })
}

fn mapping() -> Value {
    let word = json!({ "type": "keyword" });
    let number = json!({ "type": "long" });
    let date = json!({ "type": "date", "format": "epoch_millis" });
    // These fields are read in answers, and never searched.
    let shown =
        json!({ "type": "date", "format": "epoch_millis", "index": false, "doc_values": false });
    // For people to read, and never searched.
    let note = json!({ "type": "keyword", "index": false, "doc_values": false });
    // Read in answers, and never parsed by the cluster.
    let not_parsed = json!({ "type": "object", "enabled": false });
    json!({
        // A document that is neither a lock nor a limiter is refused.
        "dynamic": "strict",
        // By this mark `prepare` recognises its own index. It leaves others unchanged.
        "_meta": { VERSION_FIELD: VERSION },
        "properties": {
            "key": word,
            "schema": word,
            // Most fences are times in milliseconds. As a date, a fence can be compared with the current time.
            "fence": { "type": "long", "fields": { "time": date } },
            "lease": word,
            "owner": word,
            "acquired_at": shown,
            "expires_at": date,
            "note": note,
            "idle_since": shown,
            "released_at": date,
            "written_at": shown,
            "holders": { "properties": {
                "lease": word,
                "owner": word,
                "mode": word,
                "permits": number,
                "fence": number,
                "acquired_at": shown,
                "expires_at": shown,
                "note": note,
                "idle_since": shown,
            } },
            "evicted": not_parsed,
            "waiters": not_parsed,
            // The done tick.
            "done": not_parsed,
            "limiter": number,
            "granted_at": date,
            "window": number,
            "kind": word,
            "used": number,
            "last": word,
            "granted": number,
            "over_at": date,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("/aliases", json!({ "locks": {} }), "the alias locks-write"),
            ("/aliases", json!({ "locks-write": {} }), "the alias locks"),
        ] {
            let mut index = ours();
            let (parent, field) = place.rsplit_once('/').unwrap();
            index.pointer_mut(parent).unwrap()[field] = value;
            let told = located(index).unwrap_err();
            assert!(
                told.contains(problem) && told.contains("locks-v1"),
                "{told}"
            );
        }
    }

    /// An earlier version has made the mapping. `prepare` adds what is missing, so it does not refuse the index.
    #[test]
    fn a_field_that_the_mapping_lacks_is_named() {
        for (place, field) in [
            ("/properties", "idle_since"),
            ("/properties/holders/properties", "holders.idle_since"),
        ] {
            let mut older = ours();
            let fields = older["mappings"].pointer_mut(place).unwrap();
            fields.as_object_mut().unwrap().remove("idle_since");
            assert!(statements().fit_for_locks("locks-v1", &older).is_ok());
            let told = located(older.clone()).unwrap_err();
            assert!(told.contains(&format!("no field {field}")), "{told}");
            // The cluster adds the field by itself, or stores it without parsing it.
            older["mappings"]["dynamic"] = json!("false");
            assert!(located(older).is_ok());
        }
    }

    #[test]
    fn what_others_have_noted_in_the_mapping_stays() {
        let mut theirs = ours();
        theirs["mappings"]["_meta"] = json!({ "owner": "team", "leasehold_schema": 0 });
        let put = statements().put_mapping("locks-v1", &theirs);
        let Body::Json(mapping) = put.body else {
            panic!("{put:?}");
        };
        let meta = json!({ "owner": "team", "leasehold_schema": VERSION });
        assert_eq!(mapping["_meta"], meta);
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
}

//! The statements that set up an index. (`fitness.rs` has the conditions that the index must meet.)

use serde_json::{Value, json};

use super::{
    scripts::Script,
    statements::{Body, HttpRequest, Method, Statements, encoded},
};

/// The version of the mapping. `prepare` writes it into the mapping, and into the name of a new index.
pub(super) const VERSION: i64 = 1;
/// The field of `_meta` by which `prepare` recognises its own mappings.
pub(super) const VERSION_FIELD: &str = "leasehold_schema";
/// The value of the settings for pipelines that means "no pipeline".
pub(super) const NO_PIPELINE: &str = "_none";
/// How long a node waits for the master, which knows the indices.
const MASTER_TIMEOUT: &str = "5s";

impl Statements {
    /// The name of a new index.
    pub(crate) fn index(&self) -> String {
        format!("{}-v{VERSION}", self.alias)
    }

    /// Stores a script in the cluster.
    pub(crate) fn store_script(&self, script: &Script) -> HttpRequest {
        let body = json!({ "script": { "lang": "painless", "source": script.source } });
        put(format!("_scripts/{}", script.stored_name), body)
    }

    /// Creates the index with its aliases.
    pub(crate) fn create_index(&self, replicas: Option<u32>) -> HttpRequest {
        let mut settings = json!({
            // One shard, because locks are small and a list reads all of them.
            "number_of_shards": 1,
            // With this an acknowledged write is on disk, whatever the cluster's default is.
            "translog.durability": "request",
            // A template may have these settings too; those of the index take precedence.
            "default_pipeline": NO_PIPELINE,
            "final_pipeline": NO_PIPELINE,
        });
        match replicas {
            Some(replicas) => settings["number_of_replicas"] = json!(replicas),
            // One replica, as soon as there is a second node for it.
            None => settings["auto_expand_replicas"] = json!("0-1"),
        }
        let [alias, write_alias] = self.aliases();
        let body = json!({
            "settings": { "index": settings },
            "mappings": mapping(),
            "aliases": { alias: {}, write_alias: {} },
        });
        put(encoded(&self.index()), body)
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
        put(format!("{}/_mapping", encoded(index)), mapping)
    }

    /// The user's alias, and the one that operations are sent to.
    pub(crate) fn aliases(&self) -> [&str; 2] {
        [&self.alias, &self.target]
    }

    /// Adds these aliases to an existing index.
    pub(crate) fn put_aliases(&self, index: &str, aliases: &[&str]) -> HttpRequest {
        let add = |alias: &&str| json!({ "add": { "index": index, "alias": alias } });
        let actions: Vec<_> = aliases.iter().map(add).collect();
        let body = Body::Json(json!({ "actions": actions }));
        HttpRequest::new(Method::Post, "_aliases".to_owned(), body)
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
}

fn put(path: String, body: Value) -> HttpRequest {
    HttpRequest::new(Method::Put, path, Body::Json(body))
}

fn description_of(names: String) -> HttpRequest {
    HttpRequest::new(Method::Get, names, Body::None).with("master_timeout", MASTER_TIMEOUT)
}

pub(super) fn mapping() -> Value {
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
            "fence": number,
            "lease": word,
            "owner": word,
            "acquired_at": shown,
            "expires_at": date,
            "note": note,
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

    #[test]
    fn what_others_have_noted_in_the_mapping_stays() {
        let theirs = json!({ "mappings": { "_meta": { "owner": "team", "leasehold_schema": 0 } } });
        let put = Statements::of_locks("locks".into()).put_mapping("locks-v1", &theirs);
        let Body::Json(mapping) = put.body else {
            panic!("{put:?}");
        };
        let meta = json!({ "owner": "team", "leasehold_schema": VERSION });
        assert_eq!(mapping["_meta"], meta);
    }
}

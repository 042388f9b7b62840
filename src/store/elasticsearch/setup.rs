//! What is sent to set an index up: pure functions, as all of the dialect.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    dialect::{Body, Dialect, Method, Request},
    scripts::Script,
};
use crate::record::SCHEMA;

/// The mark of our mappings.
const OURS: &str = "leasehold_schema";

impl Dialect {
    /// The index behind the alias.
    pub(crate) fn index(&self) -> String {
        format!("{}-v{SCHEMA}", self.alias())
    }

    /// Stores a script in the cluster.
    pub(crate) fn store_script(&self, script: &Script) -> Request {
        Request {
            method: Method::Put,
            path: format!("_scripts/{}", script.stored_name()),
            query: &[],
            body: Body::Json(json!({
                "script": { "lang": "painless", "source": script.source() },
            })),
        }
    }

    /// Creates the index with its alias.
    pub(crate) fn create_index(&self, replicas: Option<u32>) -> Request {
        let mut settings = json!({
            // One shard: locks are small, and their lists are read whole.
            "number_of_shards": 1,
            // An acknowledged write is on disk, whatever the cluster's default.
            "translog.durability": "request",
        });
        match replicas {
            Some(replicas) => settings["number_of_replicas"] = json!(replicas),
            // One where there is a second node to have it.
            None => settings["auto_expand_replicas"] = json!("0-1"),
        }
        let alias = self.alias();
        Request {
            method: Method::Put,
            path: encoded(&self.index()),
            query: &[],
            body: Body::Json(json!({
                "settings": { "index": settings },
                "mappings": mapping(),
                "aliases": { alias: {} },
            })),
        }
    }

    /// Adds to an index that exists what it lacks of the mapping; refused if what it has differs.
    pub(crate) fn put_mapping(&self, index: &str) -> Request {
        Request {
            method: Method::Put,
            path: format!("{}/_mapping", encoded(index)),
            query: &[],
            body: Body::Json(mapping()),
        }
    }

    /// Gives an index that exists its alias.
    pub(crate) fn put_alias(&self, index: &str) -> Request {
        Request {
            method: Method::Put,
            path: format!("{}/_alias/{}", encoded(index), self.path()),
            query: &[],
            body: Body::None,
        }
    }

    /// Asks which indices have the alias.
    pub(crate) fn get_alias(&self) -> Request {
        Request {
            method: Method::Get,
            path: format!("_alias/{}", self.path()),
            query: &[],
            body: Body::None,
        }
    }

    /// Asks for the mapping of an index.
    pub(crate) fn get_mapping(&self, index: &str) -> Request {
        Request {
            method: Method::Get,
            path: format!("{}/_mapping", encoded(index)),
            query: &[],
            body: Body::None,
        }
    }
}

/// Whether an index has a mapping of ours, by the answer to [`Dialect::get_mapping`].
pub(crate) fn is_ours(answer: &Value, index: &str) -> bool {
    !answer[index]["mappings"]["_meta"][OURS].is_null()
}

fn encoded(index: &str) -> String {
    utf8_percent_encode(index, NON_ALPHANUMERIC).to_string()
}

fn mapping() -> Value {
    let word = json!({ "type": "keyword" });
    let number = json!({ "type": "long" });
    let date = json!({ "type": "date", "format": "epoch_millis" });
    // Only answered, never searched.
    let shown =
        json!({ "type": "date", "format": "epoch_millis", "index": false, "doc_values": false });
    json!({
        // What is neither a lock nor a limiter is refused.
        "dynamic": "strict",
        // What is not ours is left alone.
        "_meta": { OURS: SCHEMA },
        "properties": {
            "key": word,
            "schema": number,
            // Also as the time that it mostly is, to compare it with the time.
            "fence": { "type": "long", "fields": { "time": date } },
            "expires_at": date,
            "written_at": shown,
            "holders": { "properties": {
                "lease": word,
                "owner": word,
                "mode": word,
                "permits": number,
                "fence": number,
                "acquired_at": date,
                "expires_at": date,
                // For people; nobody searches it.
                "note": { "type": "keyword", "index": false, "doc_values": false },
            } },
            // Only answered, and not even looked at.
            "evicted": { "type": "object", "enabled": false },
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

//! Reads and searches.

use serde_json::json;

use super::{
    super::scripts::NOW,
    Statements, id,
    request::{Body, HttpRequest, probe_of},
};
use crate::{
    messages::ListRequest,
    model::{Key, SCHEMA},
};

/// The fields that a look for waiting processes reads.
const READ_FOR_PLACES: &str = "schema,fence,expires_at,lease,holders,waiters";

impl Statements {
    /// A get of the whole document of a key.
    pub(crate) fn get(&self, key: &Key) -> HttpRequest {
        self.post("_mget", Body::Json(json!({ "ids": [id(key)] })))
    }

    /// A get of the documents of several keys, of only the fields that tell whether a document is a lock, who holds it and
    /// who waits for it. The other fields are not sent: an owner and a note may be long.
    pub(crate) fn get_many(&self, keys: &[&Key]) -> HttpRequest {
        let ids: Vec<_> = keys.iter().map(|key| id(key)).collect();
        self.post("_mget", Body::Json(json!({ "ids": ids })))
            .with("_source_includes", READ_FOR_PLACES)
    }

    /// Makes earlier writes visible to searches.
    pub(crate) fn refresh(&self) -> HttpRequest {
        self.post("_refresh", Body::None)
    }

    /// A search for no documents.
    pub(crate) fn probe(&self) -> HttpRequest {
        probe_of(&self.path())
    }

    pub(crate) fn search(&self, request: &ListRequest) -> HttpRequest {
        let filter = &request.filter;
        // The prefix is a range, because some clusters forbid prefix queries as expensive. Keys are sorted by their
        // bytes, so those with the prefix come first, and the reader stops at the first key without it.
        let mut conditions = vec![
            json!({ "term": { "schema": SCHEMA } }),
            json!({ "range": { "key": { "gte": filter.wanted_prefix() } } }),
        ];
        if filter.wants_live() {
            // `now` is the clock of the node that takes the request. If that is ahead by less than an hour, it hides no
            // lock. The reader judges the locks by the clock of the node that has them.
            conditions.push(json!({ "range": { "expires_at": { "gt": "now-1h" } } }));
        }
        if let Some(owner) = filter.wanted_owner() {
            let held = ["owner", "holders.owner"].map(|field| json!({ "term": { field: owner } }));
            conditions.push(json!({ "bool": { "should": held } }));
        }
        let mut body = json!({
            "query": { "bool": { "filter": conditions } },
            "sort": [{ "key": "asc" }],
            "size": request.limit,
            "_source": true,
            "script_fields": { "now": { "script": self.script(&NOW) } },
            // The answer says whether there are any, so that an empty one is not taken for "nothing is held".
            "track_total_hits": 1,
        });
        if let Some(after) = &request.after {
            body["search_after"] = json!([after.as_str()]);
        }
        HttpRequest::search(&self.path(), body)
    }
}

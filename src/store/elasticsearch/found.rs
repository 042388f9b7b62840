//! What a search has found. Each field that was asked for must be in the answer, so that only a search of the whole
//! index can say that there is nothing.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

use super::{answer::Answer, statements::id};
use crate::{
    model::{Error, Key, LockRecord},
    store::json,
};

#[derive(Deserialize)]
struct Searched {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    hits: Hits,
}

#[derive(Deserialize)]
struct Shards {
    total: u64,
    successful: u64,
    failed: u64,
}

#[derive(Deserialize)]
struct Hits {
    total: Total,
    hits: Vec<Hit>,
}

/// How many documents there are, at least.
#[derive(Deserialize)]
struct Total {
    value: u64,
}

/// A document that a search has found.
#[derive(Debug, Deserialize)]
pub(super) struct Hit {
    #[serde(rename = "_index")]
    pub(super) index: String,
    #[serde(rename = "_id")]
    pub(super) id: String,
    /// The values by which the search sorts, from which the next page begins.
    #[serde(default)]
    pub(super) sort: Vec<Value>,
    /// The document, if it was asked for.
    #[serde(rename = "_source")]
    pub(super) source: Option<Value>,
    #[serde(default)]
    pub(super) fields: Value,
}

impl Hit {
    /// The text by which the search sorts first.
    pub(super) fn sorted_by(&self) -> Option<&str> {
        self.sort.first()?.as_str()
    }

    /// The lock of this key and the server's time, of which both were asked for.
    ///
    /// # Errors
    ///
    /// `None` if one of them is missing. [`Error::NotALock`] if the document is no lock, or that of another key.
    pub(super) fn lock(&self, key: &Key) -> Option<Result<(LockRecord, DateTime<Utc>), Error>> {
        let source = self.source.as_ref().filter(|source| source.is_object())?;
        let now = self.fields["now"][0].as_i64();
        let now = now.and_then(DateTime::from_timestamp_millis)?;
        Some(json::lock(source, key).and_then(|found| {
            if self.id != *id(key) {
                return Err(Error::not_a_lock(key, "it is the document of another key"));
            }
            Ok((found.at(now)?, now))
        }))
    }
}

/// The hits of a search that has seen the whole index. Every page but the first may be empty although there are documents.
pub(super) fn hits(answer: Answer, is_first: bool) -> Result<Vec<Hit>, Error> {
    let Answer { json, server } = answer;
    let Ok(Searched {
        timed_out,
        shards,
        hits: Hits { total, hits },
    }) = serde_json::from_value(json)
    else {
        return Err(server.malformed("it is not that of a search"));
    };
    let is_complete = shards.failed == 0 && shards.successful == shards.total && shards.total > 0;
    if timed_out || !is_complete {
        return Err(server.interrupted("a search has seen only a part of the index"));
    }
    let is_none = total.value == 0;
    if is_none != hits.is_empty() && (is_none || is_first) {
        return Err(server.malformed("it has not the hits that it counts"));
    }
    Ok(hits)
}

/// Requires that a refresh has reached every shard.
pub(super) fn is_refreshed(answer: Answer) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Refreshed {
        #[serde(rename = "_shards")]
        shards: Shards,
    }
    let Answer { json, server } = answer;
    match serde_json::from_value(json) {
        // A replica that has no node is counted, and has not failed.
        Ok(Refreshed { shards }) if shards.failed == 0 && shards.successful > 0 => Ok(()),
        Ok(_) => Err(server.interrupted("a refresh has reached only a part of the index")),
        Err(_) => Err(server.malformed("it is not that of a refresh")),
    }
}

/// Whether this is the answer to a search. A search for no documents says by it that its index is there.
pub(super) fn is_of_search(answer: &Answer) -> bool {
    Searched::deserialize(&answer.json).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::server::Server, *};

    fn answer(json: Value) -> Answer {
        let server = Server {
            store: "Elasticsearch",
            host: "es:9200".into(),
        };
        Answer { json, server }
    }

    fn searched() -> Value {
        json!({
            "timed_out": false, "_shards": { "total": 1, "successful": 1, "failed": 0 },
            "hits": { "total": { "value": 1, "relation": "gte" }, "hits": [{ "_index": "i", "_id": "k", "sort": ["k"] }] },
        })
    }

    #[test]
    fn only_a_whole_search_says_that_there_is_nothing() {
        assert_eq!(hits(answer(searched()), true).unwrap().len(), 1);
        let mut none = searched();
        none["hits"] = json!({ "total": { "value": 0, "relation": "eq" }, "hits": [] });
        assert!(hits(answer(none.clone()), true).unwrap().is_empty());
        for (pointer, value) in [
            ("/timed_out", json!(true)),
            ("/timed_out", json!(null)),
            ("/_shards/failed", json!(1)),
            ("/_shards/total", json!(0)),
            ("/_shards/successful", json!(0)),
            ("/_shards", json!({})),
            ("/hits/total", json!(null)),
            ("/hits/total/value", json!(1)),
            ("/hits/hits", json!({})),
            ("/hits", json!([])),
        ] {
            let mut odd = none.clone();
            *odd.pointer_mut(pointer).unwrap() = value;
            assert!(hits(answer(odd.clone()), true).is_err(), "{odd}");
        }
        for missing in ["_index", "_id"] {
            let mut odd = searched();
            odd["hits"]["hits"][0]
                .as_object_mut()
                .unwrap()
                .remove(missing);
            assert!(hits(answer(odd.clone()), true).is_err(), "{odd}");
        }
    }

    #[test]
    fn the_page_after_the_last_is_empty() {
        let mut last = searched();
        last["hits"]["hits"] = json!([]);
        assert!(hits(answer(last.clone()), false).unwrap().is_empty());
        assert!(hits(answer(last), true).is_err());
    }
}

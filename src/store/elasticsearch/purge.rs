//! The purge: a search finds documents that look as if they were over, and a scripted change of each of them deletes it
//! if it is over.
//!
//! The search may see documents as they were, and goes by the clock of the node that takes the request. The primary
//! shard runs the script on the document as it is, by its own clock, and deletes it only if no other change has come in
//! between. (An `_update_by_query` does not: if its script deletes, it deletes whatever the document has become since
//! the search.)

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CLOCK_MARGIN,
    answer::Effect,
    found::Hit,
    index_store::IndexStore,
    scripts::PURGE,
    statements::{HttpRequest, ScriptedUpdate, Statements, millis},
    transport::Transport,
};
use crate::model::{Error, Key, LIMITER_SCHEMA, SCHEMA};

/// How many documents are looked at together.
const PAGE: usize = 500;
/// By how many fields a search for them sorts.
const SORTED_BY: usize = 3;

impl<C: Transport> IndexStore<C> {
    /// Deletes the locks and limiters that have been over for the retention, and returns how many.
    pub(super) async fn purge_pages(&self, retention: Duration) -> Result<u64, Error> {
        let index = self.located().await?;
        self.refresh().await?;
        // The primary may change to a node whose clock is ahead.
        let retention = retention.saturating_add(CLOCK_MARGIN);
        let (mut after, mut removed) = (None, 0);
        loop {
            let is_first = after.is_none();
            let look = self.statements.look_over(retention, after);
            let (hits, server) = self.search(&look, &index, is_first).await?;
            let Some(last) = hits.last() else {
                return Ok(removed);
            };
            if hits.iter().any(|hit| hit.sort.len() != SORTED_BY) {
                return Err(server.malformed("a hit lacks what the search sorts by"));
            }
            let found: Vec<_> = hits.iter().filter_map(found).collect();
            let change = |id: &String| self.statements.purge(id.clone(), retention);
            let changes = found.iter().map(|(key, id)| (key, change(id))).collect();
            for outcome in self.change_many(changes).await? {
                if outcome?.is_some_and(|outcome| outcome.effect == Effect::Deleted) {
                    removed += 1;
                }
            }
            if hits.len() < PAGE {
                return Ok(removed);
            }
            after = Some(Value::Array(last.sort.clone()));
        }
    }
}

/// The key and the id of a document that was found. `None` if its key is none: then it is neither a lock nor a limiter.
fn found(hit: &Hit) -> Option<(Key, String)> {
    // A lock without the field has its key as the id.
    let key = hit.sorted_by().filter(|key| !key.is_empty());
    Some((Key::new(key.unwrap_or(&hit.id)).ok()?, hit.id.clone()))
}

impl Statements {
    /// Finds a page of the documents that seem to be over, without the documents.
    pub(crate) fn look_over(&self, retention: Duration, after: Option<Value>) -> HttpRequest {
        // The number in an expression such as `now-5s` has at most 32 bits.
        let seconds = retention.as_millis() / 1_000;
        let since = format!("now-{}s", seconds.min(2_000_000_000));
        let dead = json!({ "bool": {
            "filter": [{ "term": { "schema": SCHEMA } }],
            // A field that is missing keeps nothing. The script also looks at the fence, which the clock has passed long
            // before, unless one of the two was wrong.
            "must_not": [
                { "range": { "expires_at": { "gt": since } } },
                { "range": { "released_at": { "gt": since } } },
            ],
        } });
        let over = json!({ "bool": { "filter": [
            { "term": { "limiter": LIMITER_SCHEMA } },
            { "range": { "over_at": { "lte": since } } },
        ] } });
        let mut body = json!({
            "query": { "bool": { "should": [dead, over] } },
            // A key has one lock, and a limiter for each length and kind of window.
            "sort": [
                { "key": { "missing": "" } },
                { "window": { "missing": 0, "unmapped_type": "long" } },
                { "kind": { "missing": "", "unmapped_type": "keyword" } },
            ],
            "size": PAGE,
            "_source": false,
            "track_total_hits": 1,
        });
        if let Some(after) = after {
            body["search_after"] = after;
        }
        HttpRequest::search(&self.path(), body)
    }

    /// Deletes the document with this id, if it is a lock or a limiter that has been over for the retention. The answer
    /// does not have the document, for the same reason as that of [`remove_expired`](Self::remove_expired).
    pub(crate) fn purge(&self, id: String, retention: Duration) -> ScriptedUpdate {
        let params = json!({
            "schema": SCHEMA,
            "limiter": LIMITER_SCHEMA,
            "retention": millis(retention),
        });
        self.change_of(id, &PURGE, params).showing(json!(false))
    }
}

//! The rules as requests to Elasticsearch and OpenSearch: pure functions from a request to what is sent.
//!
//! Each change is an update with a script, which the primary shard runs on the document as it is at that moment. A
//! script that has nothing to change sets `ctx.op = 'none'`. The shard then writes nothing, and the answer still has
//! the document. The text of each script is constant, and values are passed as parameters, because the cluster compiles
//! every new text, and refuses to compile too many.
//!
//! An id is always in the body of a request, and never in its path: a proxy that maps a prefix of the path decodes the
//! path, resolves `.` and `..` and joins double slashes, and the request would then be for another document. So a change
//! is a `_bulk`, with one item if there is only one, and a read is an `_mget`.
//!
//! There are two more reasons for a `_bulk`. It reads and writes a document without a queue in between, so many changes
//! of one document succeed at the same time, where an `_update` is overtaken again and again. And what it writes passes
//! no ingest pipeline, which could remove the fence of a document, or change the holder of a lock. A free acquire takes as
//! long as by an `_update`, and a refusal takes up to a fifth longer (`search-crowd` in `docs/measurements.md`).

mod change;
mod request;
mod search;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, num::NonZeroU16, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) use self::{
    change::{Asked, ScriptedUpdate},
    request::{Body, HttpRequest, Method, encoded, is_name, probe_of},
};
use super::scripts::{
    ACQUIRE, ACQUIRE_IN_FULL, CONVERT, EVICT, INSPECT, LEAVE, RELEASE, RELEASE_DONE,
    REMOVE_EXPIRED, RENEW, Script,
};
use super::server::name;
use crate::{
    messages::{
        AcquireRequest, ConvertRequest, DoneTick, InTurn, OwnLeases, ReleaseRequest, RenewRequest,
        Turn,
    },
    model::{Access, Fence, Key, LeaseId, MAX_HOLDERS, MAX_PLACE_TIME, MAX_PLACES, SCHEMA},
    rules::turn,
};

/// After this time a change is on all copies, or the primary that made it is no longer the primary: the cluster notices
/// a node that is cut off after three checks of 11 s.
const CONFIRMED_AFTER: Duration = Duration::from_secs(40);

/// How often the shard runs a script again if another change of the document came in between. Only changes by the other
/// write threads of the node, one for each processor, can come in between, and another run waits in no queue.
const MAX_RETRIES: u32 = 256;
/// The prefix of the ids of limiters.
pub(super) const LIMITER: &str = "limiter:";
/// The UUID namespace of ids that are hashes.
pub(super) const HASHED: Uuid = Uuid::from_u128(0x5e9f_1e3b_6f0e_4b57_9d1c_0a6f_3c2d_8b41);
/// The suffix that makes the write alias from the user's alias.
const WRITE_ALIAS: &str = "-write";
/// How long the node waits for a missing primary shard.
const SHARD_TIMEOUT: &str = "5s";

/// Makes all changes and requests. It has the names that they go to, and the options that they share.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    /// The name that the user has given.
    pub(super) alias: String,
    /// The name that operations are sent to. For locks it is the write alias, that of the one index that they are
    /// written to. There are two reasons for a second alias. A rollover moves the user's alias to another index, and
    /// leaves the write alias. And a request can require that its target is an alias, so that no update creates a
    /// missing index.
    pub(super) target: String,
    pub(super) stored_scripts: bool,
    /// How many copies of the shard have to be active before a write.
    pub(super) active_shards: Option<u32>,
}

impl Statements {
    /// The statements for locks, whose operations go to the write alias.
    pub(crate) fn of_locks(alias: String) -> Self {
        Self {
            target: format!("{alias}{WRITE_ALIAS}"),
            ..Self::of_documents(alias)
        }
    }

    /// The statements for documents of the application, in an index or behind an alias.
    pub(crate) fn of_documents(name: String) -> Self {
        Self {
            target: name.clone(),
            alias: name,
            stored_scripts: false,
            active_shards: None,
        }
    }

    /// Checks that the name that the user has given [can be one](is_name). The error is the problem.
    pub(crate) fn has_name(&self) -> Result<(), String> {
        if is_name(&self.alias) {
            return Ok(());
        }
        Err(format!(
            "{:?} cannot be the name of an index or alias: use letters, digits, hyphens, underscores and dots",
            name(&self.alias)
        ))
    }

    /// An acquire, by a lean script if that is [enough](is_lean).
    pub(crate) fn acquire(&self, request: &AcquireRequest) -> ScriptedUpdate {
        if !is_lean(request) {
            return self.acquire_in_full(request);
        }
        self.change(&request.key, &ACQUIRE, of_acquire(request))
            .or_insert()
    }

    /// An acquire by the script that knows all rules.
    pub(crate) fn acquire_in_full(&self, request: &AcquireRequest) -> ScriptedUpdate {
        let mut params = of_acquire(request);
        params["mode"] = json!(request.access.mode().as_str());
        params["permits"] = json!(request.access.permits());
        params["capacity"] = json!(request.access.capacity());
        params["reentrant"] = json!(request.is_reentrant());
        params["taken_over"] = match &request.own_leases {
            OwnLeases::TakenOver(leases) => leases.iter().map(ToString::to_string).collect(),
            OwnLeases::Conflict | OwnLeases::Beside => Value::Null,
        };
        params["max_holders"] = json!(MAX_HOLDERS);
        if let Turn::InTurn(InTurn { counts_for, .. }) = request.turn {
            let counts_for = counts_for.min(MAX_PLACE_TIME);
            params["counts_for"] = json!(millis(counts_for));
            params["enough"] = json!(millis(turn::long_enough(counts_for)));
        }
        params["max_places"] = json!(MAX_PLACES);
        params["kind"] = json!(request.tick.map(|tick| tick.kind().as_str()));
        params["tick"] = json!(request.tick.map(|tick| tick.number()));
        params["confirmed_after"] = json!(millis(CONFIRMED_AFTER));
        params["all_bind"] = json!(millis(turn::MAX_BIND_TIME));
        self.change(&request.key, &ACQUIRE_IN_FULL, params)
            .or_insert()
    }

    /// Removes the place of a process.
    pub(crate) fn leave(&self, key: &Key, waiter: LeaseId) -> ScriptedUpdate {
        let params = json!({
            "schema": SCHEMA,
            "waiter": waiter.to_string(),
            "max_place_time": millis(MAX_PLACE_TIME),
        });
        self.change(key, &LEAVE, params)
    }

    pub(crate) fn renew(&self, request: &RenewRequest) -> ScriptedUpdate {
        let params = json!({
            "schema": SCHEMA,
            "lease": request.lease.to_string(),
            "ttl": millis(request.ttl),
        });
        self.change(&request.key, &RENEW, params)
    }

    pub(crate) fn convert(&self, request: &ConvertRequest) -> ScriptedUpdate {
        let params = json!({
            "schema": SCHEMA,
            "lease": request.lease.to_string(),
            "mode": request.conversion.mode().as_str(),
            "fence": request.fence.map(Fence::get),
        });
        self.change(&request.key, &CONVERT, params)
    }

    pub(crate) fn release(&self, request: &ReleaseRequest) -> ScriptedUpdate {
        if let Some(done) = request.done_tick() {
            return self.release_done(request, done);
        }
        let params = json!({
            "schema": SCHEMA,
            "lease": request.lease.to_string(),
            "min_hold": request.minimum_hold().map(|hold| millis(hold.time)),
            "under": request.minimum_hold().map(|hold| hold.placeholder.to_string()),
        });
        // The caller only has to know whether something was changed, so the answer needs no document.
        self.change(&request.key, &RELEASE, params)
            .showing(json!(false))
    }

    pub(crate) fn evict(&self, key: &Key) -> ScriptedUpdate {
        self.change(key, &EVICT, json!({ "schema": SCHEMA }))
    }

    /// Reads the lock by a script that changes nothing, because a get would not tell the node's time.
    pub(crate) fn inspect(&self, key: &Key) -> ScriptedUpdate {
        self.change(key, &INSPECT, json!({}))
    }

    /// A release that writes a done tick. The caller needs only whether something was written, so the answer does not
    /// have the document.
    fn release_done(&self, request: &ReleaseRequest, done: DoneTick) -> ScriptedUpdate {
        let params = json!({
            "schema": SCHEMA,
            "lease": request.lease.to_string(),
            "kind": done.tick.kind().as_str(),
            "tick": done.tick.number(),
            "kept_for": millis(done.kept_for),
        });
        self.change(&request.key, &RELEASE_DONE, params)
            .showing(json!(false))
    }

    /// The answer does not have the document: OpenSearch 2.5 fails with a null pointer exception, after the deletion,
    /// if a request asks for a document that its script deletes.
    pub(crate) fn remove_expired(&self, key: &Key) -> ScriptedUpdate {
        self.change(key, &REMOVE_EXPIRED, json!({ "schema": SCHEMA }))
            .showing(json!(false))
    }

    fn change(&self, key: &Key, script: &Script, params: Value) -> ScriptedUpdate {
        self.change_of(id(key).into_owned(), script, params)
    }

    pub(super) fn change_of(&self, id: String, script: &Script, params: Value) -> ScriptedUpdate {
        let mut script = self.script(script);
        script["params"] = params;
        ScriptedUpdate {
            id,
            body: json!({
                "script": script,
                // With a filter, the answer has the document as the script left it. Without one, it has the stored
                // document, without the fields that a script adds for the answer only.
                "_source": { "includes": ["*"] },
            }),
        }
    }

    fn script(&self, script: &Script) -> Value {
        if self.stored_scripts {
            json!({ "id": script.stored_name })
        } else {
            json!({ "lang": "painless", "source": script.source })
        }
    }

    /// One change as a request.
    pub(crate) fn update(&self, change: ScriptedUpdate) -> HttpRequest {
        self.bulk(vec![change])
    }

    /// Several changes as one request. The answers come in the same order.
    pub(crate) fn bulk(&self, changes: Vec<ScriptedUpdate>) -> HttpRequest {
        self.bulk_at(changes, true)
    }

    /// Several changes as one request, which may require that it is sent to an alias: an update of a missing index would
    /// create the index, with a guessed mapping, but never creates an alias.
    pub(super) fn bulk_at(&self, changes: Vec<ScriptedUpdate>, require_alias: bool) -> HttpRequest {
        let lines = changes.into_iter().flat_map(|change| {
            let action = json!({ "update": {
                "_id": change.id,
                "require_alias": require_alias,
                "retry_on_conflict": MAX_RETRIES,
            } });
            [action, change.body]
        });
        let request = self.post("_bulk", Body::Lines(lines.collect()));
        let request = request.with("timeout", SHARD_TIMEOUT);
        match self.active_shards {
            Some(copies) => request.with("wait_for_active_shards", copies.to_string()),
            None => request,
        }
    }

    /// A request to this API of the index that operations are sent to.
    fn post(&self, api: &str, body: Body) -> HttpRequest {
        HttpRequest::new(Method::Post, format!("{}/{api}", self.path()), body)
    }

    /// The name that operations are sent to, as a segment of a path.
    pub(super) fn path(&self) -> String {
        encoded(&self.target)
    }
}

/// Whether a lean script is enough for a request. That script knows neither several holders nor ticks, and does not
/// check which places count. It takes no place, and refuses a free key whose first place is another process's, unless
/// the request is [barging](Turn::Barging).
///
/// So a process that waits uses it at first, while the key is likely to be free, and again when its place is the first.
pub(super) fn is_lean(request: &AcquireRequest) -> bool {
    let has_to_write = request.likely_held || request.is_likely_to_write_place();
    let waits_already = request.turn.waiter().is_some() && has_to_write;
    let is_alone = request.access == Access::Exclusive && request.own_leases == OwnLeases::Conflict;
    is_alone && request.tick.is_none() && !waits_already
}

/// The parameters of each acquire. The number of fences is among them only if the scripts have to know it.
fn of_acquire(request: &AcquireRequest) -> Value {
    let mut params = json!({
        "schema": SCHEMA,
        "key": request.key.as_str(),
        "lease": request.lease.to_string(),
        "owner": &*request.owner,
        "ttl": millis(request.ttl),
        "note": request.note.as_deref(),
        "barging": request.turn == Turn::Barging,
        "waiter": request.turn.waiter().map(|waiter| waiter.to_string()),
        "max_place_time": millis(MAX_PLACE_TIME),
    });
    if request.fences != NonZeroU16::MIN {
        params["fences"] = json!(request.fences);
    }
    params
}

/// The id of the document of a key. It is the key itself, unless the key begins like the id of a limiter. The id is
/// then a hash, because an id may not be longer than the longest key. Its second colon distinguishes it from the id of
/// a limiter.
pub(super) fn id(key: &Key) -> Cow<'_, str> {
    if key.as_str().starts_with(LIMITER) {
        format!(
            "{LIMITER}:{}",
            Uuid::new_v5(&HASHED, key.as_str().as_bytes())
        )
        .into()
    } else {
        key.as_str().into()
    }
}

/// The duration in milliseconds, at most some 100,000 years, because the sum of it and the current time must still be a
/// date.
pub(super) fn millis(duration: Duration) -> i64 {
    const MAX_MILLIS: i64 = 4_000_000_000_000_000;
    i64::try_from(duration.as_millis()).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS))
}

//! The requests for permits of a limiter and to give them back, and the look at it.

use serde_json::json;
use uuid::Uuid;

use super::{
    scripts::{GIVE_BACK, INSPECT, PERMIT},
    statements::{HASHED, LIMITER, ScriptedUpdate, Statements, millis},
};
use crate::{
    messages::{GiveBackRequest, PermitRequest},
    model::{Key, LIMITER_SCHEMA, Quota, WindowKind},
    rules::{CLOCK_STEP, YEAR},
};

impl Statements {
    pub(crate) fn permit(&self, request: &PermitRequest) -> ScriptedUpdate {
        let quota = &request.quota;
        let params = json!({
            "limiter": LIMITER_SCHEMA,
            "key": request.key.as_str(),
            "id": request.id.to_string(),
            "permits": request.permits.max(1),
            "times": request.times.max(1),
            "kind": quota.kind(),
            "limit": quota.limit(),
            "smooth": quota.window_kind() != WindowKind::Fixed,
            "window": quota.window_millis(),
            "interval": quota.interval_nanos(),
            "credit": quota.credit_nanos(),
            "debt": quota.max_debt_nanos(),
            "step": millis(CLOCK_STEP),
            "year": YEAR,
            "memory": quota.memory_millis(),
        });
        self.change_of(limiter_id(&request.key, quota), &PERMIT, params)
            .or_insert()
    }

    pub(crate) fn give_back(&self, request: &GiveBackRequest) -> ScriptedUpdate {
        let (quota, permits) = (&request.quota, i64::from(request.permits));
        let params = json!({
            "limiter": LIMITER_SCHEMA,
            "key": request.key.as_str(),
            "permits": permits,
            "granted_at": request.granted_at.timestamp_millis(),
            "smooth": quota.window_kind() != WindowKind::Fixed,
            "window": quota.window_millis(),
            "cost": permits.saturating_mul(quota.interval_nanos()),
            "step": millis(CLOCK_STEP),
            "year": YEAR,
        });
        let id = limiter_id(&request.key, quota);
        // The caller need not know what the document has, so the answer is short.
        self.change_of(id, &GIVE_BACK, params).showing(json!(false))
    }

    /// Reads a limiter, as an inspect reads a lock.
    pub(crate) fn peek(&self, key: &Key, quota: &Quota) -> ScriptedUpdate {
        self.change_of(limiter_id(key, quota), &INSPECT, json!({}))
    }
}

/// The id of a limiter's document. A key has one such document for each kind and length of window. The id is a hash for
/// two reasons: the plain key is the id of the lock, and a key with a prefix could be longer than an id may be.
fn limiter_id(key: &Key, quota: &Quota) -> String {
    let (kind, window) = (quota.kind(), quota.window_millis());
    let name = format!("{kind}:{window}:{key}");
    format!("{LIMITER}{}", Uuid::new_v5(&HASHED, name.as_bytes()))
}

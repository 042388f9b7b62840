//! The request for permits of a limiter.

use serde_json::json;
use uuid::Uuid;

use super::{
    scripts::PERMIT,
    statements::{HASHED, LIMITER, ScriptedUpdate, Statements, millis},
};
use crate::{
    messages::PermitRequest,
    model::{LIMITER_SCHEMA, WindowKind},
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
        self.change_of(limiter_id(request), &PERMIT, params)
            .or_insert()
    }
}

/// The id of a limiter's document. A key has one such document for each kind and length of window. The id is a hash for
/// two reasons: the plain key is the id of the lock, and a key with a prefix could be longer than an id may be.
fn limiter_id(request: &PermitRequest) -> String {
    let quota = &request.quota;
    let (kind, window, key) = (quota.kind(), quota.window_millis(), &request.key);
    let name = format!("{kind}:{window}:{key}");
    format!("{LIMITER}{}", Uuid::new_v5(&HASHED, name.as_bytes()))
}

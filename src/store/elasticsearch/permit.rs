//! Permits of a limiter: what is sent, and what the answer says.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{
    IndexStore, Transport,
    answer::{Effect, Outcome},
    dialect::{Change, Dialect, millis},
    scripts::PERMIT,
};
use crate::{
    Error, Key, LimiterRecord, PermitAnswer, PermitId, PermitRequest,
    record::LIMITER_SCHEMA,
    rules::{self, CLOCK_STEP, YEAR},
};

/// The namespace of the ids.
const LIMITERS: Uuid = Uuid::from_u128(0x5e9f_1e3b_6f0e_4b57_9d1c_0a6f_3c2d_8b41);

impl<C: Transport> IndexStore<C> {
    pub(super) async fn take(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let change = self.dialect.permit(request);
        let Some(outcome) = self.change(&request.key, change).await? else {
            return Err(self.senseless("an upsert found no document"));
        };
        match outcome.limiter(&request.key)? {
            (record, Some(now)) => Ok(rules::answer_permit(&record, request, now)),
            (_, None) => Err(self.senseless("it tells no time")),
        }
    }
}

impl Dialect {
    pub(crate) fn permit(&self, request: &PermitRequest) -> Change {
        let quota = &request.quota;
        let params = json!({
            "limiter": LIMITER_SCHEMA,
            "key": request.key.as_str(),
            "id": request.id.to_string(),
            "permits": request.permits.max(1),
            "times": request.times.max(1),
            "kind": quota.kind(),
            "limit": quota.limit(),
            "smooth": quota.burst().is_some(),
            "window": quota.window_millis(),
            "interval": quota.interval_nanos(),
            "credit": quota.credit_nanos(),
            "step": millis(CLOCK_STEP),
            "year": YEAR,
            "memory": quota.memory_millis(),
        });
        self.change_of(limiter_id(request), &PERMIT, params)
            .or_insert()
    }
}

/// The id of a limiter's document, of which each key has one for windows of one length and kind. A lock of
/// the same key has the key itself for an id; and an id must not be longer than the longest key, so a
/// mere prefix would not do.
fn limiter_id(request: &PermitRequest) -> String {
    let quota = &request.quota;
    let (kind, window, key) = (quota.kind(), quota.window_millis(), &request.key);
    let name = format!("{kind}:{window}:{key}");
    format!("limiter:{}", Uuid::new_v5(&LIMITERS, name.as_bytes()))
}

impl Outcome {
    /// The limiter, and the node's time, as [`Outcome::record`] has them for a lock.
    fn limiter(&self, key: &Key) -> Result<(LimiterRecord, Option<DateTime<Utc>>), Error> {
        let not_a_limiter = |problem: String| Error::NotALimiter {
            key: key.clone(),
            problem,
        };
        match self.source["limiter"].as_i64() {
            Some(LIMITER_SCHEMA) => {}
            Some(found) => {
                let key = key.clone();
                return Err(Error::UnsupportedSchema { key, found });
            }
            None => return Err(not_a_limiter("it has no schema number".to_owned())),
        }
        let stored =
            Stored::deserialize(&self.source).map_err(|error| not_a_limiter(error.to_string()))?;
        if stored.key != key.as_str() {
            return Err(not_a_limiter(
                "it is the document of another key".to_owned(),
            ));
        }
        let time = |millis| {
            DateTime::from_timestamp_millis(millis)
                .ok_or_else(|| not_a_limiter(format!("{millis} is no time")))
        };
        let last = PermitId::parse(&stored.last);
        let last = last.ok_or_else(|| not_a_limiter("its last grant is no UUID".to_owned()))?;
        let record = LimiterRecord::new(
            key.clone(),
            time(stored.granted_at)?,
            stored.used,
            (last, stored.granted),
            time(stored.over_at)?,
        );
        let now = match self.effect {
            Effect::Written => stored.written_at,
            Effect::None => stored.now,
            Effect::Deleted => None,
        };
        Ok((record, now.and_then(DateTime::from_timestamp_millis)))
    }
}

/// The document, with times in milliseconds.
#[derive(Deserialize)]
struct Stored {
    key: String,
    granted_at: i64,
    used: i64,
    last: String,
    granted: i64,
    over_at: i64,
    /// The node's time of the last change.
    written_at: Option<i64>,
    /// Only shown, never stored.
    now: Option<i64>,
}

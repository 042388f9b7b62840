//! Tests of the rules of locks, at times that the tests choose.

mod done;
mod grant;
mod hold;
mod random_turns;
mod state;
mod turn;

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Decision, Write, acquire as try_acquire, convert as try_convert, evict as try_evict};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction},
    model::{Error, Key, LeaseId, LockRecord},
};

const TTL: Duration = Duration::from_secs(10);

fn at(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap()
}

fn ask(lease: LeaseId) -> AcquireRequest {
    AcquireRequest::exclusive(Key::new("k").unwrap(), lease, "me".into(), TTL)
}

fn put(write: Write) -> LockRecord {
    match write {
        Write::Put(record) => record,
        other => panic!("expected a written document, got {other:?}"),
    }
}

/// A decision about a key that has not had its last fence.
fn made<A>(decision: Decision<Result<A, Error>>) -> Decision<A> {
    Decision {
        write: decision.write,
        answer: decision.answer.unwrap(),
    }
}

fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<AcquireAnswer> {
    made(try_acquire(record, request, now))
}

fn convert(
    record: Option<&LockRecord>,
    request: &ConvertRequest,
    now: DateTime<Utc>,
) -> Decision<ConvertAnswer> {
    made(try_convert(record, request, now))
}

fn evict(record: Option<&LockRecord>, now: DateTime<Utc>) -> Decision<Option<Eviction>> {
    made(try_evict(record, now))
}

fn granted(lease: LeaseId, record: Option<&LockRecord>, now: i64) -> LockRecord {
    put(acquire(record, &ask(lease), at(now)).write)
}

fn holders(record: &LockRecord) -> Vec<LeaseId> {
    record.holders.iter().map(|holder| holder.lease).collect()
}

fn try_put(record: &LockRecord, request: &AcquireRequest, now: i64) -> Option<LockRecord> {
    match acquire(Some(record), request, at(now)).write {
        Write::Put(record) => Some(record),
        _ => None,
    }
}

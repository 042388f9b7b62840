//! Tests of the rules of locks, at times that the tests choose.

mod grant;
mod hold;
mod state;

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Write, acquire};
use crate::{
    messages::AcquireRequest,
    model::{Key, LeaseId, LockRecord},
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

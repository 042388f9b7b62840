//! The server: it carries a request out by the rule of the library. A fault changes what the rule gets or writes.

use chrono::{DateTime, Utc};
use leasehold::{
    rules::{self, Write},
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Grant, LeaseId, LockRecord,
        ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};

/// A rule, and the request that it gets.
pub enum Call {
    Acquire(AcquireRequest),
    Renew(RenewRequest),
    Convert(ConvertRequest),
    Release(ReleaseRequest),
    Leave(LeaseId),
    Evict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The lease is live, and as the request wants it.
    Granted(Grant),
    Refused,
    /// The lease is not live, or its tick is done.
    Ended,
    /// Another request was carried out.
    Done,
}

/// What is wrong with the server.
#[derive(Clone, Copy)]
pub enum Fault {
    /// What a rule gets is changed: the document, the request, the time.
    Before(fn(&mut LockRecord, &mut Call, &mut DateTime<Utc>)),
    /// What a rule writes is changed. The document before it is known.
    After(fn(&LockRecord, &Call, &mut LockRecord)),
}

pub fn carry_out(
    fault: Option<Fault>,
    record: Option<&LockRecord>,
    mut call: Call,
    mut now: DateTime<Utc>,
) -> (Write, Answer) {
    let mut found = record.cloned();
    if let (Some(Fault::Before(fault)), Some(found)) = (fault, &mut found) {
        fault(found, &mut call, &mut now);
    }
    let (mut write, answer) = by_rule(found.as_ref(), &call, now);
    let put = (fault, record, &mut write);
    if let (Some(Fault::After(fault)), Some(record), Write::Put(put)) = put {
        fault(record, &call, put);
    }
    (write, answer)
}

fn by_rule(record: Option<&LockRecord>, call: &Call, now: DateTime<Utc>) -> (Write, Answer) {
    match call {
        Call::Acquire(request) => {
            let it = rules::acquire(record, request, now);
            match it.answer.unwrap() {
                AcquireAnswer::Granted(grant) => (it.write, Answer::Granted(grant)),
                AcquireAnswer::Held(_) => (it.write, Answer::Refused),
                AcquireAnswer::Done(_) => (it.write, Answer::Ended),
            }
        }
        Call::Renew(request) => {
            let it = rules::renew(record, request, now);
            match it.answer {
                RenewAnswer::Renewed(grant) => (it.write, Answer::Granted(grant)),
                _ => (it.write, Answer::Ended),
            }
        }
        Call::Convert(request) => {
            let it = rules::convert(record, request, now);
            match it.answer.unwrap() {
                ConvertAnswer::Converted(grant) => (it.write, Answer::Granted(grant)),
                _ => (it.write, Answer::Refused),
            }
        }
        Call::Release(request) => {
            let it = rules::release(record, request, now);
            match it.answer {
                ReleaseAnswer::Released => (it.write, Answer::Done),
                ReleaseAnswer::NotHeld => (it.write, Answer::Ended),
            }
        }
        Call::Leave(waiter) => (rules::leave(record, *waiter, now).write, Answer::Done),
        Call::Evict => (rules::evict(record, now).write, Answer::Done),
    }
}

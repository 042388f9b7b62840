//! The server: it carries a request out by the rule of the library. A fault changes what the rule gets or writes.

use chrono::{DateTime, Utc};
use leasehold::{
    rules::{self, Write},
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LeaseId, LockRecord,
        ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    },
};

use super::{state::State, steps::Setting};

/// A rule, and the request that it gets.
pub enum Call {
    Acquire(AcquireRequest),
    Renew(RenewRequest),
    Convert(ConvertRequest),
    Release(ReleaseRequest),
    Leave(LeaseId),
    Evict,
}

/// The answer of the rule, if it tells the client anything.
pub enum Answer {
    Acquire(AcquireAnswer),
    Renew(RenewAnswer),
    Convert(ConvertAnswer),
    Release(ReleaseAnswer),
    Nothing,
}

/// What is wrong with the server.
#[derive(Clone, Copy)]
pub enum Fault {
    /// What a rule gets is changed: the document, the request, the time.
    Before(fn(&mut LockRecord, &mut Call, &mut DateTime<Utc>)),
    /// What a rule writes is changed. The document before it is known.
    After(fn(&LockRecord, &Call, &mut LockRecord)),
}

impl Setting {
    pub fn carry_out(
        &self,
        state: &State,
        mut call: Call,
        mut now: DateTime<Utc>,
    ) -> (Write, Answer) {
        let mut found = state.document.clone();
        if let (Some(Fault::Before(fault)), Some(found)) = (self.fault, &mut found) {
            fault(found, &mut call, &mut now);
        }
        let (mut write, answer) = by_rule(found.as_ref(), &call, now);
        let put = (self.fault, &state.document, &mut write);
        if let (Some(Fault::After(fault)), Some(before), Write::Put(put)) = put {
            fault(before, &call, put);
        }
        (write, answer)
    }
}

fn by_rule(record: Option<&LockRecord>, call: &Call, now: DateTime<Utc>) -> (Write, Answer) {
    match call {
        Call::Acquire(request) => {
            let it = rules::acquire(record, request, now);
            (it.write, Answer::Acquire(it.answer.unwrap()))
        }
        Call::Renew(request) => {
            let it = rules::renew(record, request, now);
            (it.write, Answer::Renew(it.answer))
        }
        Call::Convert(request) => {
            let it = rules::convert(record, request, now);
            (it.write, Answer::Convert(it.answer.unwrap()))
        }
        Call::Release(request) => {
            let it = rules::release(record, request, now);
            (it.write, Answer::Release(it.answer))
        }
        Call::Leave(waiter) => (rules::leave(record, *waiter, now).write, Answer::Nothing),
        Call::Evict => (rules::evict(record, now).write, Answer::Nothing),
    }
}

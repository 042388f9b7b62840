//! The server: it carries a request out by the rule of the library. A fault changes what the rule gets.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold::{
    rules::{self, Decision, Write},
    store::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, LockRecord, ReleaseAnswer,
        ReleaseRequest, RenewAnswer, RenewRequest,
    },
};

use super::state::Ask;

/// What a rule gets beside the document.
#[derive(Clone)]
pub struct Call {
    pub ask: Ask,
    /// The lease that this is about, with the terms on which its client asks for it.
    pub terms: AcquireRequest,
    pub now: DateTime<Utc>,
}

/// What is wrong with the server.
pub type Fault = fn(&mut Call, &mut LockRecord);

/// The answer is whether the client gets what it asks for. What exactly it gets is read from the document, as the rules
/// do for their answers.
pub fn carry_out(call: Call, record: Option<&LockRecord>) -> (Write, bool) {
    let Call { ask, terms, now } = call;
    let (key, lease) = (terms.key.clone(), terms.lease);
    match ask {
        Ask::Acquire => told(rules::acquire(record, &terms, now), |it| {
            matches!(it.unwrap(), AcquireAnswer::Granted(_))
        }),
        Ask::Renew => {
            let request = RenewRequest::new(key, lease, terms.ttl);
            let decision = rules::renew(record, &request, now);
            told(decision, |it| matches!(it, RenewAnswer::Renewed(_)))
        }
        Ask::Convert(conversion, fence) => {
            let mut request = ConvertRequest::upgrade(key, lease).of_fence(fence);
            request.conversion = conversion;
            told(rules::convert(record, &request, now), |it| {
                matches!(it.unwrap(), ConvertAnswer::Converted(_))
            })
        }
        Ask::Release(done) => {
            let mut request = ReleaseRequest::new(key, lease);
            if let Some(tick) = done {
                request = request.done(tick, Duration::ZERO);
            }
            let decision = rules::release(record, &request, now);
            told(decision, |it| it == ReleaseAnswer::Released)
        }
        Ask::Leave(waiter) => told(rules::leave(record, waiter, now), |()| true),
        Ask::Evict => told(rules::evict(record, now), |it| it.unwrap().is_some()),
    }
}

fn told<A>(by: Decision<A>, is_yes: fn(A) -> bool) -> (Write, bool) {
    (by.write, is_yes(by.answer))
}

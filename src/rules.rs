//! The rules of a lock and of a limiter, as functions of a document, a request and the server's time.
//!
//! Nothing here reads a clock or does I/O. The memory store runs these functions as they are; the
//! other stores translate them for their database, and read their answers with
//! [`answer_acquire`] and [`answer_renew`], so that no store words an answer of its own.

mod admin;
mod decision;
mod grant;
mod lease;
mod permit;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) use self::permit::YEAR;
pub use self::{
    admin::{answer_evict, evict, inspect, matches, remove_expired},
    decision::{Decision, Write, next_fence},
    grant::{acquire, answer_acquire, is_full},
    lease::{answer_convert, answer_renew, convert, release, renew},
    permit::{CLOCK_STEP, answer_permit, is_over, permit},
};

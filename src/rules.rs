//! The rules of a lock and of a limiter, as functions of a document, a request and the server's time.
//!
//! No function here reads a clock or does I/O. The memory store and the SQLite store run them. The stores for
//! MongoDB, Elasticsearch and OpenSearch translate them into a statement or a script of the database, and read the
//! answer from the document with the functions named `answer_...`, so that the same document means the same answer in
//! each store. The MongoDB store also runs [`acquire`] on a document that it has read, to refuse a request without a
//! write.

mod admin;
mod decision;
mod done;
mod grant;
mod lease;
mod permit;
#[cfg(test)]
mod tests;
pub mod turn;

#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) use self::decision::{is_last, no_next_fence};
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) use self::permit::YEAR;
pub use self::{
    admin::{answer_evict, evict, inspect, matches, remove_expired},
    decision::{Decision, Write, next_fence},
    done::answer_release_done,
    grant::{acquire, answer_acquire, is_full},
    lease::{answer_convert, answer_renew, convert, release, renew},
    permit::{CLOCK_STEP, answer_permit, is_over, permit},
    turn::leave,
};

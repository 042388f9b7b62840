//! The rules of locks and limiters, as pure functions of a document, a request and the server's time.
//!
//! No function here reads a clock or does I/O. The memory store and the SQLite store call the functions directly. The
//! stores for MongoDB, Elasticsearch and OpenSearch translate each rule into a statement or a script of the database.
//! They read the answer from the document with the functions named `answer_...`, so that the same document means the
//! same answer in every store. These stores also run [`acquire`] on a document that they have read, to refuse a request
//! without a write.
//!
//! A rule returns a [`Decision`]: what to write, and what to answer. A store that can lock its documents needs no more
//! than this:
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{
//!     Key,
//!     rules::{self, Write},
//!     store::{AcquireAnswer, AcquireRequest, LeaseId},
//! };
//!
//! let (key, ttl) = (Key::new("report:42")?, Duration::from_secs(30));
//! let request = |owner: &str| {
//!     AcquireRequest::exclusive(key.clone(), LeaseId::random(), owner.into(), ttl)
//! };
//! let now = chrono::Utc::now();
//!
//! let first = rules::acquire(None, &request("pod-1"), now);
//! assert!(matches!(first.answer?, AcquireAnswer::Granted(_)));
//! let Write::Put(document) = first.write else { unreachable!("a grant writes") };
//!
//! let second = rules::acquire(Some(&document), &request("pod-2"), now);
//! assert!(matches!(second.answer?, AcquireAnswer::Held(_)));
//! assert_eq!(second.write, Write::Keep); // A refusal writes nothing.
//! # Ok::<(), leasehold::Error>(())
//! ```

// - `grant.rs` decides whether a lease is granted, `turn.rs` which of the waiting processes come before it, and
//   `done.rs` whether its tick is done.
// - `lease.rs` has what a holder does with its lease, and `admin.rs` what others do with a key.
// - `permit.rs` is the rule of a limiter. (Permits of a lease are a mode of access: `grant.rs`.)
// - `decision.rs` is the type of a result.
mod admin;
mod decision;
mod done;
mod grant;
mod lease;
mod permit;
#[cfg(test)]
mod tests;
pub mod turn;

#[allow(
    unused_imports,
    reason = "some of them are only for the stores of some features"
)]
pub(crate) use self::{admin::found, decision::no_next_fence, done::not_due, permit::YEAR};
pub use self::{
    admin::{answer_evict, evict, inspect, look, matches, remove_expired},
    decision::{Decision, Write, last_of_next, next_fence},
    done::answer_release_done,
    grant::{acquire, answer_acquire, is_full},
    lease::{answer_convert, answer_renew, convert, release, renew},
    permit::{CLOCK_STEP, answer_permit, give_back, is_over, peek, permit},
    turn::leave,
};

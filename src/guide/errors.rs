//! Errors, and what a dropped future leaves behind.
//!
//! That another holds a lock is an answer, not an [`Error`](crate::Error). Three questions to an error decide
//! what to do with it:
//!
//! - Whether the same call may succeed later although nothing is changed for it:
//!   [`Error::is_retryable`](crate::Error::is_retryable).
//! - Whether the request may have been carried out although the call failed:
//!   [`Error::is_ambiguous`](crate::Error::is_ambiguous).
//! - Of which kind it is, one of a few that do not change, to count or match on:
//!   [`Error::kind`](crate::Error::kind).
//!
//! An acquire that fails or is dropped midway leaves no lock behind: what it may have been granted is released
//! in the background, as long as the runtime lives.
//!
//! # Cancellation
//!
//! Every future of this crate may be dropped at any point, by a `select!` or a timeout. The requests for leases
//! and permits that it has sent go on in tasks of their own, to their end; a lease that they are granted and that
//! nobody takes is released.
//! Each async method says under "Cancel safety" what a drop means for it.

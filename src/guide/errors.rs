//! Errors, and what a dropped future leaves behind.
//!
//! For [`try_acquire`](crate::Leases::try_acquire), a key that another owner holds is an answer and not an
//! [`Error`](crate::Error). Three methods of an error say what to do with it:
//!
//! - [`Error::is_retryable`](crate::Error::is_retryable): whether the same call may succeed later, unchanged.
//! - [`Error::is_ambiguous`](crate::Error::is_ambiguous): whether the store may have carried out the request
//!   although the call failed.
//! - [`Error::kind`](crate::Error::kind): one of a few kinds, to count or to match on.
//!
//! An acquire that fails or is dropped midway leaves no lock behind: the library releases in the background
//! what the store may have granted. If the runtime ends or the store cannot be reached before that is done,
//! the key is free when the ttl is over.
//!
//! # Cancellation
//!
//! Every future of this crate may be dropped at any point, by a `select!` or a timeout. The requests for leases
//! and permits that the future has sent go on in tasks of their own until they are answered. If a request is granted
//! a lease, its task releases the lease. Granted permits are spent.
//! Each async method says under "Cancel safety" what a drop means for it.

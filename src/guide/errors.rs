//! Errors, and what a dropped future leaves behind.
//!
//! [`Leases::try_acquire`](crate::Leases::try_acquire) does not fail for a held key: it returns
//! [`Attempt::Held`](crate::Attempt::Held). An acquire that waits with a bound returns
//! [`Error::WaitTimedOut`](crate::Error::WaitTimedOut) if the key is still held when the time is over.
//!
//! Three methods of an [`Error`](crate::Error) say what the caller can do:
//!
//! - [`Error::is_retryable`](crate::Error::is_retryable): whether the same call may succeed later, unchanged.
//! - [`Error::is_ambiguous`](crate::Error::is_ambiguous): whether the store may have carried out the request
//!   although the call failed.
//! - [`Error::kind`](crate::Error::kind): one of a few kinds, to count or to match on.
//!
//! ```
//! # use std::time::Duration;
//! # use leasehold::{Error, Leases, MemoryStore};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! # let leases = Leases::new(MemoryStore::new());
//! let acquire = leases.acquire("report:42", Duration::from_secs(30)).wait_for(Duration::from_secs(5));
//! match acquire.await {
//!     Ok(lease) => lease.release().await?,
//!     Err(Error::WaitTimedOut { held, .. }) => println!("still held by {}", held.owner()),
//!     Err(error) if error.is_retryable() => println!("try again later: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
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

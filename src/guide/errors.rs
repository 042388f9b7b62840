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
//!
//! # How long a call takes
//!
//! At most, when nothing else goes wrong than that the store fails or does not answer. A request takes as long as the
//! client of the database needs to fail (on MongoDB the `server_selection_timeout`), but not longer than the
//! [`call_timeout`](crate::LeasesBuilder::call_timeout): 10 s, unless you set it. Pauses between requests are below a
//! tenth of a second in all.
//!
//! | call | takes at most |
//! |---|---|
//! | [`try_acquire`](crate::Leases::try_acquire) | three requests, each no longer than the ttl. With `keep_alive` a third of the ttl more, while renewals are late |
//! | [`acquire`](crate::Leases::acquire) with [`wait_for`](crate::Acquire::wait_for) | that time and a request |
//! | `acquire` without | as long as the key is held; if the store fails, three requests, and the `call_timeout` since its last answer |
//! | [`Acquire::with`](crate::Acquire::with), [`TryAcquire::with`](crate::TryAcquire::with) | the acquire, the work, and 2 s |
//! | [`renew`](crate::Lease::renew), [`upgrade`](crate::Lease::upgrade), [`downgrade`](crate::Lease::downgrade) | three requests, and no longer than the lease is live |
//! | [`release`](crate::Lease::release) | three requests |
//! | [`RunOnce::run`](crate::jobs::RunOnce::run) | a `try_acquire`, the work, and a release |
//! | [`inspect`](crate::Leases::inspect), [`evict`](crate::Leases::evict), [`last_done`](crate::Leases::last_done), [`peek`](crate::Limiter::peek), [`give_back`](crate::Permit::give_back), a page of [`list`](crate::Leases::list) | a request |
//! | [`permit`](crate::Limiter::permit) with [`wait_for`](crate::TakePermit::wait_for) | that time and a request, which is given up after the window, but after 5 s at least; with [several limits](crate::Limiter::and), as many of them |
//! | [`close`](crate::Leases::close) | the longest ttl and a few requests |
//! | `is_live`, `lost`, `fence` and other answers of a [`Lease`](crate::Lease) | they send nothing |
//!
//! `tokio::time::timeout` bounds each of them, because each is cancel safe. For a service that must answer within two
//! seconds, a `call_timeout` of 600 ms does it: `examples/more/axum_lock.rs`.

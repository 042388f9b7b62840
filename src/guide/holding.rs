//! How to acquire a lease, hold it, notice its loss, and release it.
//!
//! [`Acquire::with`](crate::Acquire::with) is the short way: it runs a future, renews the lease meanwhile, stops the
//! future if the lease is lost, and releases the lease at the end. The same can be written with
//! [`keep_alive`](crate::Acquire::keep_alive), [`Lease::lost`](crate::Lease::lost) and
//! [`Lease::release`](crate::Lease::release):
//!
//! ```
//! # use std::time::Duration;
//! # use leasehold::{Leases, MemoryStore};
//! # async fn work() -> std::io::Result<()> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let leases = Leases::new(MemoryStore::new());
//! let lease = leases.acquire("leader", Duration::from_secs(10)).keep_alive().await?;
//! tokio::select! {
//!     done = work() => done?,
//!     why = lease.lost() => return Err(why.into()),
//! }
//! lease.release().await?;
//! leases.close().await; // At the end of the program: releases every lease that is still held.
//! # Ok(())
//! # }
//! ```
//!
//! A [`Lease`](crate::Lease) that is dropped is released in the background, by a task of the runtime. If the runtime
//! ends before that, as at the end of `main`, the key stays held until its ttl is over.
//! [`Leases::close`](crate::Leases::close) waits for such releases: call it at the end of `main`.
//!
//! # How long a ttl should be
//!
//! When a holder dies, waiters for its key wait for the rest of its ttl. A lease that is kept alive is renewed after a
//! third of its ttl, and a renewal that fails is tried again until the lease expires. So a holder keeps its lease
//! through an outage of three fifths of the ttl in which requests fail, and through one of half of the ttl in which they
//! are not answered. 10 to 60 seconds suit most programs.
//!
//! The ttl also bounds each request for the lease. A request that is not answered within the ttl ends with
//! [`Error::TimedOut`](crate::Error::TimedOut), because a lease that it grants would have expired. So a ttl of 1 s
//! needs a database that answers within 1 s, even if the
//! [`call_timeout`](crate::LeasesBuilder::call_timeout) is longer.

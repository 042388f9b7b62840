//! To acquire a lease, hold it, lose it, and give it back.
//!
//! [`Acquire::with`](crate::Acquire::with) is the short way: it keeps the lease alive while a body of work runs,
//! stops the body when the lease is lost, and releases. With a guard in hand the same is
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
//! leases.close().await; // at the end of the program: whatever is still held
//! # Ok(())
//! # }
//! ```
//!
//! A lease that is dropped is released in the background. [`Leases::close`](crate::Leases::close) waits for
//! that.
//!
//! # How long a ttl should be
//!
//! It is how long others wait when the holder dies, and how long the database may be away before a healthy
//! holder loses its lease. A kept lease is renewed after a third of it, and what fails is tried again for the
//! other two. 10 to 60 seconds suit most.
//!
//! It also bounds a request for the lease: one that is not answered within its ttl is given up, because what it
//! grants would be over ([`Error::TimedOut`](crate::Error::TimedOut)). So a ttl of 1 s asks for a database that
//! answers within 1 s, whatever the [`call_timeout`](crate::LeasesBuilder::call_timeout) of the handle.

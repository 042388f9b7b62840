//! Which leases can share a key, and the special ways to hold a key.
//!
//! - One holder at a time (a mutex): [`Leases::acquire`](crate::Leases::acquire), or
//!   [`Leases::try_acquire`](crate::Leases::try_acquire) to ask once, without waiting.
//! - Readers and a writer (a read-write lock): readers take a [`shared`](crate::Acquire::shared) lease, and a writer
//!   takes an exclusive one, which is the default. [`Lease::upgrade`](crate::Lease::upgrade) and
//!   [`Lease::downgrade`](crate::Lease::downgrade) convert a lease from one mode to the other.
//! - A limited number of holders at a time (a semaphore): [`permits`](crate::Acquire::permits).
//! - Code that locks a key which its caller may hold already: [`reentrant`](crate::Acquire::reentrant), with an
//!   [`owner`](crate::Acquire::owner) that names the caller.
//! - Several keys, all or none: [`Leases::acquire_all`](crate::Leases::acquire_all).
//! - A job that must run once per tick: [`Leases::once`](crate::Leases::once).
//! - One leader among several processes (leader election): [`Leases::leader`](crate::Leases::leader).
//! - Work that may hang while its process still renews the lease: [`max_hold`](crate::Acquire::max_hold).
//! - A key that must stay held for a while although the work is done: [`min_hold`](crate::Acquire::min_hold).
//! - Work that is more urgent than the work of the processes that wait: [`barging`](crate::Acquire::barging).
//! - A key that mostly stays with one process, and is granted there from memory: [`sticky`](crate::Acquire::sticky).
//! - A text for people who look at the lock: [`note`](crate::Acquire::note).
//! - Work that begins in one process and ends in another: [`Lease::into_ticket`](crate::Lease::into_ticket) and
//!   [`Leases::resume`](crate::Leases::resume).
//!
//! [`Leases::limiter`](crate::Leases::limiter) limits the calls per window, over all processes. It uses no leases.

//! Who may hold a key together with whom, and for how long.
//!
//! - One at a time: [`Leases::acquire`](crate::Leases::acquire), or
//!   [`Leases::try_acquire`](crate::Leases::try_acquire) for one look.
//! - Readers and a writer: [`shared`](crate::Acquire::shared) for those who read, the plain kind for who writes;
//!   [`Lease::upgrade`](crate::Lease::upgrade) and [`Lease::downgrade`](crate::Lease::downgrade) between the two.
//! - So many at a time (a semaphore): [`permits`](crate::Acquire::permits).
//! - Code that locks what its caller may hold: [`reentrant`](crate::Acquire::reentrant), with an
//!   [`owner`](crate::Acquire::owner) that names the caller.
//! - Several keys, all or none: [`Leases::acquire_all`](crate::Leases::acquire_all).
//! - A job that must run once per tick: [`min_hold`](crate::Acquire::min_hold), or a key that names the tick and
//!   [`Lease::detach`](crate::Lease::detach).
//! - Work that begins in one process and ends in another: [`Lease::into_ticket`](crate::Lease::into_ticket) and
//!   [`Leases::resume`](crate::Leases::resume).
//!
//! And without a lease: at most so many calls a window over all processes,
//! [`Leases::limiter`](crate::Leases::limiter).

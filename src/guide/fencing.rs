//! How a resource refuses the late write of a holder that was paused.
//!
//! What is written under a lease should remember the greatest [`Fence`](crate::Fence) that it was shown, and
//! refuse a write with a smaller one ([`Error::Fenced`](crate::Error::Fenced)). For documents beside the locks
//! this is done here:
//!
//! - MongoDB, any deployment: [`GuardedCollection`](crate::mongodb::GuardedCollection), for the application's own
//!   collection (and [`Fence::guard`](crate::Fence::guard) and [`Fence::stamp`](crate::Fence::stamp), for
//!   statements that it does not have).
//! - MongoDB, in a transaction: [`Lease::enforce`](crate::Lease::enforce).
//! - Elasticsearch and OpenSearch: [`GuardedIndex`](crate::elasticsearch::GuardedIndex), for the application's
//!   own index.
//! - Anything else that can compare two numbers as it writes: `docs/fencing.md` has SQL and HTTP, and how to
//!   switch fencing on where data is already there.

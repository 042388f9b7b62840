//! How a resource refuses the late write of a holder that was paused.
//!
//! A resource that is written under a lease should store the greatest [`Fence`](crate::Fence) of its writes, and
//! refuse a write with a smaller one. For documents in these databases the library does both, and gives
//! [`Error::Fenced`](crate::Error::Fenced) for a write that is refused:
//!
//! - MongoDB, any deployment: [`GuardedCollection`](crate::mongodb::GuardedCollection), for the application's own
//!   collection. For statements that `GuardedCollection` does not have:
//!   [`Fence::guard`](crate::Fence::guard) and [`Fence::stamp`](crate::Fence::stamp).
//! - MongoDB, in a transaction: [`Lease::enforce`](crate::Lease::enforce).
//! - Elasticsearch and OpenSearch: [`GuardedIndex`](crate::elasticsearch::GuardedIndex), for the application's
//!   own index.
//!
//! Any other resource works that can compare two numbers as it writes. `docs/fencing.md` shows SQL and HTTP, and
//! how to add fencing to data that exists already.

//! Runs store calls to their end, even if the caller has gone. The MongoDB driver documents that its futures are not
//! cancel safe, so a call that was sent must not be dropped. `lifecycle.rs` knows the runtime of a client, and how the
//! client ends. `listener.rs` reads the streams of a store, and opens them again after errors.
//!
//! A call runs in one of three places:
//!
//! - A call that is rare has a task of its own ([`call`]).
//! - Acquires and releases are so frequent that a task for each would cost more than everything else the client does. So
//!   the caller polls each of them, until it has to go on without the caller (`key/call.rs`).
//! - A batch belongs to several operations, any of which may end first. So it has a task (`coalescer.rs`). The requests of
//!   a limiter belong to its callers in the same way, so its task polls them (`limiter/driver.rs`).
//!
//! What must not wait for the caller that starts it is started by a thread beside the runtimes (`outside.rs`), and so are
//! the tasks that look at what is due (`timers.rs`).

mod call;
pub(crate) mod lifecycle;
pub(crate) mod listener;
pub(crate) mod outside;
pub(crate) mod suspension;
pub(crate) mod timers;

#[cfg(any(feature = "mongodb", feature = "sqlite"))]
pub(crate) use self::call::no_outcome;
pub(crate) use self::call::{call, caught, ended, interrupted, panicked, report, spawn, timed_out};

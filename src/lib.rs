//! Locks that free themselves when their holder dies, on the database that an application already runs.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Attempt, Leases, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! let leases = Leases::new(MemoryStore::new());
//! let ttl = Duration::from_secs(30);
//!
//! let lease = leases.acquire("report:42", ttl).wait_for(Duration::from_secs(5)).await?;
//! println!("writing with fence {}", lease.fence());
//! match leases.try_acquire("report:42", ttl).await? {
//!     Attempt::Acquired(_) => unreachable!("it is held"),
//!     Attempt::Held(held) => println!("held by {}, for {:?} more", held.owner(), held.expires_in()),
//! }
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Is a lease what you need?
//!
//! A lease is for work that only one process may do at a time, and whose process may die at any point: a
//! scheduled job that must run once, one worker for each document, one leader. It is not a transaction,
//! and not a queue. `docs/compare.md` compares it with other tools, and says when to use those.
//!
//! - While [`Lease::is_live`] is true, the store grants no conflicting lease on the key, unless an operator
//!   evicts the holder. The server decides by its own clock when a lease expires. The holder counts on its
//!   own clock, from the instant before it sent the request, and stops earlier by the clock margin.
//! - A process that is paused past the expiry of its lease (by its scheduler, a debugger, a suspended
//!   machine) goes on writing when it wakes up. No lock can stop that. The resource can, if each write
//!   carries the [`Fence`] and the resource refuses an older one: see [fencing](guide::fencing).
//! - The clock of a process may stand still while its machine is suspended. Call [`Lease::renew`] after a
//!   suspension.
//!
//! # Where to go on
//!
//! | what you want | where |
//! |---|---|
//! | a database to keep the locks in | [`guide::stores`]: what each one guarantees, and which versions of its client |
//! | to hold a lease, keep it alive, release it | [`guide::holding`] |
//! | readers and a writer, a semaphore, several keys, a job once per tick | [`guide::modes`] |
//! | one leader among several processes, and to know who it is | [`Leases::leader`] |
//! | a limit of calls per window, over all processes | [`Leases::limiter`] |
//! | late writes refused | [`guide::fencing`] |
//! | to know which errors a retry can fix, and what a dropped future leaves | [`guide::errors`] |
//! | spans, events and metrics | [`guide::observability`] |
//! | to look at locks, and to remove them | [`Leases::inspect`], [`Leases::list`], [`Leases::evict`], and the command `leasehold` of the crate `leasehold-cli` |
//! | what only one kind of database can do | [`mongodb`], [`elasticsearch`] |
//! | to write a store | [`store`], and `leasehold-conformance`, the test suite that each store must pass |
//!
//! # Features
//!
//! None is on by default. [`MemoryStore`] needs no feature.
//!
//! - `mongodb`, `elasticsearch`, `opensearch`: the stores on these databases, on their official clients.
//! - `sqlite`: the store in a file. It compiles SQLite in.
//! - `metrics`: counters, gauges and histograms, through the facade of the crate `metrics`.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// The library must not panic, whatever its input, a server or a clock does.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![deny(clippy::unimplemented, clippy::unreachable, clippy::indexing_slicing)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The guide links to types that exist only with their features.
#![cfg_attr(
    not(all(
        feature = "elasticsearch",
        feature = "metrics",
        feature = "mongodb",
        feature = "opensearch",
        feature = "sqlite",
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

mod acquire;
mod client;
mod coalescer;
pub mod guide;
mod lease;
mod lease_state;
mod limiter;
mod messages;
mod model;
mod release;
mod renewal;
mod retry;
pub mod rules;
mod runtime;
pub mod store;
mod telemetry;
mod waiters;

#[cfg(feature = "elasticsearch")]
pub use crate::store::elasticsearch::ElasticsearchStore;
#[cfg(feature = "opensearch")]
pub use crate::store::elasticsearch::OpenSearchStore;
#[cfg(feature = "mongodb")]
pub use crate::store::mongodb::MongoStore;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteStore;
#[cfg(feature = "metrics")]
pub use crate::telemetry::describe_metrics;
pub use crate::{
    acquire::{
        Acquire, AcquireAll, Attempt, Once, OnceAttempt, OnceError, OnceLease, Resume, Resumed,
        RunOnce, TryAcquire, WithError,
    },
    client::{Leader, Leading, Leases, LeasesBuilder, Term},
    lease::{Lease, LeaseSet, Ticket, Upgrade},
    limiter::{Limiter, Permit, PermitAttempt, TakePermit},
    messages::Filter,
    model::{
        Done, Error, ErrorKind, Fence, Held, Holder, Key, LockState, LossReason, Mode, Tick,
        TickKind,
    },
    store::{Store, memory::MemoryStore},
};

/// The largest inputs: text in bytes of UTF-8, times as a [`Duration`](std::time::Duration).
pub mod limits {
    pub use crate::model::{
        MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_PLACE_TIME, MAX_PLACES,
        MAX_TTL, MAX_WINDOW,
    };
}

/// What only MongoDB can do: fenced writes to an application's own collection, and the locks of the Java class
/// `MongoDistributedLock`.
///
/// Three more methods have the driver's types in their signatures: [`Lease::enforce`] is for transactions,
/// [`Fence::guard`] and [`Fence::stamp`] are for statements of your own. The store is [`MongoStore`].
#[cfg(feature = "mongodb")]
pub mod mongodb {
    pub use crate::store::mongodb::{
        distributed_lock::{DistributedLockGrant, MongoDistributedLock},
        guarded::{
            GuardedCollection,
            actions::{GuardedDelete, GuardedFind, GuardedInsert, GuardedUpdate},
        },
    };
}

/// What only Elasticsearch and OpenSearch can do: fenced writes to an application's own index.
///
/// The stores are [`ElasticsearchStore`] and [`OpenSearchStore`]. Both are an
/// [`IndexStore`](elasticsearch::IndexStore), each with its own client.
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub mod elasticsearch {
    pub use crate::store::elasticsearch::{GuardedIndex, IndexStore};
}

/// Has `cargo test` compile the examples of these documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/leases.md")]
    struct Leases;

    #[doc = include_str!("../docs/limiter.md")]
    struct Limiter;

    #[cfg(all(feature = "mongodb", feature = "elasticsearch"))]
    #[doc = include_str!("../docs/fencing.md")]
    struct Fencing;
}

//! Distributed locks for async Rust that free themselves when their holder dies, on the database that an application
//! already runs.
//!
//! A process acquires a lease on a key, works, and releases the lease. If the process dies, its lease expires after the
//! ttl, and another process is granted the key. The locks are documents in MongoDB, Elasticsearch or OpenSearch, rows
//! in an SQLite file, or entries in memory. There is no other server to run.
//!
//! ```
//! use std::{io, time::Duration};
//! use leasehold::{Attempt, Fence, Leases, MemoryStore};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let leases = Leases::new(MemoryStore::new());
//!     let ttl = Duration::from_secs(30);
//!
//!     // Waits until the key is free.
//!     let lease = leases.acquire("report:42", ttl).await?;
//!     println!("granted, with fence {}", lease.fence());
//!
//!     // Asks once, and is refused while the lease above holds the key.
//!     match leases.try_acquire("report:42", ttl).await? {
//!         Attempt::Acquired(_) => println!("granted"),
//!         Attempt::Held(held) => println!("held by {}", held.owner()),
//!     }
//!     lease.release().await?;
//!
//!     // Renews the lease while the work runs, stops the work if the
//!     // lease is lost, and releases the lease at the end.
//!     let job = leases.acquire("report:42", ttl);
//!     job.with(async |lease| publish(lease.fence()).await).await?;
//!
//!     // Releases every lease that is still held.
//!     leases.close().await;
//!     Ok(())
//! }
//!
//! async fn publish(fence: Fence) -> io::Result<()> {
//!     Ok(()) // The work, which may take hours.
//! }
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
//! # Which store
//!
//! | store | feature | use it for |
//! |---|---|---|
//! | [`MemoryStore`] | | tests, examples, a program of a single process |
//! | [`SqliteStore`] | `sqlite` | several processes of one host, without a server |
//! | [`MongoStore`] | `mongodb` | several processes that share a MongoDB |
//! | [`ElasticsearchStore`] | `elasticsearch` | several processes that share an Elasticsearch |
//! | [`OpenSearchStore`] | `opensearch` | several processes that share an OpenSearch |
//!
//! [`address::open`] makes the store that an address names. [`guide::stores`] says what each store guarantees, and with which versions of the database's client it works.
//!
//! # Which kind of lease
//!
//! | you need | call |
//! |---|---|
//! | one holder at a time (a mutex) | [`Leases::acquire`], or [`Leases::try_acquire`] to ask once |
//! | readers and a writer (a read-write lock) | [`.shared()`](Acquire::shared) for the readers |
//! | a limited number of holders at a time (a semaphore) | [`.permits(n, of)`](Acquire::permits) |
//! | a lease beside other leases of the same owner | [`.reentrant()`](Acquire::reentrant) |
//! | a lease in the place of that of the same owner, after a restart | [`.take_over()`](Acquire::take_over) |
//! | several keys, all or none | [`Leases::acquire_all`] |
//! | a job that runs once per tick of its schedule | [`Leases::once`] |
//! | one leader among several processes (leader election) | [`Leases::leader`] |
//! | a limit of calls per window, over all processes (a rate limit, without leases) | [`Leases::limiter`] |
//!
//! # Where to go on
//!
//! | topic | page |
//! |---|---|
//! | hold a lease, keep it alive, notice its loss, release it; how long a ttl should be | [`guide::holding`] |
//! | all kinds of leases, and their options | [`guide::modes`] |
//! | jobs that run once, and leaders | [`jobs`], `docs/jobs.md` and `docs/leaders.md` |
//! | refuse the late writes of a holder that was paused | [`guide::fencing`] |
//! | which errors a retry can fix, and what a dropped future leaves behind | [`guide::errors`] |
//! | spans, events and metrics | [`guide::observability`] |
//! | look at locks and remove them | [`Leases::inspect`], [`Leases::list`], [`Leases::evict`], and the command `leasehold` of the crate `leasehold-cli` |
//! | share locks with Java services that run the class `MongoDistributedLock` | [`MongoDistributedLock`] |
//! | test code that takes leases | [`testing`] (feature `testing`), and `docs/testing.md` |
//! | write a store | [`store`], and `leasehold-conformance`, the test suite that each store must pass |
//!
//! # Features
//!
//! No feature is on by default. [`MemoryStore`] needs none.
//!
//! - `mongodb`, `elasticsearch`, `opensearch`: the stores on these databases, each with the official client.
//! - `sqlite`: the store in a file. It compiles SQLite in.
//! - `fencing`: writes to the application's own documents that a newer fence stops: [`fencing`]. It adds no dependency.
//! - `address`, `address-tls`: the store that an [address] names, for programs whose store is chosen when they run. With
//!   the second, search clusters are reached by HTTPS.
//! - `metrics`: counters, gauges and histograms, through the facade of the crate `metrics`.
//! - `testing`: a store for the tests of an application, which fails when a test says so. It adds no dependency.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// The library must not panic, whatever its input, a server or a clock does.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![deny(clippy::unimplemented, clippy::unreachable, clippy::indexing_slicing)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The guide links to types that exist only with their features.
#![cfg_attr(
    not(all(
        feature = "address",
        feature = "elasticsearch",
        feature = "fencing",
        feature = "metrics",
        feature = "mongodb",
        feature = "opensearch",
        feature = "sqlite",
        feature = "testing",
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

// CONTRIBUTING.md says what each module is for, and follows an acquire through them.
mod acquire;
#[cfg(feature = "address")]
pub mod address;
mod client;
mod coalescer;
pub mod guide;
mod key;
mod lease;
mod lease_state;
mod limiter;
mod messages;
mod model;
mod random;
mod release;
mod renewal;
mod retry;
pub mod rules;
mod runtime;
pub mod store;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "elasticsearch")]
pub use crate::store::elasticsearch::ElasticsearchStore;
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub use crate::store::elasticsearch::IndexStore;
#[cfg(feature = "opensearch")]
pub use crate::store::elasticsearch::OpenSearchStore;
#[cfg(feature = "mongodb")]
pub use crate::store::mongodb::{
    MongoStore,
    distributed_lock::{DistributedLockGrant, MongoDistributedLock},
};
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SqliteStore;
#[cfg(feature = "metrics")]
pub use crate::telemetry::describe_metrics;
pub use crate::{
    acquire::{Acquire, AcquireAll, Attempt, Resume, Resumed, TryAcquire, WithError},
    client::{Leases, LeasesBuilder},
    lease::{Lease, LeaseSet, Ticket, Upgrade},
    limiter::{Limiter, Permit, PermitAttempt, TakePermit},
    messages::Filter,
    model::{
        Error, ErrorKind, Fence, Held, Holder, Key, LockState, LossReason, Mode, PermitsLeft, Place,
    },
    store::{Store, memory::MemoryStore},
};

/// Jobs that run once, and leaders: what [`Leases::once`] and [`Leases::leader`] take and return.
///
/// - A job that runs once per tick of its schedule: [`Leases::once`] takes the [`Tick`](jobs::Tick), and its builder is
///   [`RunOnce`](jobs::RunOnce). [`RunOnce::run`](jobs::RunOnce::run) does the work and returns a [`Once`](jobs::Once),
///   or a [`OnceError`](jobs::OnceError) if the work or its lease fails. For work that is no future there is
///   [`RunOnce::acquire`](jobs::RunOnce::acquire), with a [`OnceLease`](jobs::OnceLease).
///   [`Leases::last_done`] tells what is [`Done`](jobs::Done).
/// - One leader among several processes: [`Leases::leader`] returns a [`Leader`](jobs::Leader), which passes a
///   [`Term`](jobs::Term) to the work. [`Leader::watch`](jobs::Leader::watch) tells who is [`Leading`](jobs::Leading).
///
/// `docs/jobs.md` says when to use which of them, and what they guarantee.
pub mod jobs {
    pub use crate::{
        acquire::{Once, OnceAttempt, OnceError, OnceLease, RunOnce},
        client::{Leader, Leading, Term},
        model::{Done, Tick, TickKind},
    };
}

/// Upper bounds of what the library accepts. Texts are counted in bytes of UTF-8; times are
/// [`Duration`](std::time::Duration)s.
pub mod limits {
    pub use crate::model::{
        MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_PLACE_TIME, MAX_PLACES,
        MAX_TTL, MAX_WINDOW,
    };
}

/// Fenced writes to an application's own documents.
///
/// [`GuardedCollection`](fencing::GuardedCollection) (with the feature `mongodb`) and
/// [`GuardedIndex`](fencing::GuardedIndex) (with `elasticsearch` or `opensearch`) refuse the write of a holder whose
/// fence is older than that of an earlier write. On MongoDB, [`Lease::enforce`] makes a lease part of a transaction, and
/// [`Fence::guard`] and [`Fence::stamp`] add the fence to statements of your own. [`guide::fencing`] says when to use
/// which.
#[cfg(all(
    feature = "fencing",
    any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch")
))]
pub mod fencing {
    #[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
    pub use crate::store::elasticsearch::GuardedIndex;
    #[cfg(feature = "mongodb")]
    pub use crate::store::mongodb::guarded::{
        GuardedCollection,
        actions::{GuardedDelete, GuardedFind, GuardedInsert, GuardedUpdate},
    };
}

/// Makes `cargo test --doc` compile the examples of these documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/first-hour.md")]
    struct FirstHour;

    #[doc = include_str!("../docs/leases.md")]
    struct Leases;

    #[doc = include_str!("../docs/limiter.md")]
    struct Limiter;

    #[cfg(all(feature = "mongodb", feature = "elasticsearch", feature = "fencing"))]
    #[doc = include_str!("../docs/fencing.md")]
    struct Fencing;
}

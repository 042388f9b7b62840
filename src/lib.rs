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
//! A lease is for a scheduled job that must run once, one worker a document, one leader: for work
//! that excludes others for a time, and whose holder may die without saying so. It is not a
//! transaction, and not a queue. `docs/compare.md` puts it beside other tools, and says when to take those.
//!
//! - While [`Lease::is_live`] says so, no other lease on the key is granted. That is decided on the
//!   server's clock, and told to the holder on its own: counted from the instant before the request
//!   was sent, less a margin.
//! - A process that is paused (by its scheduler, a debugger, a suspended machine) past its expiry
//!   wakes up and goes on writing. No lock can stop that; the resource can, if each write carries
//!   the [`Fence`] and an older one is refused: see [below](#fencing).
//! - The clock of a holder that is suspended together with its machine may stand still meanwhile.
//!   Renew, or look at the server, after a suspension.
//!
//! # Stores, and what they guarantee
//!
//! A lock is one document, and each operation one atomic change of it, on the clock of the server.
//! [`Leases`] takes any [`Store`], also as `Arc<dyn Store>`.
//!
//! | store | for | what an acknowledged grant means | whose clock |
//! |---|---|---|---|
//! | [`MemoryStore`] | tests, examples, a single process | nobody else in this process has the lock | tokio's |
#![cfg_attr(
    feature = "sqlite",
    doc = "| [`SqliteStore`] | several processes of one host, without a server | it is on the disk | the host's, counted from its boot |"
)]
#![cfg_attr(
    not(feature = "sqlite"),
    doc = "| `SqliteStore` (feature `sqlite`) | several processes of one host, without a server | it is on the disk | the host's, counted from its boot |"
)]
#![cfg_attr(
    feature = "mongodb",
    doc = "| [`MongoStore`] | several processes that share a MongoDB | a majority of the replica set, or the standalone server, has it in its journal: it survives a failover, and a crash | the primary's; the `mongos`' on a sharded cluster |"
)]
#![cfg_attr(
    not(feature = "mongodb"),
    doc = "| `MongoStore` (feature `mongodb`) | several processes that share a MongoDB | a majority of the replica set, or the standalone server, has it in its journal: it survives a failover, and a crash | the primary's; the `mongos`' on a sharded cluster |"
)]
#![cfg_attr(
    feature = "elasticsearch",
    doc = "| [`ElasticsearchStore`] | several processes that share an Elasticsearch | it is on the disk of the primary shard and of every replica in sync at that moment | that of the node with the primary shard |"
)]
#![cfg_attr(
    not(feature = "elasticsearch"),
    doc = "| `ElasticsearchStore` (feature `elasticsearch`) | several processes that share an Elasticsearch | it is on the disk of the primary shard and of every replica in sync at that moment | that of the node with the primary shard |"
)]
#![cfg_attr(
    feature = "opensearch",
    doc = "| [`OpenSearchStore`] | several processes that share an OpenSearch | the same as on Elasticsearch | the same |"
)]
#![cfg_attr(
    not(feature = "opensearch"),
    doc = "| `OpenSearchStore` (feature `opensearch`) | several processes that share an OpenSearch | the same as on Elasticsearch | the same |"
)]
#![cfg_attr(
    feature = "mongodb",
    doc = "| [`MongoDistributedLock`] | sharing locks with Java services that run the class of that name | as far as that class goes: no fence | ours the server's, theirs their own |"
)]
//!
//! Each says more in its documentation. When another server takes over, another clock decides: a lease on a
//! database is given up 100 ms early for that ([`LeasesBuilder::clock_margin`]).
//!
//! # Acquire, hold, lose, release
//!
//! [`Acquire::with`] is the short way: it keeps the lease alive while a body of work runs, stops the
//! body when the lease is lost, and releases. With a guard in hand the same is
//! [`keep_alive`](Acquire::keep_alive), [`Lease::lost`] and [`Lease::release`]:
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
//! How long the ttl should be: it is how long others wait when the holder dies, and how long the
//! database may be away before a healthy holder loses its lease. A kept lease is renewed after a third
//! of it, and what fails is tried again for the other two. 10 to 60 seconds suit most.
//!
//! A lease that is dropped is released in the background. [`Leases::close`] waits for that.
//!
//! # Modes
//!
//! - One at a time: [`Leases::acquire`], or [`Leases::try_acquire`] for one look.
//! - Readers and a writer: [`shared`](Acquire::shared) for those who read, the plain kind for who
//!   writes; [`Lease::upgrade`] and [`Lease::downgrade`] between the two.
//! - So many at a time: [`permits`](Acquire::permits).
//! - Code that locks what its caller may hold: [`reentrant`](Acquire::reentrant), with an
//!   [`owner`](Acquire::owner) that names the caller.
//! - Several keys, all or none: [`Leases::acquire_all`].
//! - A job that must run once per tick: [`min_hold`](Acquire::min_hold), or a key that names the tick
//!   and [`Lease::detach`].
//! - Work that begins in one process and ends in another: [`Lease::into_ticket`] and
//!   [`Leases::resume`].
//!
//! And without a lease: at most so many calls a window over all processes, [`Leases::limiter`].
//!
//! # Fencing
//!
//! What is written under a lease should remember the greatest [`Fence`] that it was shown, and refuse a
//! write with a smaller one ([`Error::Fenced`]). For documents beside the locks this is done here:
//!
//! - MongoDB, any deployment: `GuardedCollection`, for the application's own collection (and
//!   `Fence::guard` and `Fence::stamp`, for statements that it does not have).
//! - MongoDB, in a transaction: `Lease::enforce`.
//! - Elasticsearch and OpenSearch: `GuardedIndex`, for the application's own index.
//! - Anything else that can compare two numbers as it writes: `docs/fencing.md` has SQL and HTTP, and how
//!   to switch fencing on where data is already there.
//!
//! # Cancellation
//!
//! Every future of this crate may be dropped at any point, by a `select!` or a timeout. The requests for
//! leases and permits that it has sent go on in tasks of their own, to their end, and what nobody takes is
//! released.
//! Each async method says under "Cancel safety" what a drop means for it.
//!
//! # Errors
//!
//! That another holds a lock is an answer, not an [`Error`]. An error says whether a retry can help
//! ([`Error::is_retryable`]) and whether the request may have been carried out all the same
//! ([`Error::is_ambiguous`]), and is of one of few kinds ([`Error::kind`]). An acquire that fails or is dropped midway leaves no lock behind: what
//! it may have been granted is released in the background, as long as the runtime lives.
//!
//! # Features
//!
//! None is on by default; the memory store is always there.
//!
//! - `mongodb`: the stores on MongoDB, on the official driver. The features that the application
//!   chooses for its own `mongodb` dependency (`dns-resolver` for `mongodb+srv` addresses, `bson-3`,
//!   `openssl-tls`, compression) hold here too.
//! - `elasticsearch`, `opensearch`: the stores on Elasticsearch and OpenSearch, on their official
//!   clients. They come without TLS: choose `native-tls` or `rustls-tls` for your own dependency.
//! - `sqlite`: the store in a file, on an SQLite that is compiled in.
//! - `metrics`: counters, gauges and histograms, through the facade of the crate `metrics`.
//!
//! The command `leasehold` is the crate `leasehold-cli`; the suite that every store must pass, for authors of
//! stores, is `leasehold-conformance`.
//!
//! # Observability
//!
//! Every operation makes spans and events of `tracing`, with the target `leasehold`: operations, grants and
//! releases at DEBUG, renewals at TRACE, a lease at risk and a lost one at WARN, what an operator removes at
//! INFO. With the feature `metrics` the same is counted and timed: acquires by outcome, waits, hold times,
//! renewals and how late they were, losses by reason, errors of the store; `describe_metrics` tells an exporter
//! what each means. `docs/observability.md` has tables of all of it, and what to alert on.
//!
//! Neither holds a credential. Keys and owners are in events, and never labels of a metric.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// Nothing that input, a server or a clock can do may bring an application down.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![deny(clippy::unimplemented, clippy::unreachable, clippy::indexing_slicing)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod client;
mod coalescer;
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
mod store;
mod telemetry;
mod waiters;

#[cfg(feature = "elasticsearch")]
pub use crate::store::elasticsearch::ElasticsearchStore;
#[cfg(feature = "opensearch")]
pub use crate::store::elasticsearch::OpenSearchStore;
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub use crate::store::elasticsearch::{GuardedIndex, IndexStore};
#[cfg(feature = "mongodb")]
pub use crate::store::mongodb::{
    MongoStore,
    distributed_lock::{DistributedLockGrant, MongoDistributedLock},
    guarded::{
        GuardedCollection,
        actions::{GuardedDelete, GuardedFind, GuardedInsert, GuardedUpdate},
    },
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
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Eviction, Filter, Grant, KnownGrant, ListRequest, MAX_BATCH, MAX_RENEWALS,
        MinHold, Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewAnswers, RenewRequest,
    },
    model::{
        Cause, Error, ErrorKind, Fence, Held, Holder, Key, LeaseId, LimiterRecord, LockRecord,
        LockState, LossReason, MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES,
        MAX_TTL, MAX_WINDOW, Mode, PermitId, Quota, SCHEMA,
    },
    store::{FreedKeys, Store, memory::MemoryStore},
};

/// Keeps the README's example compiling.
#[cfg(all(doctest, feature = "mongodb"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "mongodb", feature = "elasticsearch"))]
#[doc = include_str!("../docs/fencing.md")]
struct FencingDocument;

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
//!   the [`Fence`] and an older one is refused: see [fencing](guide::fencing).
//! - The clock of a holder that is suspended together with its machine may stand still meanwhile.
//!   Renew, or look at the server, after a suspension.
//!
//! # Where to go on
//!
//! | what you want | where |
//! |---|---|
//! | a database to keep the locks in | [`guide::stores`]: what each one guarantees, and which versions of its client |
//! | to hold a lease, keep it alive, give it back | [`guide::holding`] |
//! | readers and a writer, so many at a time, several keys, once a tick | [`guide::modes`] |
//! | at most so many calls a window, over all processes | [`Leases::limiter`] |
//! | late writes refused | [`guide::fencing`] |
//! | to know which errors a retry can mend, and what a dropped future leaves | [`guide::errors`] |
//! | spans, events and metrics | [`guide::observability`] |
//! | to look at locks, and to remove them | [`Leases::inspect`], [`Leases::list`], [`Leases::evict`], and the command `leasehold` of the crate `leasehold-cli` |
//! | what one database alone can do | [`mongodb`], [`elasticsearch`] |
//! | to write a store | [`store`], and the suite that each must pass, `leasehold-conformance` |
//!
//! # Features
//!
//! None is on by default; the memory store is always there.
//!
//! - `mongodb`, `elasticsearch`, `opensearch`: the stores on these databases, on their official clients.
//! - `sqlite`: the store in a file, on an SQLite that is compiled in.
//! - `metrics`: counters, gauges and histograms, through the facade of the crate `metrics`.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// Nothing that input, a server or a clock can do may bring an application down.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![deny(clippy::unimplemented, clippy::unreachable, clippy::indexing_slicing)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The pages for all stores lead to types that are not there without their features.
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
    acquire::{Acquire, AcquireAll, Attempt, Resume, Resumed, TryAcquire, WithError},
    client::{Leases, LeasesBuilder},
    lease::{Lease, LeaseSet, Ticket, Upgrade},
    limiter::{Limiter, Permit, PermitAttempt, TakePermit},
    messages::Filter,
    model::{Error, ErrorKind, Fence, Held, Holder, Key, LockState, LossReason, Mode},
    store::{Store, memory::MemoryStore},
};

/// How large a key, a note, a ttl and the like may be.
pub mod limits {
    pub use crate::model::{
        MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TTL, MAX_WINDOW,
    };
}

/// What MongoDB alone can do: writes to an application's own collection under a fence, and the locks of the Java
/// class `MongoDistributedLock`.
///
/// Beside these, with the driver's types in their signatures: [`Lease::enforce`], for transactions, and
/// [`Fence::guard`] and [`Fence::stamp`], for statements of your own. The store is [`MongoStore`].
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

/// What Elasticsearch and OpenSearch alone can do: writes to an application's own index under a fence.
///
/// The stores are [`ElasticsearchStore`] and [`OpenSearchStore`], one [`IndexStore`](elasticsearch::IndexStore) for
/// both clients.
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub mod elasticsearch {
    pub use crate::store::elasticsearch::{GuardedIndex, IndexStore};
}

/// Keeps the README's example compiling.
#[cfg(all(doctest, feature = "mongodb"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "mongodb", feature = "elasticsearch"))]
#[doc = include_str!("../docs/fencing.md")]
struct FencingDocument;

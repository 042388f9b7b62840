//! `LeasesBuilder`: the options of a [`Leases`](crate::Leases).

use std::{sync::Arc, time::Duration};

use crate::store::Store;

/// The default of [`LeasesBuilder::call_timeout`].
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Options for [`Leases`](crate::Leases), made by [`Leases::builder`](crate::Leases::builder).
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// let leases = Leases::builder(MemoryStore::new())
///     .owner("reports-pod-3")
///     .call_timeout(Duration::from_secs(3))
///     .build();
/// assert_eq!(leases.owner(), "reports-pod-3");
/// ```
#[derive(Debug)]
#[must_use = "call build to get the leases"]
pub struct LeasesBuilder {
    pub(super) store: Arc<dyn Store>,
    pub(super) owner: Option<Arc<str>>,
    pub(super) clock_margin: Duration,
    pub(super) call_timeout: Duration,
    pub(super) sticky: Option<Duration>,
}

impl LeasesBuilder {
    pub(super) fn new(store: impl Store) -> Self {
        Self {
            clock_margin: store.clock_margin(),
            store: Arc::new(store),
            owner: None,
            call_timeout: CALL_TIMEOUT,
            sticky: None,
        }
    }

    /// Sets the owner, which other processes see on a held key: the name of a pod, a host or a service, for example.
    /// The owner is 1 to 512 bytes of text. An acquire with another length returns
    /// [`Error::InvalidOwner`](crate::Error::InvalidOwner). The default is the name of the host, the process id and
    /// eight random hexadecimal digits.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the clock margin: how long before the expiry on the server the holder stops counting on its lease. The
    /// default is the margin that the [store](crate::Store::clock_margin) asks for. MongoDB, Elasticsearch and
    /// OpenSearch ask for 100 ms, because after a failover another node's clock decides. SQLite asks for 10 ms, or 100
    /// ms on a host without a clock that counts from its boot. Memory asks for the millisecond of its clock. A ttl must
    /// be at least twice the margin; an acquire with a shorter ttl returns
    /// [`Error::InvalidTtl`](crate::Error::InvalidTtl).
    pub fn clock_margin(mut self, margin: Duration) -> Self {
        self.clock_margin = margin;
        self
    }

    /// Sets how long the library waits for the answer to one request before it gives the request up or sends it again.
    /// The default is 10 s.
    ///
    /// An acquire that does not wait, a renewal and a release send a request up to three times. So without any answer
    /// they return [`Error::TimedOut`](crate::Error::TimedOut) after at most three times this limit. A late answer to
    /// an earlier of these requests counts. No acquire takes longer than the ttl for its answer, because a lease that
    /// is granted later would have expired. The requests that keep leases alive have a limit of their own, a sixth of
    /// the ttl.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// Makes all acquires of the handle [sticky](crate::Acquire::sticky): exclusive and shared leases stay with this process
    /// after their last use, until no task has asked for the key for `idle`. By default they do not stay.
    pub fn sticky(mut self, idle: Duration) -> Self {
        self.sticky = (!idle.is_zero()).then_some(idle);
        self
    }
}

/// The default owner. It has a random part because a restarted process may get the same process id, as it does
/// in a container.
pub(super) fn this_process() -> Arc<str> {
    let host = gethostname::gethostname();
    let process = std::process::id();
    let random = crate::random::number();
    format!("{}:{process}:{random:08x}", host.to_string_lossy()).into()
}

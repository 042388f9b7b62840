//! `LeasesBuilder`: the options of a [`Leases`](crate::Leases).

use std::{sync::Arc, time::Duration};

use crate::store::Store;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Options for [`Leases`](crate::Leases), made by [`Leases::builder`](crate::Leases::builder).
#[derive(Debug)]
#[must_use = "call build to get the leases"]
pub struct LeasesBuilder {
    pub(super) store: Arc<dyn Store>,
    pub(super) owner: Option<Arc<str>>,
    pub(super) clock_margin: Duration,
    pub(super) call_timeout: Duration,
}

impl LeasesBuilder {
    pub(super) fn new(store: impl Store) -> Self {
        Self {
            clock_margin: store.clock_margin(),
            store: Arc::new(store),
            owner: None,
            call_timeout: CALL_TIMEOUT,
        }
    }

    /// The owner that other processes see on a held key: a pod, a host or a service, for example. It is 1 to 512
    /// bytes of text. An acquire checks that, and gives [`Error::InvalidOwner`](crate::Error::InvalidOwner). The
    /// default is the name of the host, the process id and eight random hexadecimal digits.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// How long before the expiry on the server the holder stops counting on its lease. The default is the margin
    /// that the [store](crate::Store::clock_margin) asks for. MongoDB, Elasticsearch and OpenSearch ask for 100 ms,
    /// because after a failover another node's clock decides. SQLite asks for 10 ms, or 100 ms on a host without a
    /// clock that counts from its boot. Memory asks for none. A ttl must be at least twice the margin.
    pub fn clock_margin(mut self, margin: Duration) -> Self {
        self.clock_margin = margin;
        self
    }

    /// How long one call to the store may take; 10 s by default. A single request for a lease is bounded by
    /// the ttl as well, because a lease that is granted later would have expired.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }
}

/// The default owner. It has a random part because a restarted process may get the same process id, as it does
/// in a container.
pub(super) fn this_process() -> Arc<str> {
    let host = gethostname::gethostname();
    let process = std::process::id();
    let random = fastrand::u32(..);
    format!("{}:{process}:{random:08x}", host.to_string_lossy()).into()
}

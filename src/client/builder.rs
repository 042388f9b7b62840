//! The options of a handle.

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

    /// Who the leases belong to, as others see it: a pod, a host, a service; 1 to 512 bytes of text,
    /// which an acquire checks. By default the name of the host, the number of the process and a few
    /// random letters.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// How long before the expiry on the server a lease is given up here. By default what the store
    /// asks for: 100 ms for the databases, which covers the skew between two of their nodes at a
    /// failover, and nothing in memory. A ttl must be at least twice as long.
    pub fn clock_margin(mut self, margin: Duration) -> Self {
        self.clock_margin = margin;
        self
    }

    /// How long one call to the store may take; 10 s by default. An acquire is never waited for
    /// longer than its ttl, because what it grants would be over.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }
}

/// A process number comes back after a restart, in a container at once; hence the random part.
pub(super) fn this_process() -> Arc<str> {
    let host = gethostname::gethostname();
    let process = std::process::id();
    let random = fastrand::u32(..);
    format!("{}:{process}:{random:08x}", host.to_string_lossy()).into()
}

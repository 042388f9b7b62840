//! What the acquires of a handle have in common.

use std::{fmt, sync::Arc, time::Duration};

use crate::{coalescer::Coalescer, lease::LeaseRegistry};

/// What an acquire needs beside what is asked for.
pub(crate) struct AcquireContext {
    pub(crate) registry: Arc<LeaseRegistry>,
    pub(crate) coalescer: Arc<Coalescer>,
    /// Who the leases belong to, unless an acquire says otherwise.
    pub(crate) owner: Arc<str>,
    pub(crate) clock_margin: Duration,
}

impl fmt::Debug for AcquireContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.registry.store)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

//! `AcquireContext`: the parts of a handle that its acquires use.

use std::{fmt, sync::Arc, time::Duration};

use super::refused::RefusedKeys;
use crate::{coalescer::Coalescer, lease::LeaseRegistry};

/// The parts of a handle that its acquires use.
pub(crate) struct AcquireContext {
    pub(crate) registry: Arc<LeaseRegistry>,
    pub(crate) coalescer: Arc<Coalescer>,
    /// The owner of the leases, unless an acquire names another owner.
    pub(crate) owner: Arc<str>,
    pub(crate) clock_margin: Duration,
    pub(crate) refused: RefusedKeys,
    /// For how long leases stay with this process after their last use, unless an acquire says otherwise.
    pub(crate) sticky: Option<Duration>,
}

impl fmt::Debug for AcquireContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.registry.store)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

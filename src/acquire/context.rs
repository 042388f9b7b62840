//! `AcquireContext`: the parts of a handle that its acquires use.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::key::{Keys, RecentKeys};

/// The parts of a handle that its acquires use.
pub(crate) struct AcquireContext {
    pub(crate) keys: Arc<Keys>,
    /// The owner of the leases, unless an acquire names another owner.
    pub(crate) owner: Arc<str>,
    /// The keys that were held when this handle last tried to acquire them without waiting, each until a holder
    /// expires. Another attempt is likely to be refused too. A read of the document of a held key costs a database less
    /// than a refused change. So the request for one of these keys tells the store that it may read first.
    pub(crate) likely_held: Mutex<RecentKeys>,
    /// For how long leases stay with this process after their last use, unless an acquire says otherwise.
    pub(crate) sticky: Option<Duration>,
}

impl fmt::Debug for AcquireContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.keys.store)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

//! What operators ask for: a list of locks, and an eviction.

use std::sync::Arc;

use crate::model::{Fence, Holder, Key, LockState};

/// Which locks [`Leases::list`](crate::Leases::list) shows. A new filter shows all of them; each method narrows it
/// down.
///
/// ```
/// use leasehold::Filter;
///
/// let mine = Filter::new().owner("pod-3").prefix("report:");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Filter {
    owner: Option<Arc<str>>,
    prefix: Option<Arc<str>>,
    live: bool,
}

impl Filter {
    /// Shows all locks that have a document, even those without a live holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows only locks with a live holder.
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Shows only locks with a live holder of this owner. The whole name has to match.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self.live()
    }

    /// Shows only locks whose key begins with this text.
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// For authors of stores: the owner that a lock must have among its live holders; `None` for any.
    pub fn wanted_owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// For authors of stores: the text with which a key must begin; empty for any key.
    pub fn wanted_prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or_default()
    }

    /// For authors of stores: whether only locks with a live holder are wanted.
    pub fn wants_live(&self) -> bool {
        self.live
    }
}

/// A request of [`Store::list`](crate::Store::list).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListRequest {
    /// Which locks to show.
    pub filter: Filter,
    /// The page has only keys after this one, in the order of their bytes; `None` for the first page.
    pub after: Option<Key>,
    /// The most documents that the store reads for this page.
    pub limit: usize,
}

impl ListRequest {
    /// A request for the page after the key `after`.
    pub fn new(filter: Filter, after: Option<Key>, limit: usize) -> Self {
        Self {
            filter,
            after,
            limit,
        }
    }
}

/// An answer of [`Store::list`](crate::Store::list).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The locks, in the order of their keys. A page may be empty although more pages follow.
    pub locks: Vec<LockState>,
    /// The key after which the next page begins; `None` if this is the last page.
    pub next: Option<Key>,
}

/// The answer of [`Leases::evict`](crate::Leases::evict).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The key's fence after the eviction. It is greater than the fence of each evicted holder.
    pub fence: Fence,
    /// The live holders that the eviction ended, oldest first, with the `expires_at` that each had before it.
    pub evicted: Vec<Holder>,
}

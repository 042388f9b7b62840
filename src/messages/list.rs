//! The request for a list of locks, and its pages.

use std::sync::Arc;

use crate::model::{Key, LockState};

/// Which locks [`Leases::list`](crate::Leases::list) shows. A new filter shows all of them.
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
    /// All locks that have a document, also those without a live holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only locks with a live holder.
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Only locks with a live holder of this owner.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self.live()
    }

    /// Only locks whose key begins with this text.
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// For a store: the owner that a lock must have as a live holder, if any.
    pub fn wanted_owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// For a store: the text that keys must begin with; empty for any key.
    pub fn wanted_prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or_default()
    }

    /// For a store: whether only locks with a live holder are wanted.
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
    /// Only keys after this one, in the order of their bytes; `None` for the first page.
    pub after: Option<Key>,
    /// How many documents the store reads at most for this page.
    pub limit: usize,
}

impl ListRequest {
    /// A request for the page after this key.
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

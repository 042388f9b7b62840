//! Which locks a list shows, and its pages.

use std::sync::Arc;

use crate::model::{Key, LockState};

/// Which locks [`Leases::list`](crate::Leases::list) shows: all of them, unless it is told less.
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
    /// Every lock that has a document, also those without a live holder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only locks with a live holder.
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Only locks that this owner holds.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self.live()
    }

    /// Only locks whose key begins with this text.
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// The owner that is asked for, for a store.
    pub fn wanted_owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The beginning of a key that is asked for, for a store; empty for any.
    pub fn wanted_prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or_default()
    }

    /// Whether only live locks are asked for, for a store.
    pub fn wants_live(&self) -> bool {
        self.live
    }
}

/// A question of [`Store::list`](crate::Store::list).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListRequest {
    /// Which locks to show.
    pub filter: Filter,
    /// Only keys after this one, in the order of their bytes; `None` for the first page.
    pub after: Option<Key>,
    /// How many documents to look at.
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
    /// The locks, in the order of their keys; perhaps none, with more pages to come.
    pub locks: Vec<LockState>,
    /// The key to go on after; `None` if this is the last page.
    pub next: Option<Key>,
}

//! `BulkLimit`: how many changes go in one request.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many changes go in one request. It only becomes smaller: what refuses a request because of its size does not
/// change while a process runs.
#[derive(Debug)]
pub(super) struct BulkLimit(AtomicUsize);

impl Default for BulkLimit {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl BulkLimit {
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Records that a request with more changes than this was too large.
    pub(super) fn lower_to(&self, changes: usize) {
        self.0.fetch_min(changes.max(1), Relaxed);
    }
}

//! `WaiterKind`: how a waiter stands to others.

/// How a waiter stands to other processes, and to other tasks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterKind {
    /// It does not wait in turn between processes.
    Barging,
    /// It waits in turn, in the place of its process, for a lease that keeps others out.
    Exclusive,
    /// It does so for a lease that may let others in beside it.
    Shared,
}

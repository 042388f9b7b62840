//! `WaiterKind`: whether a waiter waits in turn, and whether it can share the key.

/// Whether a waiter waits in turn between processes, and whether it can share the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterKind {
    /// The waiter does not wait in turn between processes.
    Barging,
    /// The waiter waits in turn, in the place of its process, for an exclusive lease.
    Exclusive,
    /// The waiter waits in turn, in the place of its process, for a shared lease.
    Shared,
    /// The waiter waits in turn, in the place of its process, for a lease of permits.
    Permits,
}

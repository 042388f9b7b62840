//! `WaiterKind`: what a waiter asks for. `Standing`: where a refused request stands among the processes that wait.

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

/// How a request that was refused stands to the processes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It comes in turn, in the place of its process.
    InTurn,
    /// It comes before all of them, because its owner has the key already. It takes the place of its process too.
    BeforeAll,
    /// It competes with them, and takes no place.
    Outside,
}

//! The memory store keeps every rule, under paused time.

use leasehold::{MemoryStore, conformance::Clients};

async fn connect() -> Clients {
    let store = MemoryStore::new();
    Clients::new(store.clone(), store)
}

leasehold::conformance_suite!(connect, start_paused = true);

/// The same on several threads and in real time, for the races.
mod on_threads {
    use super::connect;

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 4);
}

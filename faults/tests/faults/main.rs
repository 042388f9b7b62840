//! The fault laboratory in the tests: its controls on virtual time, and one short run on each engine, one after
//! the other, that ends when enough has happened.

mod controls;
mod durability;
mod engines;

use tokio::sync::{Mutex, MutexGuard};

/// Several set-ups at a time would be in each other's way.
async fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

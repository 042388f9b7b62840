//! The fault laboratory in the tests: its controls with virtual time, and one short run on each engine, one after the
//! other, that ends when enough has happened.

mod controls;
mod durability;
mod engines;

use tokio::sync::{Mutex, MutexGuard};

/// Several setups at the same time would disturb each other.
async fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    ONE.lock().await
}

//! For tests of code that takes leases: a store that fails when a test says so.
//!
//! It refuses acquires, loses a lease, gives errors, hangs, or answers late.
//!
//! [`FaultyStore`] is a store around any other store. A test keeps its [`Faults`], and changes them while the store is
//! in use:
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Attempt, Leases, MemoryStore, testing::FaultyStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! let store = FaultyStore::new(MemoryStore::new());
//! let faults = store.faults();
//! let leases = Leases::new(store);
//!
//! faults.refuse_next(1);
//! let attempt = leases.try_acquire("report:42", Duration::from_secs(30)).await?;
//! assert!(matches!(attempt, Attempt::Held(_)));
//! # Ok(())
//! # }
//! ```
//!
//! | what a test says | what the store does |
//! |---|---|
//! | [`faults.refuse_next(2)`](Faults::refuse_next) | refuses the next two acquires, as if another owner had the key |
//! | [`faults.refuse_all()`](Faults::refuse_all) | refuses all acquires |
//! | [`faults.lose("report:42")?`](Faults::lose) | evicts the holders of the key: their next renewal is told of it |
//! | [`faults.calls().fail_next(2, Failure::Unreachable)`](Calls::fail_next) | gives an error to the next two calls |
//! | [`faults.calls().fail_all(Failure::Denied)`](Calls::fail_all) | gives an error to all calls |
//! | [`faults.calls().hang()`](Calls::hang) | does not answer |
//! | [`faults.calls().delay(Duration::from_secs(2))`](Calls::delay) | answers two seconds late |
//! | [`faults.clear()`](Faults::clear) | passes all calls on |
//!
//! In the place of [`calls`](Faults::calls) there are [`acquires`](Faults::acquires), [`renewals`](Faults::renewals)
//! and [`releases`](Faults::releases).
//!
//! [`seed_thread`] makes the ids and the pauses of a test repeatable.
//!
//! Around a [`MemoryStore`](crate::MemoryStore), all of it works under tokio's paused clock. Beside this module,
//! `docs/testing.md` shows how to test with a paused clock, and with a database in a container.

mod calls;
mod failure;
mod faults;
mod faulty_store;
mod plan;
mod shared;

pub use self::{calls::Calls, failure::Failure, faults::Faults, faulty_store::FaultyStore};

/// From now on everything that this library takes at random on this thread follows from a seed: ids, the default owner
/// of a handle, and how long pauses are. Then a test on a current-thread runtime with a paused clock can be repeated.
///
/// What tokio takes at random, such as the branch of a `select!`, does not follow from it.
///
/// ```
/// use leasehold::{store::LeaseId, testing::seed_thread};
///
/// seed_thread(7);
/// let first = LeaseId::random();
/// seed_thread(7);
/// assert_eq!(LeaseId::random(), first);
/// ```
pub fn seed_thread(seed: u64) {
    crate::random::seeded::begin(seed);
}

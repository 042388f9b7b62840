//! How a resource refuses the late write of a holder that was paused.
//!
//! A resource that is written under a lease should store the greatest [`Fence`](crate::Fence) of its writes, and refuse
//! a write with a smaller one. For documents in these databases the library does both, and returns
//! [`Error::Fenced`](crate::Error::Fenced) for a write that is refused:
//!
//! - MongoDB, any deployment: [`GuardedCollection`](crate::mongodb::GuardedCollection), for the application's own
//!   collection. For statements that `GuardedCollection` does not have:
//!   [`Fence::guard`](crate::Fence::guard) and [`Fence::stamp`](crate::Fence::stamp).
//! - MongoDB, in a transaction: [`Lease::enforce`](crate::Lease::enforce).
//! - Elasticsearch and OpenSearch: [`GuardedIndex`](crate::elasticsearch::GuardedIndex), for the application's
//!   own index.
//!
//! Any other resource can do the same, if it can compare two numbers in the step that writes. `docs/fencing.md` shows
//! how in SQL and over HTTP, and how to add fencing to data that exists already.
//!
//! ```
//! use leasehold::Fence;
//!
//! struct Account {
//!     balance: i64,
//!     /// The greatest fence of all writes.
//!     fence: Fence,
//! }
//!
//! /// Sets the balance, unless a holder that was granted the key later has written before.
//! fn set_balance(account: &mut Account, balance: i64, fence: Fence) -> bool {
//!     if fence < account.fence {
//!         return false;
//!     }
//!     (account.balance, account.fence) = (balance, fence);
//!     true
//! }
//!
//! let mut account = Account { balance: 100, fence: Fence::new(7) };
//! assert!(set_balance(&mut account, 50, Fence::new(8)));
//! assert!(!set_balance(&mut account, 90, Fence::new(7))); // The late write of the earlier holder.
//! assert_eq!(account.balance, 50);
//! ```

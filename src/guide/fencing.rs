//! How a resource refuses the late write of a holder that was paused.
//!
//! A resource that is written under a lease should store the greatest [`Fence`](crate::Fence) that it was shown, and
//! refuse a write with a smaller one. A holder shows its fence before it reads. Otherwise the write of an earlier
//! holder may come between this read and the write that follows from it. For documents in these databases the library
//! does both with the feature `fencing`, and returns [`Error::Fenced`](crate::Error::Fenced) for a write that is refused:
//!
//! - MongoDB, any deployment: [`GuardedCollection`](crate::fencing::GuardedCollection), for the application's own
//!   collection. For statements that `GuardedCollection` does not have:
//!   [`Fence::guard`](crate::Fence::guard) and [`Fence::stamp`](crate::Fence::stamp).
//! - MongoDB, in a transaction: [`Lease::enforce`](crate::Lease::enforce).
//! - Elasticsearch and OpenSearch: [`GuardedIndex`](crate::fencing::GuardedIndex), for the application's
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
//!     /// The greatest fence that was shown.
//!     fence: Fence,
//! }
//!
//! impl Account {
//!     /// Reads the balance under a lease, and refuses all holders before this one from now on.
//!     fn claim(&mut self, fence: Fence) -> Option<i64> {
//!         (fence >= self.fence).then(|| {
//!             self.fence = fence;
//!             self.balance
//!         })
//!     }
//!
//!     /// Sets the balance, unless a later holder has claimed the account.
//!     fn set_balance(&mut self, balance: i64, fence: Fence) -> bool {
//!         let is_current = self.claim(fence).is_some();
//!         if is_current {
//!             self.balance = balance;
//!         }
//!         is_current
//!     }
//! }
//!
//! let mut account = Account { balance: 100, fence: Fence::new(6) };
//! let first = account.claim(Fence::new(7)).expect("nobody came later");
//! let second = account.claim(Fence::new(8)).expect("nobody came later");
//! assert!(!account.set_balance(first - 10, Fence::new(7))); // The late write of the earlier holder.
//! assert!(account.set_balance(second - 50, Fence::new(8)));
//! assert_eq!(account.balance, 50);
//! ```

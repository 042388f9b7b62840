//! The leases that stay with this process after their last use, so that the next acquire of the key is granted from
//! memory.
//!
//! - `stay.rs` has one key: who is granted it here, and when its lease goes back to the store.
//! - `holders.rs` has the leases that were granted it here.
//! - `fit.rs` says which acquires are granted from memory.
//! - `stays.rs` has all keys, and the bound on their number.
//! - `fences.rs` gives each grant from memory a fence.
//! - `contended.rs` remembers the keys that went back because another process waited for them.
//!
//! `lease/recalls.rs` and `lease/looks.rs` learn which keys other processes wait for, and `lease/send_back.rs` sends their
//! leases back.

mod contended;
mod fences;
mod fit;
mod holders;
mod stay;
mod stays;

pub(crate) use self::{
    fences::Fences,
    fit::{Fit, Wanted},
    stay::{Departure, Left, LocalAnswer, Stay},
    stays::Stays,
};

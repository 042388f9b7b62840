//! The leases that stay with this process after their last use, so that the next acquire of the key is granted from
//! memory, without a request to the store. Such a grant is called local. (It has nothing to do with the store in
//! memory.)
//!
//! - `stay.rs` has one key: who is granted it here, and whether its lease is to go back to the store because it is not
//!   used.
//! - `holders.rs` has the leases that were granted it here.
//! - `fit.rs` says which acquires are granted from memory.
//! - `stays.rs` has all keys, and the bound on their number.
//! - `fences.rs` gives each grant from memory a fence.
//! - `contended.rs` remembers the keys that went back because another process waited for them.
//!
//! `lease/recalls.rs` and `lease/stay_task.rs` learn which keys other processes wait for, and `lease/send_back.rs`
//! sends their leases back. `StayEndReason` (`telemetry/words.rs`) lists the reasons.

mod contended;
mod fences;
mod fit;
mod holders;
mod stay;
mod stays;

pub(crate) use self::{
    fences::Fences,
    fit::{Fit, Wanted},
    stay::{Closing, Departed, Departure, Left, LocalAnswer, Stay},
    stays::Stays,
};

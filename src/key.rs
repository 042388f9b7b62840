//! The keys that this process wants or holds: one state for each key (`state.rs`), which is pure, and the driver around
//! it (`keys.rs`).
//!
//! - `waiters.rs` says what a task wants, and has the tasks that wait, in one order.
//! - `claim.rs` is a lease id of this process, from before its first request until its release is settled; `holding.rs`
//!   is a lease that was granted, and the guards under it.
//! - `entering.rs` says what happens when a task comes or goes, `serving.rs` when it is served from memory, and takes or
//!   gives up a guard, `asking.rs` when the store is asked, `answers.rs` and `beside.rs` when it answers, and `settling.rs`
//!   how a claim ends that nobody wants.
//! - `line.rs` says when the store is asked again, by the last answer; `place.rs` and `pace.rs` have the place of this
//!   process among those that wait, and how long it pauses.
//! - `effect.rs` has what happens to a key and what the driver does, `changes.rs` how it does that, `requests.rs` how it
//!   sends requests, `call.rs` who polls them, `waiting.rs` and `cell.rs` the future of a task, `guards.rs` the guards.
//! - `looking.rs` learns from the store which keys are free, and which are awaited; `followers.rs` are told of it too, and
//!   `recent_keys.rs` has the keys that were awaited lately. `closing.rs` is the close of a handle.

mod answers;
mod asking;
mod beside;
mod call;
mod cell;
mod changes;
mod claim;
mod closing;
mod effect;
mod entering;
mod followers;
mod guards;
mod holding;
mod keys;
mod line;
mod looking;
mod pace;
mod place;
mod recent_keys;
mod requests;
mod serving;
mod settling;
mod state;
mod waiters;
mod waiting;

pub(crate) use self::{
    call::PolledCall,
    cell::Granted,
    effect::{Departed, Departure},
    guards::ReleaseOutcome,
    keys::Keys,
    recent_keys::RecentKeys,
    waiters::{FromMemory, Want},
};

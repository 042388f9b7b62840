//! A fault laboratory: the safety claims, tried on real engines while things go wrong.
//!
//! The program of the same name runs it for as long as it is told to; the tests of this package run it on each
//! engine until enough has happened. See `docs/evidence.md`.

pub mod broken;
pub mod check;
pub mod client;
pub mod cluster;
mod crowd;
pub mod documents;
pub mod durability;
mod guarded;
pub mod history;
pub mod lab;
pub mod ledger;
mod left;
pub mod network;
pub mod plan;
mod probe;
pub mod recording;
pub mod report;
mod schedule;
mod server;
mod sockets;
mod tally;
mod ticks;
mod watch;
mod weather;
pub mod work;

use std::time::Duration;

/// Only ends what hangs: nothing that goes on takes this long on a machine that is slow.
pub const HANGS: Duration = Duration::from_secs(900);

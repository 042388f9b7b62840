//! A fault laboratory: it tests the safety claims on real engines while faults happen.
//!
//! The program of the same name runs it for a given time. The tests of this package run it on each engine until enough
//! has happened. See `docs/evidence.md`.

pub mod broken;
pub mod check;
pub mod client;
pub mod cluster;
mod crowd;
pub mod documents;
pub mod durability;
mod guarded;
pub mod history;
mod kept;
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
pub mod stays;
mod tally;
mod ticks;
mod watch;
mod weather;
pub mod work;

use std::time::Duration;

/// The limit for a step that hangs. On a slow machine, no working step takes this long.
pub const HANGS: Duration = Duration::from_secs(900);

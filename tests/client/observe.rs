//! Spans, events and metrics.

mod journal;
mod meter;

mod closing;
mod counted;
mod documented;
mod overload;
pub mod panics;
mod streams;
mod terms;
mod told;
mod turns;

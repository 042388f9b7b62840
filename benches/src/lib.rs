//! Measures leasehold beside the bare drivers and its peers, in one run on the same engines.
//!
//! ```text
//! scripts/with-engines mongodb,mongodb-replset,elasticsearch,opensearch -- \
//!     cargo run --profile bench -p leasehold-benches -- run
//! cargo run --profile bench -p leasehold-benches -- report
//! ```

#![forbid(unsafe_code)]

pub mod busy;
pub mod cases;
pub mod cli;
pub mod counted;
pub mod cpu;
pub mod engines;
pub mod fairness;
pub mod handoffs;
pub mod keeping;
pub mod locks;
pub mod loops;
pub mod machine;
pub mod ours;
pub mod peers;
pub mod plot;
pub mod processes;
pub mod proxy;
pub mod raw;
pub mod raw_search;
pub mod report;
pub mod results;
pub mod rounds;
pub mod rss;
pub mod summary;
pub mod times;
pub mod waiting;

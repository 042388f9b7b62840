//! The arguments of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Measures leasehold beside the bare drivers and its peers.
#[derive(Debug, Parser)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures on the engines whose addresses are in the environment: MONGODB_URI,
    /// MONGODB_REPLSET_URI, MONGODB_THREE_URI, ELASTICSEARCH_URL, OPENSEARCH_URL.
    Run(RunOptions),
    /// Writes `measurements.md` from the stored results, and the figures of `performance.md`.
    Report(ReportOptions),
    /// A process that contends for a key with others of its kind.
    #[command(hide = true)]
    Child(ChildOptions),
    /// The process that keeps leases alive. Its input says which ones.
    #[command(hide = true)]
    Keep,
    /// A process that acquires and releases keys of an SQLite file.
    #[command(hide = true)]
    Sqlite(SqliteOptions),
    /// A process that spins until its input ends.
    #[command(hide = true)]
    Busy { loops: usize },
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// The case to measure. It may be given several times. Without it, all cases are measured.
    #[arg(long = "case")]
    pub cases: Vec<String>,
    /// For how many seconds each side of each variant is measured. A case that must wait for something, such as
    /// renewals, takes as long as it needs.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How many leases the cases `kept…` and `search-kept` keep, instead of the default of each case.
    #[arg(long)]
    pub leases: Option<usize>,
    /// The ttl of those leases, in seconds.
    #[arg(long)]
    pub ttl: Option<f64>,
    /// How many busy loops run for each core during those cases.
    #[arg(long)]
    pub busy: Option<usize>,
    /// The folder for the results.
    #[arg(long, default_value = "target/benches")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct ReportOptions {
    /// The folder with the results.
    #[arg(long, default_value = "target/benches")]
    pub from: PathBuf,
    /// The folder that contains both.
    #[arg(long, default_value = "docs")]
    pub to: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct SqliteOptions {
    pub path: PathBuf,
    /// What the keys of the process begin with.
    pub name: String,
    pub tasks: usize,
}

#[derive(Clone, Debug, Args)]
pub struct ChildOptions {
    #[arg(long)]
    pub uri: String,
    #[arg(long)]
    pub database: String,
    #[arg(long)]
    pub side: String,
    #[arg(long)]
    pub collection: String,
    #[arg(long)]
    pub tasks: usize,
    #[arg(long)]
    pub hold_millis: u64,
    /// Each hold then takes a random time of up to this many milliseconds.
    #[arg(long)]
    pub hold_most_millis: Option<u64>,
    #[arg(long, default_value_t = 0)]
    pub pause_millis: u64,
    #[arg(long)]
    pub shared: bool,
}

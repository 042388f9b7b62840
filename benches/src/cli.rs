//! What the command line takes.

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
    /// MONGODB_REPLSET_URI, ELASTICSEARCH_URL, OPENSEARCH_URL.
    Run(RunOptions),
    /// Writes the kept results into the documentation.
    Report(ReportOptions),
    /// One of the processes that hand a lock to each other.
    #[command(hide = true)]
    Child(ChildOptions),
    /// The process that keeps leases alive; its input tells which.
    #[command(hide = true)]
    Keep,
    /// A process that spins until its input ends.
    #[command(hide = true)]
    Busy { loops: usize },
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// A case to measure, as often as you like; without it all of them.
    #[arg(long = "case")]
    pub cases: Vec<String>,
    /// For how long each side of each variant of a case is measured. A case that has to wait for
    /// something, such as renewals, takes what it needs.
    #[arg(long, default_value_t = 6.0)]
    pub seconds: f64,
    /// How many leases the cases `kept…` and `search-kept` keep, instead of their own number.
    #[arg(long)]
    pub leases: Option<usize>,
    /// The ttl of those leases, in seconds.
    #[arg(long)]
    pub ttl: Option<f64>,
    /// How many busy loops a core run beside those cases.
    #[arg(long)]
    pub busy: Option<usize>,
    /// Where the results are kept.
    #[arg(long, default_value = "target/benches")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Where the results are.
    #[arg(long, default_value = "target/benches")]
    pub from: PathBuf,
    /// The folder of performance.md.
    #[arg(long, default_value = "docs")]
    pub to: PathBuf,
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
    /// With it, each hold takes a random time up to this one.
    #[arg(long)]
    pub hold_most_millis: Option<u64>,
    #[arg(long, default_value_t = 0)]
    pub pause_millis: u64,
    #[arg(long)]
    pub shared: bool,
}

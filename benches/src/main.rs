//! The program that measures and writes the report.

use clap::Parser;
use leasehold_benches::{
    busy, cases,
    cli::{Cli, Command},
    keeping, processes, report,
};

fn main() -> anyhow::Result<()> {
    // The runtime that applications use.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match Cli::parse().command {
        Command::Run(options) => runtime.block_on(cases::run(&options)),
        Command::Report(options) => report::write(&options),
        Command::Child(options) => runtime.block_on(processes::child(options)),
        Command::Keep => runtime.block_on(keeping::child()),
        Command::Sqlite(options) => runtime.block_on(cases::sqlite::child(options)),
        Command::Busy { loops } => busy::spin(loops),
    }
}

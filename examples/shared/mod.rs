//! What the examples have in common: the option `--store`, and the store that it names.

#[allow(dead_code)]
#[path = "../../src/bin/leasehold/address.rs"]
mod address;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use clap::Parser;
use leasehold::{MemoryStore, Store};

use self::address::{Make, Opened};

/// The options of every example.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// Where the locks are: file:PATH for a file, mongodb://HOST[:PORT][/DATABASE[.COLLECTION]] for MongoDB,
    /// http://HOST:PORT[/ALIAS] or https for Elasticsearch or OpenSearch. Without it, in the memory of
    /// this process, which needs no server
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) store: Option<String>,
}

impl StoreArgs {
    /// Opens the store, and makes sure that its server answers.
    ///
    /// No error repeats the address: it may hold a password.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>> {
        let Some(address) = &self.store else {
            return Ok(Arc::new(MemoryStore::new()));
        };
        let opened = Opened::at(address, Make::IfMissing).await?;
        opened.prepare().await?;
        Ok(opened.store)
    }
}

/// Reads the command line, as [`Parser::parse`] does, but never repeats an address: it may hold a
/// password.
pub(crate) fn parse_args<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() && error.to_string().contains("://") {
            eprintln!("error: {}; try --help", error.kind());
            std::process::exit(2);
        }
        error.exit()
    })
}

/// Says what went wrong, if anything did, in one line without a backtrace.
pub(crate) fn report(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

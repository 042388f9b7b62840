//! What the examples share: the option `--store` and the store that it names. Also the drawing code of the example
//! `timeline`.

pub mod http;
pub mod timeline;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use clap::Parser;
use leasehold::{MemoryStore, Store, address};

/// The options of every example.
#[derive(clap::Args)]
pub struct StoreArgs {
    /// Where the locks are: file:PATH for a file, mongodb://HOST:PORT/DATABASE for MongoDB, http://HOST:PORT/ALIAS or
    /// https for Elasticsearch or OpenSearch. Without it they are in the memory of this process, which needs no server
    #[arg(long, value_name = "ADDRESS")]
    pub store: Option<String>,
}

impl StoreArgs {
    /// Opens the store, and sets it up.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        match &self.store {
            None => Ok(Arc::new(MemoryStore::new())),
            Some(address) => open(address).await,
        }
    }
}

/// Opens the store with this address, and sets it up.
pub async fn open(address: &str) -> Result<Arc<dyn Store>> {
    let opened = address::open(address).await?;
    opened.prepare().await?;
    Ok(opened.store)
}

/// Parses the command line like [`Parser::parse`], but never prints an address, because it may contain a password.
pub fn parse_args<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() && error.to_string().contains("://") {
            eprintln!("error: {}; try --help", error.kind());
            std::process::exit(2);
        }
        error.exit()
    })
}

/// Prints the error, if there is one, in one line without a backtrace.
pub fn report(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! What the examples have in common: the option `--store`, and the store that it names.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use leasehold::{Error, MemoryStore, MongoStore, Store};
use mongodb::{
    Client,
    bson::Document,
    error::ErrorKind,
    options::{ClientOptions, ServerAddress},
};

/// The options of every example.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// Where the locks are: mongodb://HOST[:PORT][/DATABASE]. Without it, in the memory of this
    /// process, which needs no server
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) store: Option<String>,
}

impl StoreArgs {
    /// Opens the store, and makes sure that its server answers.
    ///
    /// No error repeats the address: it may hold a password.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>> {
        match &self.store {
            None => Ok(Arc::new(MemoryStore::new())),
            Some(address) => match address.split_once("://") {
                Some(("mongodb" | "mongodb+srv", _)) => open_mongodb(address).await,
                _ => bail!(
                    "--store takes an address that begins with mongodb://, for example \
                     mongodb://localhost/app; leave it out to run in memory"
                ),
            },
        }
    }
}

async fn open_mongodb(address: &str) -> Result<Arc<dyn Store>> {
    let mut options = ClientOptions::parse(address).await.map_err(unreadable)?;
    // The driver's own 30 s are long for somebody who waits at a terminal.
    let patience = Duration::from_secs(3);
    options.server_selection_timeout.get_or_insert(patience);
    let hosts: Vec<_> = options.hosts.iter().map(ServerAddress::to_string).collect();
    let hosts = hosts.join(", ");

    let client = Client::with_options(options).with_context(|| format!("no client of {hosts}"))?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    let store = MongoStore::new(&database.collection::<Document>("locks"));
    match store.prepare().await {
        Ok(()) => Ok(Arc::new(store)),
        // These say what to do. What the driver has to add is long, and helps nobody here.
        Err(error @ (Error::Unreachable { .. } | Error::Denied { .. })) => {
            Err(anyhow!("{hosts}: {error}"))
        }
        Err(error) => Err(error).context(hosts),
    }
}

/// The driver's own words may quote a part of the address.
fn unreadable(error: mongodb::error::Error) -> anyhow::Error {
    match *error.kind {
        ErrorKind::DnsResolve { .. } => {
            anyhow!("the host of --store has no DNS entry for MongoDB: check its name")
        }
        _ => anyhow!(
            "--store is not a valid MongoDB address: write it like \
             mongodb://user:password@host:27017/database, with special characters of the \
             password percent-encoded"
        ),
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

//! What the examples share: the option `--store` and the store that it names. Also the drawing code of the example
//! `timeline`.

pub mod timeline;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, Result, bail};
use clap::Parser;
use elasticsearch::{
    Elasticsearch,
    http::{
        Url,
        transport::{SingleNodeConnectionPool, TransportBuilder},
    },
};
use leasehold::{ElasticsearchStore, MemoryStore, MongoStore, OpenSearchStore, SqliteStore, Store};
use mongodb::{Client, bson::Document};
use opensearch::OpenSearch;
use serde_json::Value;

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
///
/// Errors never contain the address, because it may contain a password.
pub async fn open(address: &str) -> Result<Arc<dyn Store>> {
    if let Some(path) = address.strip_prefix("file:") {
        return Ok(Arc::new(SqliteStore::open(path).await?));
    }
    match address.split_once(':') {
        Some(("mongodb" | "mongodb+srv", _)) => {
            let client = Client::with_uri_str(address).await;
            let client = client.ok().context("this is no address of a MongoDB")?;
            let database = client.default_database();
            let database = database.unwrap_or_else(|| client.database("leasehold"));
            let store = MongoStore::new(&database.collection::<Document>("locks"));
            store.prepare().await?;
            Ok(Arc::new(store))
        }
        Some(("http" | "https", _)) => open_search_engine(address).await,
        _ => bail!("the address of a store begins with file:, mongodb:// or http://"),
    }
}

/// Opens the search engine with this address. The path of the address is the alias.
async fn open_search_engine(address: &str) -> Result<Arc<dyn Store>> {
    let mut url = Url::parse(address)
        .ok()
        .context("this is no HTTP address")?;
    let alias = match url.path().trim_matches('/') {
        "" => "leasehold".to_owned(),
        path => path.to_owned(),
    };
    url.set_path("");
    let nodes = SingleNodeConnectionPool::new(url.clone());
    let client = Elasticsearch::new(TransportBuilder::new(nodes).build()?);
    let about: Value = client.info().send().await?.json().await?;
    if about["version"]["distribution"] == "opensearch" {
        let nodes = opensearch::http::transport::SingleNodeConnectionPool::new(url);
        let transport = opensearch::http::transport::TransportBuilder::new(nodes).build()?;
        let store = OpenSearchStore::new(OpenSearch::new(transport), &alias);
        store.prepare().await?;
        return Ok(Arc::new(store));
    }
    let store = ElasticsearchStore::new(client, &alias);
    store.prepare().await?;
    Ok(Arc::new(store))
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

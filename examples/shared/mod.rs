//! What the examples have in common: the option `--store`, and the store that it names.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use elasticsearch::{
    Elasticsearch,
    http::{
        Url,
        transport::{SingleNodeConnectionPool, TransportBuilder},
    },
};
use leasehold::{ElasticsearchStore, Error, MemoryStore, MongoStore, OpenSearchStore, Store};
use mongodb::{
    Client,
    bson::Document,
    error::ErrorKind,
    options::{ClientOptions, ServerAddress},
};
use opensearch::OpenSearch;
use serde_json::Value;

/// How long a server gets to answer. The clients' own 30 s, or no limit at all, are too long for
/// somebody who waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(3);

/// The options of every example.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// Where the locks are: mongodb://HOST[:PORT][/DATABASE] for MongoDB, http://HOST:PORT[/ALIAS]
    /// for Elasticsearch or OpenSearch (https with a TLS feature of their clients). Without it, in
    /// the memory of this process, which needs no server
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
                Some(("http" | "https", _)) => open_index(address).await,
                _ => bail!(
                    "--store takes an address of MongoDB, for example mongodb://localhost/app, or \
                     of Elasticsearch or OpenSearch, for example http://localhost:9200/app-locks; \
                     leave it out to run in memory"
                ),
            },
        }
    }
}

async fn open_mongodb(address: &str) -> Result<Arc<dyn Store>> {
    let mut options = ClientOptions::parse(address).await.map_err(unreadable)?;
    options.server_selection_timeout.get_or_insert(PATIENCE);
    let hosts: Vec<_> = options.hosts.iter().map(ServerAddress::to_string).collect();
    let hosts = hosts.join(", ");

    let client = Client::with_options(options).with_context(|| format!("no client of {hosts}"))?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    let store = MongoStore::new(&database.collection::<Document>("locks"));
    prepared(hosts, store.prepare().await, store)
}

/// Asks the server which of the two it is, and opens the store of that one.
async fn open_index(address: &str) -> Result<Arc<dyn Store>> {
    let form = "http://user:password@host:9200/alias";
    let mut url = Url::parse(address).map_err(|_| invalid("HTTP", form))?;
    let alias = match url.path().trim_matches('/') {
        "" => "leasehold".to_owned(),
        path => path.to_owned(),
    };
    // All this may be the rest of a password that is not percent-encoded.
    if alias.contains(['/', '@']) || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("HTTP", form));
    }
    url.set_path("");
    let host = url.origin().ascii_serialization(); // without the user and the password

    // Not `Transport::single_node`, which would send a percent-encoded password as it is written.
    let nodes = SingleNodeConnectionPool::new(url.clone());
    let client = Elasticsearch::new(TransportBuilder::new(nodes).build()?);

    let answer = client.info().request_timeout(PATIENCE).send().await;
    let answer = answer.map_err(|error| {
        let error = anyhow::Error::from(error);
        anyhow!(
            "{host} cannot be reached: {}; check that the server runs, and the address: http or \
             https, the host, and the port (usually 9200)",
            error.root_cause()
        )
    })?;
    let status = answer.status_code().as_u16();
    if let 401 | 403 = status {
        bail!(
            "{host} refused the credentials (HTTP {status}): check the user and the password in the \
             address, {form}, and the roles of the user"
        );
    }
    // What is no JSON tells no version.
    let answer: Value = answer.json().await.unwrap_or_default();
    let version = |name: &str| answer["version"][name].as_str();
    match (version("distribution"), version("number")) {
        (Some("opensearch"), _) => {
            let transport = opensearch::http::transport::Transport::single_node(url.as_str())?;
            let store = OpenSearchStore::new(OpenSearch::new(transport), alias);
            prepared(host, store.prepare().await, store)
        }
        (None, Some(_)) => {
            let store = ElasticsearchStore::new(client, alias);
            prepared(host, store.prepare().await, store)
        }
        _ => bail!(
            "{host} answers (HTTP {status}), but not as Elasticsearch or OpenSearch: check the host \
             and the port (usually 9200) of --store"
        ),
    }
}

/// The store, if its preparation succeeded.
fn prepared(host: String, outcome: Result<(), Error>, store: impl Store) -> Result<Arc<dyn Store>> {
    match outcome {
        Ok(()) => Ok(Arc::new(store)),
        // These say what to do. What the driver has to add is long, and helps nobody here.
        Err(error @ (Error::Unreachable { .. } | Error::Denied { .. })) => {
            Err(anyhow!("{host}: {error}"))
        }
        Err(error) => Err(error).context(host),
    }
}

/// The driver's own words may quote a part of the address.
fn unreadable(error: mongodb::error::Error) -> anyhow::Error {
    match *error.kind {
        ErrorKind::DnsResolve { .. } => {
            anyhow!("the host of --store has no DNS entry for MongoDB: check its name")
        }
        _ => invalid("MongoDB", "mongodb://user:password@host:27017/database"),
    }
}

fn invalid(kind: &str, form: &str) -> anyhow::Error {
    anyhow!(
        "--store is not a valid {kind} address: write it like {form}, with special characters of \
         the password percent-encoded"
    )
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

//! Opens the store that an address names.
//!
//! No error repeats an address, because it may contain a password.

use std::{path::PathBuf, sync::Arc, time::Duration};

use elasticsearch::{
    Elasticsearch,
    http::{
        Url,
        transport::{SingleNodeConnectionPool, TransportBuilder},
    },
};
use leasehold::{ElasticsearchStore, Error, MongoStore, OpenSearchStore, SqliteStore, Store};
use mongodb::{
    Client, Collection,
    bson::Document,
    error::{Error as DriverError, ErrorKind},
    options::{ClientOptions, ConnectionString, ServerAddress},
};
use opensearch::OpenSearch;
use serde_json::Value;

/// How long the MongoDB driver looks for a server, unless the address says it. The driver's default of 30 s is too long
/// for a person at a terminal.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a search engine may take to answer. It may answer late if it is busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many hosts of a store are named.
const HOSTS_SHOWN: usize = 3;

/// The forms of an address.
pub(crate) const FORMS: &str = "file:PATH; mongodb://HOST[:PORT][/DATABASE[.COLLECTION]], \
     with classic+ before it for an engine without pipelines; \
     es+http://HOST:PORT[/ALIAS]; opensearch+https://HOST:PORT[/ALIAS]";
/// Examples of addresses with all parts, for errors.
const MONGODB: &str = "mongodb://user:password@host:27017/database.collection";
const HTTP: &str = "es+http://user:password@host:9200/alias";
/// The option of an address for clusters that forbid inline scripts.
const STORED_SCRIPTS: &str = "scripts=stored";

/// Why no store can be opened at an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// The text is no valid address.
    #[error("{0}")]
    Invalid(String),
    /// No server answers there, or the server is not of the expected kind.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the credentials.
    #[error("{0}")]
    Denied(String),
    /// The store failed.
    #[error("{}", at(place, error))]
    Store { place: String, error: Error },
}

/// A store, and the client or file behind it.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The hosts or the file, without any credentials.
    pub(crate) place: String,
    pub(crate) backend: Backend,
}

/// Whether a missing file is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    IfMissing,
    /// For commands that only look: a missing file probably means that the path is mistyped.
    Never,
}

pub(crate) enum Backend {
    File(SqliteStore),
    MongoDb(MongoStore, Collection<Document>),
    Elasticsearch(Arc<ElasticsearchStore>, Elasticsearch),
    OpenSearch(Arc<OpenSearchStore>, OpenSearch),
}

impl Opened {
    /// Opens the store at an address. A search engine is asked whether it is Elasticsearch or OpenSearch. MongoDB is
    /// not asked anything yet.
    pub(crate) async fn at(address: &str, make: Make) -> Result<Self, AddressError> {
        if let Some(path) = address.strip_prefix("file:") {
            return open_file(path, make).await;
        }
        match address.split_once("://") {
            Some(("mongodb" | "mongodb+srv", _)) => open_mongodb(address, |it| it).await,
            Some(("classic+mongodb" | "classic+mongodb+srv", _)) => {
                let address = address.trim_start_matches("classic+");
                open_mongodb(address, MongoStore::without_pipelines).await
            }
            Some(("http" | "https", _)) => open_index(address, None).await,
            Some(("es+http" | "es+https", _)) => {
                open_index(
                    address.trim_start_matches("es+"),
                    Some(Engine::Elasticsearch),
                )
                .await
            }
            Some(("opensearch+http" | "opensearch+https", _)) => {
                let address = address.trim_start_matches("opensearch+");
                open_index(address, Some(Engine::OpenSearch)).await
            }
            _ => Err(AddressError::Invalid(format!(
                "the address of a store is one of {FORMS}"
            ))),
        }
    }

    fn new(place: String, backend: Backend) -> Self {
        let store: Arc<dyn Store> = match &backend {
            Backend::File(store) => Arc::new(store.clone()),
            Backend::MongoDb(store, _) => Arc::new(store.clone()),
            Backend::Elasticsearch(store, ..) => store.clone(),
            Backend::OpenSearch(store, ..) => store.clone(),
        };
        Self {
            store,
            place,
            backend,
        }
    }

    /// Sets the store up.
    pub(crate) async fn prepare(&self) -> Result<(), AddressError> {
        let prepared = match &self.backend {
            // Opening the file has created its tables.
            Backend::File(_) => Ok(()),
            Backend::MongoDb(store, _) => store.prepare().await,
            Backend::Elasticsearch(store, ..) => store.prepare().await,
            Backend::OpenSearch(store, ..) => store.prepare().await,
        };
        let place = self.place.clone();
        prepared.map_err(|error| AddressError::Store { place, error })
    }
}

/// The message for an error, with its cause.
pub(crate) fn message(error: &Error) -> String {
    let is_of_mongodb = || error.driver_error::<DriverError>().is_some();
    match error {
        Error::NotPrepared { store, problem } => format!(
            "{store} is not prepared for locks ({problem}): mend that, and run `leasehold prepare`"
        ),
        Error::File { .. } => error.to_string(),
        // The client of a search engine quotes what it has sent.
        Error::Unreachable { .. } | Error::Denied { .. } if !is_of_mongodb() => error.to_string(),
        error => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// The message, after the place of the store. If the message names the hosts, only the rest of the place stands there.
fn at(place: &str, error: &Error) -> String {
    let message = message(error);
    match place.rsplit_once(", ") {
        Some((hosts, rest)) if message.contains(hosts) => format!("{rest}: {message}"),
        _ => format!("{place}: {message}"),
    }
}

async fn open_file(path: &str, make: Make) -> Result<Opened, AddressError> {
    // `file:///path` is the form of a URL, with an empty host.
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    if path.is_empty() {
        let text = "a file needs a path, as in file:/var/lib/app/locks.db".to_owned();
        return Err(AddressError::Invalid(text));
    }
    let path = PathBuf::from(path);
    let place = path.display().to_string();
    let opened = match make {
        Make::IfMissing => SqliteStore::open(path).await,
        Make::Never => SqliteStore::open_existing(path).await,
    };
    match opened {
        Ok(store) => Ok(Opened::new(place, Backend::File(store))),
        Err(error) => Err(AddressError::Store { place, error }),
    }
}

async fn open_mongodb(
    address: &str,
    set: fn(MongoStore) -> MongoStore,
) -> Result<Opened, AddressError> {
    let (address, collection) =
        collection_of(address).ok_or_else(|| invalid("MongoDB", MONGODB))?;
    let mut options = ClientOptions::parse(&address)
        .await
        .map_err(|error| unreadable(error, &address))?;
    options
        .server_selection_timeout
        .get_or_insert(SERVER_SELECTION_TIMEOUT);
    let hosts = named(&options.hosts);
    let client = Client::with_options(options).map_err(|error| unreadable(error, &address))?;
    let database = client
        .default_database()
        .unwrap_or_else(|| client.database("leasehold"));
    let locks = database.collection::<Document>(collection.as_deref().unwrap_or("locks"));
    let place = format!("{hosts}, {}", locks.namespace());
    let store = set(MongoStore::new(&locks));
    Ok(Opened::new(place, Backend::MongoDb(store, locks)))
}

/// Splits an address with `/app.jobs` into an address with the database `app` alone, as the driver expects it, and the
/// name of the collection, if there is one. `None` if the text after the slash may be the rest of a password that is
/// not percent-encoded.
fn collection_of(address: &str) -> Option<(String, Option<String>)> {
    let end = address.find('?').unwrap_or(address.len());
    let (before, options) = address.split_at(end);
    let (scheme, rest) = before.split_once("://")?;
    let Some((hosts, namespace)) = rest.split_once('/') else {
        return Some((address.to_owned(), None));
    };
    if namespace.contains(['/', '@']) {
        return None;
    }
    let Some((database, collection)) = namespace.split_once('.') else {
        return Some((address.to_owned(), None));
    };
    // The name of the collection is not percent-decoded.
    if database.is_empty() || collection.is_empty() || collection.contains('%') {
        return None;
    }
    let address = format!("{scheme}://{hosts}/{database}{options}");
    Some((address, Some(collection.to_owned())))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Elasticsearch,
    OpenSearch,
}

/// Asks the server whether it is Elasticsearch or OpenSearch, and opens its store.
async fn open_index(address: &str, wanted: Option<Engine>) -> Result<Opened, AddressError> {
    let mut url = Url::parse(address).map_err(|_| invalid("HTTP", HTTP))?;
    let alias = match url.path().trim_matches('/') {
        "" => "leasehold".to_owned(),
        path => path.to_owned(),
    };
    let stored = url.query() == Some(STORED_SCRIPTS);
    // Such a part may be the rest of a password that is not percent-encoded.
    let has_more = url.query().is_some() && !stored || url.fragment().is_some();
    if has_more || alias.contains(['/', '@']) {
        return Err(invalid("HTTP", HTTP));
    }
    url.set_path("");
    url.set_query(None);
    let host = url.origin().ascii_serialization(); // without the user and the password
    let unusable = |problem: &str| AddressError::Invalid(format!("{host} {problem}"));

    // Not `Transport::single_node`, which would send a percent-encoded password as it is written.
    let nodes = SingleNodeConnectionPool::new(url.clone());
    let transport = TransportBuilder::new(nodes).build();
    let transport = transport.map_err(|_| unusable("cannot be used: check the address"))?;
    let client = Elasticsearch::new(transport);

    let answer = client.info().request_timeout(RESPONSE_TIMEOUT).send().await;
    let answer = answer.map_err(|error| {
        let error = anyhow::Error::from(error);
        AddressError::Unreachable(format!(
            "{host} cannot be reached: {}; check that the server runs, and the address: http or \
             https, the host, and the port (usually 9200)",
            error.root_cause()
        ))
    })?;
    let status = answer.status_code().as_u16();
    // A user may use the locks and lack the right to ask what the cluster is (`cluster:monitor/main`).
    let trusted = wanted.filter(|_| status == 403);
    if matches!(status, 401 | 403) && trusted.is_none() {
        return Err(AddressError::Denied(format!(
            "{host} refused the credentials (HTTP {status}): check the user and the password in the \
             address, {HTTP}, and the roles of the user; without the right `monitor`, say which it is: \
             es+{} or opensearch+{}",
            url.scheme(),
            url.scheme(),
        )));
    }
    // An answer that is not JSON counts as one without a version.
    let answer: Value = answer.json().await.unwrap_or_default();
    let version = |name: &str| answer.get("version")?.get(name)?.as_str();
    let found = match (trusted, version("distribution"), version("number")) {
        (Some(engine), ..) => engine,
        (None, Some("opensearch"), _) => Engine::OpenSearch,
        (None, None, Some(_)) => Engine::Elasticsearch,
        _ => {
            return Err(AddressError::Unreachable(format!(
                "{host} answers (HTTP {status}), but not as Elasticsearch or OpenSearch: check the \
                 host and the port (usually 9200)"
            )));
        }
    };
    let place = format!("{host}, {alias}");
    match found {
        _ if wanted.is_some_and(|wanted| wanted != found) => Err(unusable(match found {
            Engine::OpenSearch => {
                "is an OpenSearch: write opensearch+http:// or opensearch+https://"
            }
            Engine::Elasticsearch => "is an Elasticsearch: write es+http:// or es+https://",
        })),
        Engine::OpenSearch => {
            let transport = opensearch::http::transport::Transport::single_node(url.as_str())
                .map_err(|_| unusable("cannot be used: check the address"))?;
            let client = OpenSearch::new(transport);
            let mut store = OpenSearchStore::new(client.clone(), &alias);
            if stored {
                store = store.stored_scripts();
            }
            let backend = Backend::OpenSearch(Arc::new(store), client);
            Ok(Opened::new(place, backend))
        }
        Engine::Elasticsearch => {
            let mut store = ElasticsearchStore::new(client.clone(), &alias);
            if stored {
                store = store.stored_scripts();
            }
            let backend = Backend::Elasticsearch(Arc::new(store), client);
            Ok(Opened::new(place, backend))
        }
    }
}

/// The first of these hosts, and how many more there are.
fn named(hosts: &[ServerAddress]) -> String {
    let shown = hosts.iter().take(HOSTS_SHOWN).map(ServerAddress::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match hosts.len().saturating_sub(HOSTS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What is wrong with the options of an address, if it is valid without them.
///
/// The option is told by its place: its text may be the rest of a password that is not percent-encoded.
fn refused_option(address: &str) -> Option<String> {
    let (before, options) = address.split_once('?')?;
    let parse = |options: &str| ConnectionString::parse(format!("{before}?{options}"));
    if options.contains('@') || parse("appName=leasehold").is_err() {
        return None;
    }
    for (number, option) in (1..).zip(options.split('&')) {
        let Err(error) = parse(option) else { continue };
        // The driver names an option that it knows.
        let text = error.to_string();
        let similar = text.split_once("similar name exists: ");
        let similar = similar.map(|(_, rest)| {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric())
                .collect();
            format!("; the name of a similar option is {name}")
        });
        return Some(format!(
            "option {number} after the ? of the address is none of the MongoDB driver's, or has a value that it does \
             not take{}",
            similar.unwrap_or_default()
        ));
    }
    Some(
        "the options after the ? of the address do not go together for the MongoDB driver"
            .to_owned(),
    )
}

/// The error for an address that the driver refuses. It leaves out the driver's message, which may quote the address.
fn unreadable(error: DriverError, address: &str) -> AddressError {
    match *error.kind {
        ErrorKind::DnsResolve { .. } => AddressError::Unreachable(
            "the host of the address has no DNS entry for MongoDB: check its name".to_owned(),
        ),
        _ => match refused_option(address) {
            Some(problem) => AddressError::Invalid(problem),
            None => invalid("MongoDB", MONGODB),
        },
    }
}

fn invalid(kind: &str, form: &str) -> AddressError {
    AddressError::Invalid(format!(
        "this is not a valid {kind} address: write it like {form}, with special characters of the \
         password percent-encoded"
    ))
}

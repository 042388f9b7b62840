//! Opens the store in an index of Elasticsearch or OpenSearch, and asks which of them answers.

mod clients;
mod cluster;
mod proxy;

use std::{error::Error as _, sync::Arc, time::Duration};

use serde_json::Value;

use self::cluster::{Cluster, FORM};
use super::{
    error::{AddressError, missing},
    opened::{Backend, Opened},
    scheme::Engine,
};
use crate::{
    model::{Error, sentence},
    random,
    store::elasticsearch::{IndexStore, Nodes, Transport, about},
};

/// How long a search engine may take to answer. It may answer late if it is busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest cause in a message, in characters.
const MAX_CAUSE: usize = 100;

pub(super) async fn open(address: &str, wanted: Option<Engine>) -> Result<Opened, AddressError> {
    if let Some(engine) = wanted.filter(|engine| !is_on(*engine)) {
        return Err(missing(engine.feature()));
    }
    let cluster = Cluster::parse(address)?;
    if cfg!(not(feature = "address-tls")) && cluster.node.scheme() == "https" {
        return Err(missing("address-tls"));
    }
    let count = cluster.nodes().count();
    // Not every process should use the same node.
    let first = usize::try_from(random::number()).unwrap_or_default() % count.max(1);
    let nodes = Nodes::new(count, first);
    match engine(&cluster, &nodes, wanted).await? {
        #[cfg(feature = "elasticsearch")]
        Engine::Elasticsearch => {
            let client = clients::elasticsearch::client(&cluster, &nodes)?;
            let store = store(client.clone(), &cluster, nodes);
            Ok(opened(&cluster, Backend::Elasticsearch(store, client)))
        }
        #[cfg(feature = "opensearch")]
        Engine::OpenSearch => {
            let client = clients::opensearch::client(&cluster, &nodes)?;
            let store = store(client.clone(), &cluster, nodes);
            Ok(opened(&cluster, Backend::OpenSearch(store, client)))
        }
        #[cfg(not(all(feature = "elasticsearch", feature = "opensearch")))]
        engine => Err(missing(engine.feature())),
    }
}

fn store<C: Transport>(client: C, cluster: &Cluster, nodes: Nodes) -> Arc<IndexStore<C>> {
    let store = IndexStore::new(client, &cluster.alias).nodes(nodes);
    Arc::new(if cluster.stored_scripts {
        store.stored_scripts()
    } else {
        store
    })
}

fn opened(cluster: &Cluster, backend: Backend) -> Opened {
    let place = format!("{}, {}", cluster.hosts(), cluster.alias);
    Opened::new(place, backend)
}

/// Whether the feature of this engine is on.
fn is_on(engine: Engine) -> bool {
    match engine {
        Engine::Elasticsearch => cfg!(feature = "elasticsearch"),
        Engine::OpenSearch => cfg!(feature = "opensearch"),
    }
}

/// Asks the server whether it is Elasticsearch or OpenSearch. An engine that is wanted must be the one that answers.
async fn engine(
    cluster: &Cluster,
    nodes: &Nodes,
    wanted: Option<Engine>,
) -> Result<Engine, AddressError> {
    // Either client can ask either engine.
    #[cfg(feature = "elasticsearch")]
    let client = clients::elasticsearch::client(cluster, nodes)?;
    #[cfg(not(feature = "elasticsearch"))]
    let client = clients::opensearch::client(cluster, nodes)?;
    let scheme = cluster.node.scheme();
    let answer = about(&client, nodes, RESPONSE_TIMEOUT).await;
    let (host, status, answer) = answer.map_err(|error| unreachable(cluster, &error))?;
    let host = format!("{scheme}://{host}");
    // A user may use the locks and lack the right to ask what the cluster is (`cluster:monitor/main`).
    let trusted = wanted.filter(|_| status == 403);
    if matches!(status, 401 | 403) && trusted.is_none() {
        let credentials = match cluster.api_key {
            Some(_) => "the apiKey in the address, and its roles".to_owned(),
            None => format!(
                "the user and the password in the address, {FORM}, and the roles of the user"
            ),
        };
        return Err(AddressError::Denied(format!(
            "{host} refused the credentials (HTTP {status}): check {credentials}; without the right \
             `monitor`, say which it is: es+{scheme} or opensearch+{scheme}",
        )));
    }
    let found = trusted.or_else(|| named(&answer)).ok_or_else(|| {
        AddressError::Unreachable(format!(
            "{host}{} answers (HTTP {status}), but not as Elasticsearch or OpenSearch: check the \
             host, the port (usually 9200), and that the path ends with an alias",
            by_proxy(cluster)
        ))
    })?;
    if wanted.is_none_or(|wanted| wanted == found) {
        return Ok(found);
    }
    let (name, prefix) = match found {
        Engine::OpenSearch => ("an OpenSearch", "opensearch"),
        Engine::Elasticsearch => ("an Elasticsearch", "es"),
    };
    Err(AddressError::Invalid(format!(
        "{host} is {name}: write {prefix}+http:// or {prefix}+https://"
    )))
}

/// The error for a cluster whose nodes give no answer.
fn unreachable(cluster: &Cluster, error: &Error) -> AddressError {
    let cause = error.source().map(ToString::to_string);
    let mut cause = cause.unwrap_or_else(|| error.to_string());
    // Of several nodes the cause names the one that failed last.
    if cluster.others.is_empty()
        && let Some((_, root)) = cause.split_once(": ")
    {
        cause = root.to_owned();
    }
    let check = if cause.contains("certificate") {
        "name the file of its certificate authority by tlsCAFile in the address, or add it to the \
         system's certificates"
    } else {
        "check that the server runs, and the address: http or https, the host, and the port (usually \
         9200)"
    };
    let (hosts, proxy) = (cluster.hosts(), by_proxy(cluster));
    let cause = sentence(&cause, MAX_CAUSE);
    AddressError::Unreachable(format!(
        "{hosts} cannot be reached{proxy}: {cause}; {check}"
    ))
}

/// Tells of the proxy on the way to the cluster, if there is one.
fn by_proxy(cluster: &Cluster) -> String {
    if cluster.is_loopback() {
        return String::new();
    }
    let proxy = cluster.nodes().find_map(|node| proxy::told(node.as_str()));
    proxy.map_or_else(String::new, |proxy| format!(" by {proxy}"))
}

/// The engine that gave this answer about itself.
fn named(answer: &Value) -> Option<Engine> {
    let version = |name: &str| answer.get("version")?.get(name)?.as_str();
    match (version("distribution"), version("number")) {
        (Some("opensearch"), _) => Some(Engine::OpenSearch),
        (None, Some(_)) => Some(Engine::Elasticsearch),
        _ => None,
    }
}

//! Opens the store in an index of Elasticsearch or OpenSearch, and asks which of them answers.

mod clients;
mod cluster;

use std::{error::Error as _, sync::Arc, time::Duration};

use serde_json::Value;

use self::cluster::{Cluster, FORM};
use super::{
    error::{AddressError, missing},
    opened::{Backend, Opened},
    scheme::Engine,
};
#[cfg(feature = "elasticsearch")]
use crate::store::elasticsearch::ElasticsearchStore;
#[cfg(feature = "opensearch")]
use crate::store::elasticsearch::OpenSearchStore;
use crate::store::elasticsearch::about;

/// How long a search engine may take to answer. It may answer late if it is busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn open(address: &str, wanted: Option<Engine>) -> Result<Opened, AddressError> {
    if let Some(engine) = wanted.filter(|engine| !is_on(*engine)) {
        return Err(missing(engine.feature()));
    }
    let cluster = Cluster::parse(address)?;
    if cfg!(not(feature = "address-tls")) && cluster.url.scheme() == "https" {
        return Err(missing("address-tls"));
    }
    match engine(&cluster, wanted).await? {
        #[cfg(feature = "elasticsearch")]
        Engine::Elasticsearch => {
            let client = clients::elasticsearch(&cluster)?;
            let mut store = ElasticsearchStore::new(client.clone(), &cluster.alias);
            if cluster.stored_scripts {
                store = store.stored_scripts();
            }
            Ok(opened(
                &cluster,
                Backend::Elasticsearch(Arc::new(store), client),
            ))
        }
        #[cfg(feature = "opensearch")]
        Engine::OpenSearch => {
            let client = clients::opensearch(&cluster)?;
            let mut store = OpenSearchStore::new(client.clone(), &cluster.alias);
            if cluster.stored_scripts {
                store = store.stored_scripts();
            }
            Ok(opened(
                &cluster,
                Backend::OpenSearch(Arc::new(store), client),
            ))
        }
        #[cfg(not(all(feature = "elasticsearch", feature = "opensearch")))]
        engine => Err(missing(engine.feature())),
    }
}

fn opened(cluster: &Cluster, backend: Backend) -> Opened {
    let place = format!("{}, {}", cluster.host(), cluster.alias);
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
async fn engine(cluster: &Cluster, wanted: Option<Engine>) -> Result<Engine, AddressError> {
    // Either client can ask either engine.
    #[cfg(feature = "elasticsearch")]
    let client = clients::elasticsearch(cluster)?;
    #[cfg(not(feature = "elasticsearch"))]
    let client = clients::opensearch(cluster)?;
    let host = cluster.host();
    let answer = about(&client, RESPONSE_TIMEOUT).await;
    let (status, answer) = answer.map_err(|error| {
        let cause = error.source().map(ToString::to_string);
        AddressError::Unreachable(format!(
            "{host} cannot be reached: {}; check that the server runs, and the address: http or \
             https, the host, and the port (usually 9200)",
            cause.unwrap_or_else(|| error.to_string())
        ))
    })?;
    // A user may use the locks and lack the right to ask what the cluster is (`cluster:monitor/main`).
    let trusted = wanted.filter(|_| status == 403);
    if matches!(status, 401 | 403) && trusted.is_none() {
        let scheme = cluster.url.scheme();
        return Err(AddressError::Denied(format!(
            "{host} refused the credentials (HTTP {status}): check the user and the password in the \
             address, {FORM}, and the roles of the user; without the right `monitor`, say which it is: \
             es+{scheme} or opensearch+{scheme}",
        )));
    }
    let found = trusted.or_else(|| named(&answer)).ok_or_else(|| {
        AddressError::Unreachable(format!(
            "{host} answers (HTTP {status}), but not as Elasticsearch or OpenSearch: check the \
             host and the port (usually 9200)"
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

/// The engine that gave this answer about itself.
fn named(answer: &Value) -> Option<Engine> {
    let version = |name: &str| answer.get("version")?.get(name)?.as_str();
    match (version("distribution"), version("number")) {
        (Some("opensearch"), _) => Some(Engine::OpenSearch),
        (None, Some(_)) => Some(Engine::Elasticsearch),
        _ => None,
    }
}

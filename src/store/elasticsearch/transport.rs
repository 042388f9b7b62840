//! One trait to send a request by either of the two clients.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    server::{host_of, no_answer},
    statements::{Body, HttpRequest, Method},
};
use crate::model::Error;

/// The longest time limit of a request. Without it a request on a dead connection would never end. The default
/// `call_timeout` is shorter.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A client of a cluster: `elasticsearch::Elasticsearch` or `opensearch::OpenSearch`.
///
/// Other crates cannot implement it.
#[async_trait]
pub trait Transport: Clone + Send + Sync + 'static {
    #[doc(hidden)]
    const NAME: &'static str;

    #[doc(hidden)]
    async fn send(&self, request: SealedRequest<'_>) -> Result<Response, Error>;
}

/// A request and its time limit. It hides [`HttpRequest`] from the public interface, and keeps other crates from
/// implementing [`Transport`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct SealedRequest<'a>(pub(crate) &'a HttpRequest, pub(crate) Duration);

/// A status and a body, and the host and port that sent them.
pub(super) type Response = (Arc<str>, u16, Vec<u8>);

/// The body as it is sent.
fn bytes(body: &Body) -> Option<Vec<u8>> {
    match body {
        Body::None => None,
        Body::Json(value) => Some(value.to_string().into_bytes()),
        Body::Lines(values) => {
            let lines = values.iter().map(|value| format!("{value}\n"));
            Some(lines.collect::<String>().into_bytes())
        }
    }
}

/// This is a macro because the two clients have the same methods, on types of the same names, in different crates.
macro_rules! transport {
    ($client:ty, $crate_name:ident, $name:literal) => {
        #[async_trait]
        impl Transport for $client {
            const NAME: &'static str = $name;

            async fn send(&self, request: SealedRequest<'_>) -> Result<Response, Error> {
                use $crate_name::http::{Method as HttpMethod, headers};

                let SealedRequest(request, limit) = request;
                let mut header = headers::HeaderMap::new();
                if let Body::Lines(_) = request.body {
                    let lines = headers::HeaderValue::from_static("application/x-ndjson");
                    header.insert(headers::CONTENT_TYPE, lines);
                }
                let method = match request.method {
                    Method::Get => HttpMethod::Get,
                    Method::Put => HttpMethod::Put,
                    Method::Post => HttpMethod::Post,
                };
                let query = (!request.query.is_empty()).then_some(&request.query);
                let body = bytes(&request.body);
                let response = self
                    .transport()
                    .send(method, &request.path, header, query, body, Some(limit))
                    .await
                    .map_err(|error| no_answer($name, None, error))?;
                let status = response.status_code().as_u16();
                let host: Arc<str> = host_of(response.url().as_str()).into();
                let body = response.bytes().await;
                let body = body.map_err(|error| no_answer($name, Some(&host), error))?;
                Ok((host, status, body.to_vec()))
            }
        }
    };
}

#[cfg(feature = "elasticsearch")]
transport!(elasticsearch::Elasticsearch, elasticsearch, "Elasticsearch");
#[cfg(feature = "opensearch")]
transport!(opensearch::OpenSearch, opensearch, "OpenSearch");

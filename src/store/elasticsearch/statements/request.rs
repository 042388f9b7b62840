//! A request to the cluster, before a client sends it.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Put,
    Post,
}

/// A request to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) body: Body,
}

/// The query parameters of a request.
pub(crate) type Query = Vec<(&'static str, Cow<'static, str>)>;

/// The body of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    None,
    Json(Value),
    /// One JSON value on each line.
    Lines(Vec<Value>),
}

impl HttpRequest {
    /// A request without query parameters.
    pub(crate) fn new(method: Method, path: String, body: Body) -> Self {
        Self {
            method,
            path,
            query: Query::new(),
            body,
        }
    }

    /// The same request, with one more query parameter.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// A search that answers with nothing unless it sees all shards and does not end early.
    pub(crate) fn search(names: &str, body: Value) -> Self {
        Self::new(Method::Post, format!("{names}/_search"), Body::Json(body))
            .with("allow_partial_search_results", "false")
    }
}

/// A search for no documents in the indices behind these names. It fails while a node that has just started does not
/// know the indices.
pub(crate) fn probe_of(names: &str) -> HttpRequest {
    let body = Body::Json(json!({ "size": 0 }));
    HttpRequest::new(Method::Post, format!("{names}/_search"), body)
}

/// Whether this can be the name of an index or alias. The clusters allow more, but with these characters a name is one
/// name of one index, and one segment of a path, however often something in between decodes the path. A comma, a star or
/// a slash would make several names or another path of it.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |it: char| it.is_alphanumeric() || matches!(it, '-' | '_' | '.');
    !matches!(name, "" | "." | "..") && name.chars().all(is_plain)
}

/// A [name](is_name) as a segment of a path.
pub(crate) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

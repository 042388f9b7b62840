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

/// A search for no documents in the indices behind these names.
pub(crate) fn probe_of(names: &str) -> HttpRequest {
    HttpRequest {
        method: Method::Post,
        path: format!("{names}/_search"),
        query: Query::new(),
        body: Body::Json(json!({ "size": 0 })),
    }
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

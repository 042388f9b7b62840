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

/// A name as a segment of a path.
pub(crate) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

//! Who answered, or did not, in the messages of errors. A message is one sentence, with the host and the cause.

use std::{error::Error as StdError, fmt, io, sync::Arc};

use crate::model::{Cause, Error, brief, sentence};

/// The longest text of a cause, in characters. With the sentence of the longest error before it, a message has at most
/// 300.
const MAX_CAUSE: usize = 190;
/// The longest name of a host, an index or an alias in a message.
const MAX_NAME: usize = 72;

/// The server that gave an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) store: &'static str,
    /// Its host and port.
    pub(crate) host: Arc<str>,
}

impl Server {
    /// The error for an answer from which nothing follows. It is unknown whether the request was carried out.
    pub(crate) fn interrupted(&self, problem: impl fmt::Display) -> Error {
        Error::Interrupted {
            store: self.store,
            source: Cause::text(self.told(problem)),
        }
    }

    /// The error for an answer that does not fit the request, or lacks what was asked for.
    pub(crate) fn malformed(&self, problem: &'static str) -> Error {
        self.interrupted(format_args!("the answer makes no sense: {problem}"))
    }

    /// The error for an index that is not fit for locks. The problem says what to do.
    pub(crate) fn not_prepared(&self, problem: impl fmt::Display) -> Error {
        Error::NotPrepared {
            store: self.store,
            problem: format!("{}: {problem}", name(&self.host)),
        }
    }

    /// A cause, with the name of the host.
    pub(crate) fn told(&self, cause: impl fmt::Display) -> String {
        short(&format!("{}: {cause}", name(&self.host)))
    }
}

/// The error of a request, or of the answer of this host. If a connection was made, the request may have been sent.
pub(crate) fn no_answer(
    store: &'static str,
    host: Option<&str>,
    error: impl StdError + Send + Sync + 'static,
) -> Error {
    let was_connected = host.is_some() || !never_connected(&error);
    let texts: Vec<_> = chain(&error).map(ToString::to_string).collect();
    let host = host.or_else(|| texts.iter().find_map(|text| named_host(text)));
    let host = name(host.unwrap_or("the server"));
    let root = texts.last().map_or("", String::as_str);
    if was_connected {
        let text = short(&format!("{host} gave no answer: {root}"));
        let source = Cause::worded(text, error);
        Error::Interrupted { store, source }
    } else {
        let text = short(&format!("{host} cannot be connected to: {root}"));
        let source = Cause::worded(text, error);
        Error::Unreachable { store, source }
    }
}

/// The error and its causes, the root cause last.
fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Whether no connection was made. The clients hide the error type of their HTTP library, so this searches the text of
/// the error for "(Connect)".
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| {
        let refused = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        refused || error.to_string().contains("(Connect)")
    })
}

/// The host and port in the first URL of a text.
fn named_host(text: &str) -> Option<&str> {
    let start = text.find("http://").or_else(|| text.find("https://"))?;
    Some(host_of(&text[start..])).filter(|host| !host.is_empty())
}

/// The host and port of a URL, without the credentials.
pub(crate) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', ')', ' ']).next();
    let authority = authority.unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

/// A name that is shortened if it is very long.
pub(crate) fn name(name: &str) -> String {
    brief(name, MAX_NAME).into_owned()
}

/// A text as one short sentence. The request that the error of a cluster repeats, with its scripts and parameters, is left
/// out.
pub(crate) fn short(text: &str) -> String {
    let before = text.split("request: [").next().unwrap_or_default();
    sentence(before, MAX_CAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_without_credentials() {
        for (url, host) in [
            ("http://127.0.0.1:9200/locks/_bulk?x", "127.0.0.1:9200"),
            ("https://me:hunter2@es.example/", "es.example"),
            ("https://me:p%40ss@[::1]:9200)", "[::1]:9200"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(host_of(url), host);
        }
        let text = "error sending request for url (http://me:hunter2@es:9200/locks)";
        assert_eq!(named_host(text), Some("es:9200"));
        assert_eq!(named_host("no url"), None);
    }

    #[test]
    fn a_message_is_short_whatever_the_cluster_says() {
        let said = "[locks][0] primary shard is not active Timeout: [5s], request: [BulkShardRequest [[locks][0]] containing [update]]";
        assert_eq!(
            short(said),
            "[locks][0] primary shard is not active Timeout: [5s]"
        );
    }

    #[test]
    fn a_refused_connection_is_unreachable_and_a_broken_one_ambiguous() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = no_answer("Elasticsearch", None, refused);
        assert!(matches!(error, Error::Unreachable { .. }));
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        let error = no_answer("Elasticsearch", Some("es:9200"), broken);
        assert!(error.is_ambiguous());
        assert!(error.driver_error::<io::Error>().is_some());
    }
}

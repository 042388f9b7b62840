//! What the answers and errors of a cluster mean for a lock.

use std::{error::Error as StdError, fmt, io};

use serde_json::Value;

use crate::model::{Cause, Error, Fence, Key};

/// What a cluster said instead of doing what it was asked.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: u16,
    kind: String,
    reason: String,
    index: Option<String>,
}

impl Refusal {
    /// Reads the body of an answer with an error status, or the `error` of an item of a bulk. What
    /// is not JSON was not said by the cluster but by something in between.
    pub(crate) fn read(status: u16, body: &Value) -> Self {
        let error = &body["error"];
        // The root cause names what went wrong; the reason around it may only say that it did.
        let root = error["root_cause"].get(0).unwrap_or(error);
        let cause = innermost(error);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut reason = text(&root["reason"]);
        let cause = text(&cause["reason"]);
        if !cause.is_empty() && !reason.contains(&cause) {
            reason = format!("{reason}: {cause}");
        }
        if let Some(plain) = error.as_str() {
            plain.clone_into(&mut reason);
        }
        Self {
            status,
            kind: text(&root["type"]),
            reason,
            index: root["index"].as_str().map(str::to_owned),
        }
    }

    /// An answer that is not JSON.
    pub(crate) fn foreign(status: u16) -> Self {
        Self {
            status,
            kind: String::new(),
            reason: "the answer is not JSON: something between here and the cluster answered"
                .to_owned(),
            index: None,
        }
    }

    /// The index that it is about, if it tells.
    pub(crate) fn index(&self) -> Option<&str> {
        self.index.as_deref()
    }

    /// Whether it says that the document is not there, and not the index.
    pub(crate) fn is_missing_document(&self) -> bool {
        self.status == 404 && self.kind == "document_missing_exception"
    }

    /// Whether it says that what was asked for is not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.status == 404
    }

    /// Whether it says that the index is not there.
    pub(crate) fn is_missing_index(&self) -> bool {
        self.status == 404 && self.kind == "index_not_found_exception"
    }

    /// Whether it says that the index to create is there.
    pub(crate) fn is_existing_index(&self) -> bool {
        self.kind == "resource_already_exists_exception"
    }

    /// Sorts it by what its reader can do about it. When in doubt, the request may have been carried
    /// out.
    pub(crate) fn sorted(self, store: &'static str, key: Option<&Key>) -> Error {
        let kind = self.kind.as_str();
        let unprepared = |problem: String| Error::NotPrepared { store, problem };
        match (self.status, kind) {
            // A disk that ran full, or an index that an operator closed to writes; or the node has no
            // room for the request.
            (403 | 429, "cluster_block_exception") | (429, _) => Error::Overloaded {
                store,
                source: self.into(),
            },
            (401 | 403, _) => Error::Denied {
                store,
                source: self.into(),
            },
            (404, "index_not_found_exception") => unprepared(self.reason),
            (400 | 404, _) if self.reason.contains("unable to find script") => {
                unprepared(self.reason)
            }
            (
                400,
                "strict_dynamic_mapping_exception"
                | "mapper_parsing_exception"
                | "document_parsing_exception"
                | "invalid_alias_name_exception",
            ) => unprepared(self.reason),
            // The mapping that is there cannot be changed into ours.
            (400, "illegal_argument_exception") if self.reason.starts_with("mapper [") => {
                unprepared(self.reason)
            }
            (400, "illegal_argument_exception") if self.reason.contains("inline") => {
                unprepared(format!(
                    "{}; build the store, and what guards documents, with stored_scripts(), and for \
                     the command `leasehold` put ?scripts=stored behind the alias",
                    self.reason
                ))
            }
            (409, _) => match key {
                Some(key) => Error::Contention { key: key.clone() },
                None => Error::Interrupted {
                    store,
                    source: self.into(),
                },
            },
            // A node that fails, a primary that is gone (perhaps after it carried the request out), a
            // proxy that lost its node, or an answer that makes no sense: nothing is known.
            (200..=299 | 408 | 500.., _) => Error::Interrupted {
                store,
                source: self.into(),
            },
            _ => Error::Store {
                store,
                source: self.into(),
            },
        }
    }
}

/// For documents of the application, in an index that is not ours to prepare.
impl Refusal {
    pub(crate) fn sorted_for_a_document(self, store: &'static str, id: &Key) -> Error {
        let advice = match self.kind.as_str() {
            "index_not_found_exception" => {
                "; create it with its mapping first, what is guarded creates none".to_owned()
            }
            "strict_dynamic_mapping_exception" if self.reason.contains(Fence::FIELD) => {
                format!("; map {} as a long", Fence::FIELD)
            }
            _ => String::new(),
        };
        let (said, lacks_scripts) = (self.to_string(), self.is_about_scripts());
        match self.sorted(store, Some(id)) {
            // The scripts of locks and of guarded documents are stored by the same `prepare`.
            error @ Error::NotPrepared { .. } if lacks_scripts => error,
            Error::NotPrepared { .. } => Error::Store {
                store,
                source: Cause::text(format!("{said}{advice}")),
            },
            error => error,
        }
    }

    /// Whether it says that a script is not stored, or that one that is not stored is forbidden. Names of
    /// the application, of a field or an index, may have any word in them.
    fn is_about_scripts(&self) -> bool {
        match self.kind.as_str() {
            "illegal_argument_exception" => {
                let mut said = ["unable to find script", "cannot execute [inline]"].into_iter();
                !self.reason.starts_with("mapper [") && said.any(|it| self.reason.contains(it))
            }
            "resource_not_found_exception" => self.reason.contains("unable to find script"),
            _ => false,
        }
    }
}

fn innermost(error: &Value) -> &Value {
    let mut cause = error;
    while let Some(next) = cause.get("caused_by") {
        cause = next;
    }
    cause
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP {}", self.status)?;
        if !self.kind.is_empty() {
            write!(f, " {}", self.kind)?;
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

impl StdError for Refusal {}

/// Sorts an error of the client, which had no answer: was the request sent?
pub(crate) fn unanswered(store: &'static str, source: Cause) -> Error {
    if never_connected(&*source) {
        Error::Unreachable { store, source }
    } else {
        Error::Interrupted { store, source }
    }
}

/// The clients hide the type of their HTTP library's error, so its words have to do: it says
/// "Connect" where no connection was made.
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let refused = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused || error.to_string().contains("(Connect)") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sorted(status: u16, kind: &str, reason: &str) -> Error {
        let error = json!({ "type": kind, "reason": reason });
        let body = json!({ "error": { "root_cause": [error], "type": kind, "reason": reason } });
        Refusal::read(status, &body).sorted("Elasticsearch", Some(&Key::new("key").unwrap()))
    }

    #[test]
    fn each_refusal_says_what_can_be_done() {
        let denied = sorted(
            401,
            "security_exception",
            "missing authentication credentials",
        );
        assert!(matches!(denied, Error::Denied { .. }));
        let denied = sorted(403, "security_exception", "action is unauthorized");
        assert!(matches!(denied, Error::Denied { .. }));
        let missing = sorted(404, "index_not_found_exception", "no such index [locks]");
        assert!(matches!(missing, Error::NotPrepared { .. }));
        assert!(missing.to_string().contains("prepare"), "{missing}");
        let strict = sorted(
            400,
            "strict_dynamic_mapping_exception",
            "[1:2] mapping set to strict",
        );
        assert!(matches!(strict, Error::NotPrepared { .. }));
        let unstored = sorted(
            400,
            "illegal_argument_exception",
            "unable to find script [acquire]",
        );
        assert!(matches!(unstored, Error::NotPrepared { .. }));
        let script = sorted(400, "script_exception", "runtime error");
        assert!(matches!(script, Error::Store { .. }));
        let conflict = sorted(409, "version_conflict_engine_exception", "version conflict");
        assert!(matches!(conflict, Error::Contention { .. }));
    }

    /// Nobody is told to prepare an index for locks that is one for orders.
    #[test]
    fn a_refusal_of_a_document_says_what_its_index_lacks() {
        let sorted = |status, kind, reason| {
            let body = json!({ "error": { "type": kind, "reason": reason } });
            let id = Key::new("42").unwrap();
            Refusal::read(status, &body).sorted_for_a_document("Elasticsearch", &id)
        };
        let strict = "strict_dynamic_mapping_exception";
        for (status, kind, reason, advice) in [
            (
                404,
                "index_not_found_exception",
                "no such index [o]",
                "create it",
            ),
            (
                400,
                strict,
                "introduction of [leasehold_fence]",
                "as a long",
            ),
            (400, strict, "introduction of [total]", "[total]"),
            // Not every word with a script in it is one.
            (
                400,
                strict,
                "introduction of [description]",
                "[description]",
            ),
            (
                404,
                "index_not_found_exception",
                "no such index [subscriptions]",
                "create it",
            ),
            (
                400,
                "illegal_argument_exception",
                "mapper [script.inline] cannot be changed",
                "[script.inline]",
            ),
        ] {
            let error = sorted(status, kind, reason);
            let Error::Store { source, .. } = &error else {
                panic!("{error:?}");
            };
            let text = source.to_string();
            assert!(text.contains(reason) && text.contains(advice), "{text}");
            assert_eq!(text.contains("as a long"), reason.contains(Fence::FIELD));
        }
        let forbidden = "cannot execute [inline] scripts";
        let scripts = [
            sorted(400, "illegal_argument_exception", forbidden),
            sorted(
                404,
                "resource_not_found_exception",
                "unable to find script [s]",
            ),
        ];
        for error in scripts {
            assert!(matches!(error, Error::NotPrepared { .. }), "{error:?}");
        }
    }

    #[test]
    fn what_was_not_carried_out_is_no_ambiguity() {
        for (status, kind) in [
            (429, "es_rejected_execution_exception"),
            (429, "circuit_breaking_exception"),
            (403, "cluster_block_exception"),
        ] {
            let error = sorted(status, kind, "later");
            assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
        }
    }

    /// The shard may have gone after it carried the request out.
    #[test]
    fn a_missing_primary_is_ambiguous() {
        for kind in ["unavailable_shards_exception", "cluster_block_exception"] {
            let error = sorted(503, kind, "later");
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
    }

    #[test]
    fn an_answer_of_something_in_between_is_ambiguous() {
        for status in [500, 502, 503, 504] {
            let error = Refusal::foreign(status).sorted("Elasticsearch", None);
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
        let error = Refusal::foreign(400).sorted("Elasticsearch", None);
        assert!(matches!(error, Error::Store { .. }));
    }

    #[test]
    fn the_innermost_cause_is_told() {
        let body = json!({ "error": {
            "root_cause": [{ "type": "illegal_argument_exception", "reason": "failed to execute script" }],
            "caused_by": {
                "type": "script_exception", "reason": "runtime error",
                "caused_by": { "type": "class_cast_exception", "reason": "a text is no number" },
            },
        } });
        let text = Refusal::read(400, &body).to_string();
        assert!(
            text.contains("failed to execute script: a text is no number"),
            "{text}"
        );
    }

    #[test]
    fn a_refused_connection_is_unreachable_and_a_broken_one_ambiguous() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = unanswered("Elasticsearch", refused.into());
        assert!(matches!(error, Error::Unreachable { .. }));
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        let error = unanswered("Elasticsearch", broken.into());
        assert!(error.is_ambiguous());
    }
}

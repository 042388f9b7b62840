//! The errors of a cluster and its client, sorted by what their caller can do about them.

use std::{error::Error as StdError, fmt, io};

use serde_json::Value;

use crate::model::{Cause, Error, Fence, Key};

/// The error with which a cluster refuses a request, or an item of a bulk.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    status: u16,
    kind: String,
    /// The kind of the innermost cause.
    cause: String,
    reason: String,
    index: Option<String>,
    /// Whether something between here and the cluster has answered.
    is_foreign: bool,
}

impl ErrorResponse {
    /// Reads the body of an answer with an error status, or an item of a bulk.
    pub(crate) fn read(status: u16, body: &Value) -> Self {
        let error = &body["error"];
        // The root cause is more precise than the error around it, which may only say that something failed.
        let root = error["root_cause"].get(0).unwrap_or(error);
        let cause = innermost(error);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut reason = text(&root["reason"]);
        let cause_reason = text(&cause["reason"]);
        if !cause_reason.is_empty() && !reason.contains(&cause_reason) {
            reason = format!("{reason}: {cause_reason}");
        }
        if let Some(plain) = error.as_str() {
            plain.clone_into(&mut reason);
        }
        Self {
            status,
            kind: text(&root["type"]),
            cause: text(&cause["type"]),
            reason,
            index: root["index"].as_str().map(str::to_owned),
            is_foreign: false,
        }
    }

    /// An answer that is not JSON. It is not from the cluster but from something in between, such as a proxy.
    pub(crate) fn foreign(status: u16) -> Self {
        Self {
            status,
            kind: String::new(),
            cause: String::new(),
            reason: "the answer is not JSON: something between here and the cluster answered"
                .to_owned(),
            index: None,
            is_foreign: true,
        }
    }

    /// The index that the error names, if it names one.
    pub(crate) fn index(&self) -> Option<&str> {
        self.index.as_deref()
    }

    /// Whether the document is missing, and not its index.
    pub(crate) fn is_missing_document(&self) -> bool {
        self.status == 404 && self.kind == "document_missing_exception"
    }

    /// Whether something that the request names is missing.
    pub(crate) fn is_missing(&self) -> bool {
        self.status == 404 && !self.is_foreign
    }

    /// Whether the request is larger than the cluster, or something in between, takes. Nothing was carried out.
    pub(crate) fn is_too_large(&self) -> bool {
        self.status == 413
    }

    /// Whether the cluster refuses the credentials, or the user lacks a right.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.status, 401 | 403)
    }

    /// Whether the index is missing.
    pub(crate) fn is_missing_index(&self) -> bool {
        self.status == 404 && self.kind == "index_not_found_exception"
    }

    /// Whether the index that was to be created exists already.
    pub(crate) fn is_existing_index(&self) -> bool {
        self.kind == "resource_already_exists_exception"
    }

    /// Classifies the error by what the caller can do about it. In doubt, the request may have been carried out.
    pub(crate) fn classify(self, store: &'static str, key: Option<&Key>) -> Error {
        let kind = self.kind.as_str();
        let unprepared = |problem: String| Error::NotPrepared { store, problem };
        match (self.status, kind) {
            // A disk is full, an operator has blocked writes to the index, or the node has no capacity for the request.
            (403, "cluster_block_exception") | (429, _) => Error::Overloaded {
                store,
                source: self.into(),
            },
            // The node compiles no more scripts for now, and says that a script failed. (A script that is stored has to
            // be compiled too.)
            (400, _) if self.cause == "circuit_breaking_exception" => Error::Overloaded {
                store,
                source: self.into(),
            },
            (401 | 403, _) => Error::Denied {
                store,
                source: self.into(),
            },
            (404, "index_not_found_exception") => unprepared(self.reason),
            (400, "index_closed_exception") => {
                unprepared("the index is closed: open it".to_owned())
            }
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
            // The mapping of the index cannot be changed to the one that locks need.
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
            // A node failed, the primary is gone (perhaps after it carried out the request), a proxy lost its node, or
            // the answer makes no sense. In each case the request may have been carried out.
            // While the primary moves to another node, its shard is missing, closed or not started yet. While a proxy
            // starts, it may know no way to the cluster, and answers 404 itself.
            (200..=399 | 408 | 500.., _)
            | (
                404,
                "shard_not_found_exception"
                | "index_shard_closed_exception"
                | "index_shard_not_started_exception"
                | "illegal_index_shard_state_exception",
            ) => Error::Interrupted {
                store,
                source: self.into(),
            },
            (404, _) if self.is_foreign => Error::Interrupted {
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

/// Errors about the application's documents, whose index `prepare` does not create.
impl ErrorResponse {
    pub(crate) fn classify_for_a_document(self, store: &'static str, id: &Key) -> Error {
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
        match self.classify(store, Some(id)) {
            // The same `prepare` stores the scripts of locks and of guarded documents.
            error @ Error::NotPrepared { .. } if lacks_scripts => error,
            Error::NotPrepared { .. } => Error::Store {
                store,
                source: Cause::text(format!("{said}{advice}")),
            },
            error => error,
        }
    }

    /// Whether the error says that a script is not stored, or that inline scripts are forbidden. The kind and whole
    /// phrases are compared, because the name of a field or an index may contain any word.
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

impl fmt::Display for ErrorResponse {
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

impl StdError for ErrorResponse {}

/// Classifies an error of the client, if no answer came, by whether the request was sent.
pub(crate) fn unanswered(store: &'static str, source: Cause) -> Error {
    if never_connected(&*source) {
        Error::Unreachable { store, source }
    } else {
        Error::Interrupted { store, source }
    }
}

/// Whether no connection was made. The clients hide the error type of their HTTP library, so this searches the text of
/// the error for "(Connect)".
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

    fn classify(status: u16, kind: &str, reason: &str) -> Error {
        let error = json!({ "type": kind, "reason": reason });
        let body = json!({ "error": { "root_cause": [error], "type": kind, "reason": reason } });
        ErrorResponse::read(status, &body)
            .classify("Elasticsearch", Some(&Key::new("key").unwrap()))
    }

    #[test]
    fn each_refusal_says_what_can_be_done() {
        let denied = classify(
            401,
            "security_exception",
            "missing authentication credentials",
        );
        assert!(matches!(denied, Error::Denied { .. }));
        let denied = classify(403, "security_exception", "action is unauthorized");
        assert!(matches!(denied, Error::Denied { .. }));
        let missing = classify(404, "index_not_found_exception", "no such index [locks]");
        assert!(matches!(missing, Error::NotPrepared { .. }));
        assert!(missing.to_string().contains("prepare"), "{missing}");
        let closed = classify(400, "index_closed_exception", "closed");
        assert!(matches!(closed, Error::NotPrepared { .. }), "{closed:?}");
        assert!(closed.to_string().contains("open it"), "{closed}");
        let strict = classify(
            400,
            "strict_dynamic_mapping_exception",
            "[1:2] mapping set to strict",
        );
        assert!(matches!(strict, Error::NotPrepared { .. }));
        let unstored = classify(
            400,
            "illegal_argument_exception",
            "unable to find script [acquire]",
        );
        assert!(matches!(unstored, Error::NotPrepared { .. }));
        let script = classify(400, "script_exception", "runtime error");
        assert!(matches!(script, Error::Store { .. }));
        let conflict = classify(409, "version_conflict_engine_exception", "version conflict");
        assert!(matches!(conflict, Error::Contention { .. }));
    }

    /// The advice must fit an index of the application, which `prepare` does not create.
    #[test]
    fn a_refusal_of_a_document_says_what_its_index_lacks() {
        let classify = |status, kind, reason| {
            let body = json!({ "error": { "type": kind, "reason": reason } });
            let id = Key::new("42").unwrap();
            ErrorResponse::read(status, &body).classify_for_a_document("Elasticsearch", &id)
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
            // A name that contains "script" does not make the error one about scripts.
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
            let error = classify(status, kind, reason);
            let Error::Store { source, .. } = &error else {
                panic!("{error:?}");
            };
            let text = source.to_string();
            assert!(text.contains(reason) && text.contains(advice), "{text}");
            assert_eq!(text.contains("as a long"), reason.contains(Fence::FIELD));
        }
        let forbidden = "cannot execute [inline] scripts";
        let scripts = [
            classify(400, "illegal_argument_exception", forbidden),
            classify(
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
            let error = classify(status, kind, "later");
            assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
            assert!(error.is_retryable() && !error.is_ambiguous());
        }
    }

    /// `UpdateHelper` and `ScriptCache` of both engines make this answer.
    #[test]
    fn a_limit_on_compilations_is_an_overload() {
        let failed = "failed to execute script";
        let body = json!({ "error": {
            "root_cause": [{ "type": "illegal_argument_exception", "reason": failed }],
            "type": "illegal_argument_exception", "reason": failed,
            "caused_by": {
                "type": "general_script_exception", "reason": "Failed to compile inline script [...]",
                "caused_by": {
                    "type": "circuit_breaking_exception",
                    "reason": "[script] Too many dynamic script compilations within, max: [150/5m]",
                },
            },
        } });
        let error = ErrorResponse::read(400, &body).classify("OpenSearch", None);
        assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
        assert!(error.is_retryable() && !error.is_ambiguous());
    }

    /// The primary may have failed after it carried out the request.
    #[test]
    fn a_missing_primary_is_ambiguous() {
        for kind in ["unavailable_shards_exception", "cluster_block_exception"] {
            let error = classify(503, kind, "later");
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
        // Seen while a node of three was killed.
        for kind in ["shard_not_found_exception", "index_shard_closed_exception"] {
            let error = classify(404, kind, "no such shard");
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
    }

    #[test]
    fn an_answer_of_something_in_between_is_ambiguous() {
        for status in [302, 404, 500, 502, 503, 504] {
            let error = ErrorResponse::foreign(status).classify("Elasticsearch", None);
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
        let error = ErrorResponse::foreign(400).classify("Elasticsearch", None);
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
        let text = ErrorResponse::read(400, &body).to_string();
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

//! The errors of a cluster, sorted by what their caller can do about them.

use std::{error::Error as StdError, fmt};

use serde_json::Value;

use super::server::{Server, name, short};
use crate::model::{Cause, Error, Key};

/// The error with which a cluster refuses a request, or an item of a bulk.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    /// Who sent it.
    pub(super) server: Server,
    status: u16,
    kind: String,
    /// The kind of the innermost cause.
    cause: String,
    reason: String,
    /// The index that the error names, if it names one.
    pub(super) index: Option<String>,
    /// Whether something between here and the cluster has answered.
    is_foreign: bool,
}

impl ErrorResponse {
    /// Reads the body of an answer with an error status. A cluster repeats the status in it, and names the error. If the
    /// body does neither, something else has answered.
    pub(crate) fn of_answer(status: u16, body: &Value, server: Server) -> Self {
        let error = &body["error"];
        let mut kinds = [&error["type"], &error["root_cause"][0]["type"]].into_iter();
        let is_named = error.is_string() || kinds.any(Value::is_string);
        if body["status"] == status && is_named {
            Self::read(status, error, server)
        } else {
            Self::foreign(status, server)
        }
    }

    /// Reads the error of an answer, or of one item of an answer.
    pub(crate) fn read(status: u16, error: &Value, server: Server) -> Self {
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
            server,
            status,
            kind: text(&root["type"]),
            cause: text(&cause["type"]),
            reason: short(&reason),
            index: root["index"].as_str().map(str::to_owned),
            is_foreign: false,
        }
    }

    /// An answer that is not from the cluster but from something in between, such as a proxy.
    pub(crate) fn foreign(status: u16, server: Server) -> Self {
        // A cluster may refuse credentials in plain text.
        let reason = if matches!(status, 401 | 403) {
            ""
        } else {
            "the answer is not that of a cluster: something in between, such as a proxy, gave it"
        };
        Self {
            reason: reason.to_owned(),
            is_foreign: true,
            ..Self::read(status, &Value::Null, server)
        }
    }

    /// Whether the document is missing, and not its index.
    pub(crate) fn is_missing_document(&self) -> bool {
        self.status == 404 && self.kind == "document_missing_exception"
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
    pub(crate) fn classify(self, key: Option<&Key>) -> Error {
        let store = self.server.store;
        // The node compiles no more scripts for now, and says that a script failed. (A script that is stored has to be
        // compiled too.)
        let compiles_none = self.status == 400 && self.cause == "circuit_breaking_exception";
        if !compiles_none && let Some(problem) = self.unprepared() {
            return self.server.not_prepared(problem);
        }
        let (status, kind, is_foreign) = (self.status, self.kind.clone(), self.is_foreign);
        let source: Cause = self.into();
        match (status, kind.as_str(), key) {
            _ if compiles_none => Error::Overloaded { store, source },
            // A disk is full, an operator has blocked writes to the index, or the node has no capacity for the request.
            (403, "cluster_block_exception", _) | (429, ..) => Error::Overloaded { store, source },
            (401 | 403, ..) => Error::Denied { store, source },
            (409, _, Some(key)) => Error::Contention { key: key.clone() },
            // A node failed, the primary is gone (perhaps after it carried out the request), a proxy lost its node, or
            // the answer makes no sense. In each case the request may have been carried out.
            // While the primary moves to another node, its shard is missing, closed or not started yet. While a proxy
            // starts, it may know no way to the cluster, and answers 404 itself.
            (200..=399 | 408 | 409 | 500.., ..)
            | (
                404,
                "shard_not_found_exception"
                | "index_shard_closed_exception"
                | "index_shard_not_started_exception"
                | "illegal_index_shard_state_exception",
                _,
            ) => Error::Interrupted { store, source },
            (404, ..) if is_foreign => Error::Interrupted { store, source },
            _ => Error::Store { store, source },
        }
    }

    /// What an operator has to do, if the error says that the index or the cluster is not fit for locks.
    fn unprepared(&self) -> Option<String> {
        let reason = &self.reason;
        let index = self.index.as_deref();
        let index = index.map_or("with the locks".to_owned(), name);
        Some(match (self.status, self.kind.as_str()) {
            (404, "index_not_found_exception") => format!("there is no index {index}"),
            (400, "index_closed_exception") => format!("the index {index} is closed: open it"),
            (400 | 404, _) if reason.contains("unable to find script") => {
                "the scripts of this version are not stored: use stored_scripts() with prepare() too".to_owned()
            }
            (400, "invalid_alias_name_exception") => {
                format!("{}: give the locks another alias", name(reason))
            }
            (
                400,
                "strict_dynamic_mapping_exception"
                | "mapper_parsing_exception"
                | "document_parsing_exception",
            ) => format!("the mapping of the index {index} takes no locks ({reason})"),
            // The mapping of the index cannot be changed to the one that locks need.
            (400, "illegal_argument_exception") if reason.starts_with("mapper [") => format!(
                "the mapping of the index cannot become that of locks: give the locks another alias ({reason})"
            ),
            (400, "illegal_argument_exception") if reason.contains("inline") => {
                "inline scripts are forbidden: use stored_scripts() of the store and of guards, or ?scripts=stored in the \
                 address"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

/// Errors about the application's documents, whose index `prepare` does not create.
#[cfg(feature = "fencing")]
impl ErrorResponse {
    pub(crate) fn classify_for_a_document(self, id: &Key) -> Error {
        let advice = match self.kind.as_str() {
            "index_not_found_exception" => {
                "create the index with its mapping first, what is guarded creates none"
            }
            "strict_dynamic_mapping_exception"
                if self.reason.contains(crate::model::Fence::FIELD) =>
            {
                "map leasehold_fence as a long"
            }
            _ => "",
        };
        let said = if advice.is_empty() {
            self.to_string()
        } else {
            self.server.told(format_args!("{advice} ({})", self.reason))
        };
        // The same `prepare` stores the scripts of locks and of guarded documents.
        let lacks_scripts = self.is_about_scripts();
        match self.classify(Some(id)) {
            Error::NotPrepared { store, .. } if !lacks_scripts => Error::Store {
                store,
                source: Cause::text(said),
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
        let mut said = format!("HTTP {}", self.status);
        if !self.kind.is_empty() {
            said = format!("{said} {}", self.kind);
        }
        if !self.reason.is_empty() {
            said = format!("{said}: {}", self.reason);
        }
        f.write_str(&self.server.told(said))
    }
}

impl StdError for ErrorResponse {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server() -> Server {
        Server {
            store: "Elasticsearch",
            host: "es:9200".into(),
        }
    }

    fn refusal(status: u16, error: Value) -> ErrorResponse {
        let body = json!({ "status": status, "error": error });
        ErrorResponse::of_answer(status, &body, server())
    }

    fn classify(status: u16, kind: &str, reason: &str) -> Error {
        let error = json!({ "type": kind, "reason": reason });
        refusal(
            status,
            json!({ "root_cause": [error], "type": kind, "reason": reason }),
        )
        .classify(Some(&Key::new("key").unwrap()))
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
    #[cfg(feature = "fencing")]
    #[test]
    fn a_refusal_of_a_document_says_what_its_index_lacks() {
        let classify = |status, kind, reason| {
            let id = Key::new("42").unwrap();
            refusal(status, json!({ "type": kind, "reason": reason })).classify_for_a_document(&id)
        };
        let strict = "strict_dynamic_mapping_exception";
        for (status, kind, reason, advice) in [
            (
                404,
                "index_not_found_exception",
                "no such index [o]",
                "create the index",
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
                "create the index",
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
            assert_eq!(
                text.contains("as a long"),
                reason.contains(crate::model::Fence::FIELD)
            );
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
        let error = json!({
            "root_cause": [{ "type": "illegal_argument_exception", "reason": failed }],
            "type": "illegal_argument_exception", "reason": failed,
            "caused_by": {
                "type": "general_script_exception", "reason": "Failed to compile inline script [...]",
                "caused_by": {
                    "type": "circuit_breaking_exception",
                    "reason": "[script] Too many dynamic script compilations within, max: [150/5m]",
                },
            },
        });
        let error = refusal(400, error).classify(None);
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
            let error = ErrorResponse::foreign(status, server()).classify(None);
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
        let error = ErrorResponse::foreign(400, server()).classify(None);
        assert!(matches!(error, Error::Store { .. }));
    }

    #[test]
    fn the_innermost_cause_is_told() {
        let error = json!({
            "root_cause": [{ "type": "illegal_argument_exception", "reason": "failed to execute script" }],
            "caused_by": {
                "type": "script_exception", "reason": "runtime error",
                "caused_by": { "type": "class_cast_exception", "reason": "a text is no number" },
            },
        });
        let text = refusal(400, error).to_string();
        assert!(
            text.contains("failed to execute script: a text is no number"),
            "{text}"
        );
    }

    /// A body that does not repeat the status, or names no error, says nothing about an index or a document.
    #[test]
    fn an_error_of_something_else_is_not_that_of_a_cluster() {
        let missing = json!({ "type": "index_not_found_exception", "reason": "no such index" });
        for body in [
            json!({}),
            json!({ "message": "no route" }),
            json!({ "error": missing }),
            json!({ "error": missing, "status": 200 }),
            json!({ "error": { "reason": "no such index" }, "status": 404 }),
            json!({ "error": 7, "status": 404 }),
        ] {
            let refusal = ErrorResponse::of_answer(404, &body, server());
            assert!(!refusal.is_missing_index(), "{body}");
            let error = refusal.classify(None);
            assert!(
                error.is_ambiguous() && error.is_retryable(),
                "{body}: {error:?}"
            );
        }
        let body = json!({ "error": missing, "status": 404 });
        assert!(ErrorResponse::of_answer(404, &body, server()).is_missing_index());
    }
}

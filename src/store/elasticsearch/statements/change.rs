//! A scripted change of one document, before it becomes a request.

use serde_json::{Value, json};

/// One scripted change of one document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScriptedUpdate {
    /// The id of the document.
    pub(super) id: String,
    pub(super) body: Value,
    pub(super) crowded: bool,
}

impl ScriptedUpdate {
    /// The id of the document that is changed.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The same change, which inserts a missing document: the script then runs on a new, empty one.
    pub(crate) fn or_insert(mut self) -> Self {
        self.body["scripted_upsert"] = json!(true);
        self.body["upsert"] = json!({});
        self
    }

    /// The same change, sent as a `_bulk`, because it must succeed although many clients change the document at the
    /// same time.
    pub(crate) fn in_a_crowd(mut self) -> Self {
        self.crowded = true;
        self
    }

    /// The same change, with this part of the document in the answer.
    pub(crate) fn showing(mut self, source: Value) -> Self {
        self.body["_source"] = source;
        self
    }
}

/// The kind of name that a change may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// Only an alias. An update of a missing index would create the index, with a guessed mapping, but never creates an
    /// alias.
    Alias,
    /// An alias or an index. A missing index is created.
    Any,
}

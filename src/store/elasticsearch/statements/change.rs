//! A scripted change of one document, before it becomes a request.

use serde_json::{Value, json};

/// One scripted change of one document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScriptedUpdate {
    /// The id of the document.
    pub(super) id: String,
    pub(super) body: Value,
}

impl ScriptedUpdate {
    /// What the answer has to be about.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            id: self.id.clone(),
            inserts: self.body["scripted_upsert"] == true,
        }
    }

    /// The same change, which inserts a missing document: the script then runs on a new, empty one.
    pub(crate) fn or_insert(mut self) -> Self {
        self.body["scripted_upsert"] = json!(true);
        self.body["upsert"] = json!({});
        self
    }

    /// The same change, with this part of the document in the answer.
    pub(crate) fn showing(mut self, source: Value) -> Self {
        self.body["_source"] = source;
        self
    }
}

/// What the answer to a change has to be about.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The id of the document.
    pub(crate) id: String,
    /// Whether a missing document is inserted, so that none can be missing.
    pub(crate) inserts: bool,
}

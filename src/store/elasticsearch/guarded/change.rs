//! The request for a guarded document, and whether its fence was accepted: pure functions.

use serde::Serialize;
use serde_json::{Value, json};

use super::super::{
    answer::{ChangeOutcome, Effect},
    scripts::{GUARDED_CLAIM, GUARDED_DELETE, GUARDED_INDEX, GUARDED_UPDATE, Script},
    statements::{ScriptedUpdate, Statements},
};
use crate::model::{Cause, Error, Fence, Key};

impl Statements {
    /// The answer has the whole document, without a filter, because a filter drops empty objects from lists.
    pub(super) fn guarded_claim(&self, id: &Key, fence: Fence) -> ScriptedUpdate {
        self.change_of(id.as_str().to_owned(), &GUARDED_CLAIM, params(fence))
            .showing(json!(true))
    }

    pub(super) fn guarded_index(&self, id: &Key, fence: Fence, document: Value) -> ScriptedUpdate {
        self.guarded_write(&GUARDED_INDEX, id, fence, document)
            .or_insert()
    }

    pub(super) fn guarded_update(&self, id: &Key, fence: Fence, partial: Value) -> ScriptedUpdate {
        self.guarded_write(&GUARDED_UPDATE, id, fence, partial)
    }

    fn guarded_write(
        &self,
        script: &Script,
        id: &Key,
        fence: Fence,
        document: Value,
    ) -> ScriptedUpdate {
        let mut params = params(fence);
        params["document"] = document;
        self.change_of(id.as_str().to_owned(), script, params)
            .showing(json!({ "includes": [Fence::FIELD] }))
    }

    /// The answer does not have the document, for the reason that [`Statements::remove_expired`] gives.
    pub(super) fn guarded_delete(&self, id: &Key, fence: Fence) -> ScriptedUpdate {
        self.change_of(id.as_str().to_owned(), &GUARDED_DELETE, params(fence))
            .showing(json!(false))
    }
}

fn params(fence: Fence) -> Value {
    json!({ "field": Fence::FIELD, "fence": fence.get() })
}

/// The document as a JSON object. Anything else is refused here, because the scripts would fail on it.
pub(super) fn object(document: &impl Serialize, store: &'static str) -> Result<Value, Error> {
    let source = match serde_json::to_value(document) {
        Ok(object @ Value::Object(_)) => return Ok(object),
        Ok(_) => Cause::text("a document is an object with named fields, this one is not"),
        Err(error) => error.into(),
    };
    Err(Error::Store { store, source })
}

impl ChangeOutcome {
    /// The document, or the part of it that was asked for, if the fence was accepted and is recorded.
    pub(super) fn passed(self, fence: Fence) -> Result<Value, Error> {
        let Self {
            effect,
            source,
            server,
        } = self;
        let source = source.unwrap_or_default();
        let seen = &source[Fence::FIELD];
        match (effect, seen.as_i64()) {
            (Effect::Written, Some(seen)) if seen == fence.get() => Ok(source),
            (Effect::None, Some(seen)) if seen > fence.get() => Err(Error::Fenced {
                fence,
                seen: Some(Fence::new(seen)),
            }),
            (Effect::None, None) if !seen.is_null() => Err(Error::Store {
                store: server.store,
                source: Cause::text(server.told(format_args!(
                    "the document has a field {} that is no whole number, and was left alone: remove the field, or guard another index",
                    Fence::FIELD,
                ))),
            }),
            _ => Err(server.malformed("the document does not show the fence")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        server::Server,
        statements::{Body, HttpRequest},
    };
    use super::*;

    const FENCE: Fence = Fence::new(7);

    fn statements() -> Statements {
        Statements::of_documents("orders".into())
    }

    fn id(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn body(request: &HttpRequest) -> &Value {
        match &request.body {
            Body::Lines(lines) => &lines[1],
            other => panic!("{other:?}"),
        }
    }

    fn all(id: &Key, fence: Fence, document: &Value) -> [ScriptedUpdate; 4] {
        let statements = statements();
        [
            statements.guarded_claim(id, fence),
            statements.guarded_index(id, fence, document.clone()),
            statements.guarded_update(id, fence, document.clone()),
            statements.guarded_delete(id, fence),
        ]
    }

    #[test]
    fn what_differs_are_parameters() {
        let one = all(&id("1"), FENCE, &json!({ "total": 1 }));
        let other = all(&id("2"), Fence::new(8), &json!({ "name": "'; return; //" }));
        for (one, other) in one.into_iter().zip(other) {
            let [one, other] = [one, other].map(|change| statements().update(change));
            let (one, other) = (body(&one), body(&other));
            assert_eq!(one["script"]["source"], other["script"]["source"]);
            assert_eq!(one["script"]["params"]["fence"], 7);
            assert_eq!(other["script"]["params"]["fence"], 8);
            assert_eq!(one["script"]["params"]["field"], Fence::FIELD);
        }
    }

    #[test]
    fn only_a_whole_document_may_be_the_first() {
        let upserts = all(&id("1"), FENCE, &json!({})).map(|change| {
            let sent = statements().update(change);
            body(&sent)["scripted_upsert"] == true
        });
        assert_eq!(upserts, [false, true, false, false]);
    }

    /// Without `require_alias` a missing index would be created. So the option is left out only for an index that is
    /// known to exist. An id in the path would be read as a part of the path by a proxy that decodes it.
    #[test]
    fn an_id_is_in_the_body_and_an_alias_is_required_unless_the_index_is_known() {
        for text in ["42", "a/b", "../x", "..", "%2e%2e"] {
            for required in [true, false] {
                let change = statements().guarded_claim(&id(text), FENCE);
                let sent = statements().bulk_at(vec![change], required);
                assert_eq!(sent.path, "orders/_bulk");
                assert!(sent.query.iter().all(|it| it.0 != "refresh"));
                let Body::Lines(lines) = sent.body else {
                    panic!("{text}");
                };
                assert_eq!(lines[0]["update"]["_id"], text);
                assert_eq!(lines[0]["update"]["require_alias"], required);
            }
        }
    }

    #[test]
    fn a_document_is_an_object() {
        assert!(object(&json!({ "total": 1 }), "store").is_ok());
        for nonsense in [json!([{}]), json!(7), json!(null), json!("text")] {
            let error = object(&nonsense, "store").unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
            assert!(!error.is_ambiguous());
        }
    }

    fn passed(effect: Effect, seen: Value) -> Result<Value, Error> {
        let source = json!({ "total": 1, Fence::FIELD: seen });
        let server = Server {
            store: "store",
            host: "es:9200".into(),
        };
        let source = Some(source);
        let outcome = ChangeOutcome {
            effect,
            source,
            server,
        };
        outcome.passed(FENCE)
    }

    #[test]
    fn a_newer_fence_is_told() {
        let document = passed(Effect::Written, json!(7)).unwrap();
        assert_eq!(document["total"], 1);
        let error = passed(Effect::None, json!(8)).unwrap_err();
        let Error::Fenced { fence, seen } = error else {
            panic!("{error:?}");
        };
        assert_eq!((fence, seen), (FENCE, Some(Fence::new(8))));
    }

    #[test]
    fn a_field_of_somebody_else_is_named() {
        for field in [json!("7"), json!({}), json!([8]), json!(8.0), json!(true)] {
            let error = passed(Effect::None, field).unwrap_err();
            let Error::Store { source, .. } = error else {
                panic!("{error:?}");
            };
            assert!(source.to_string().contains(Fence::FIELD), "{source}");
        }
    }

    #[test]
    fn nonsense_is_no_pass() {
        for (effect, seen) in [
            (Effect::Written, json!(6)),
            (Effect::Written, json!(8)),
            (Effect::Written, json!(null)),
            (Effect::Written, json!("7")),
            (Effect::None, json!(7)),
            (Effect::None, json!(6)),
            (Effect::None, json!(null)),
            (Effect::Deleted, json!(7)),
        ] {
            let error = passed(effect, seen).unwrap_err();
            assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        }
    }
}

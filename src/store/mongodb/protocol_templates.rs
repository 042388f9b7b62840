//! The templates of `docs/protocol/mongodb.md`: the commands that every client needs, as extended JSON with holes.
//!
//! A template is made of the statements for one set of values, each of which is replaced by its hole. A test fills it in
//! with other values, by the formulas of the page, and compares it with the statements for those.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::json;

use super::{
    concern::majority,
    prepare,
    statements::{self, Form},
};
use crate::{
    messages::{AcquireRequest, ReleaseRequest, RenewRequest},
    model::{Key, LeaseId},
    store::protocol_pages::{self as fixed, PageStatement, Tree, filled},
};

/// What differs from client to client, and from request to request.
struct Values {
    collection: &'static str,
    key: &'static str,
    lease: &'static str,
    owner: &'static str,
    note: &'static str,
    ttl: Duration,
    retention: Duration,
}

/// The values of which the templates are made. The texts are the names of their holes. Each number occurs nowhere else.
const MARKS: Values = Values {
    collection: "<COLLECTION>",
    key: "<KEY>",
    lease: "11111111-1111-4111-8111-111111111111",
    owner: "<OWNER>",
    note: "<NOTE>",
    ttl: Duration::from_millis(1_234_567),
    retention: Duration::from_secs(98_765),
};

const OTHERS: Values = Values {
    collection: "app-locks",
    key: "$fence \"quoted\"",
    lease: "22222222-2222-4222-8222-222222222222",
    owner: "worker-3",
    note: "nightly run",
    ttl: Duration::from_secs(45),
    retention: Duration::from_secs(3_600),
};

impl Values {
    /// The commands that every client needs, by their names.
    fn commands(&self) -> [(&'static str, Document); 5] {
        let key = Key::new(self.key).unwrap();
        let lease = LeaseId::parse(self.lease).unwrap();
        let request = AcquireRequest::exclusive(key.clone(), lease, self.owner.into(), self.ttl);
        let acquire = statements::acquire(&request.note(self.note), Form::Short, self.retention);
        let renewal = RenewRequest::new(key.clone(), lease, self.ttl);
        let renew = statements::renew(&renewal, self.retention);
        let release = ReleaseRequest::new(key.clone(), lease);
        let release = statements::release(&release, self.retention);
        let id = statements::filter(&key);
        let change = |update: Vec<Document>, upsert: bool| {
            doc! {
                "findAndModify": self.collection,
                "query": id.clone(),
                "update": update,
                "upsert": upsert,
                "new": true,
                "fields": statements::projection(),
                "writeConcern": majority(),
            }
        };
        let indexes = prepare::indexes(self.retention).map(|index| {
            doc! {
                "key": { index.field: 1 },
                "name": index.name,
                "expireAfterSeconds": index.expires_after.as_secs() as i64,
                "partialFilterExpression": index.ours,
            }
        });
        [
            (
                "prepare",
                doc! { "createIndexes": self.collection, "indexes": indexes.to_vec() },
            ),
            ("acquire", change(acquire, true)),
            ("renew", change(renew, false)),
            (
                "release",
                doc! {
                    "update": self.collection,
                    "updates": [{ "q": id.clone(), "u": release }],
                    "writeConcern": majority(),
                },
            ),
            (
                "inspect",
                doc! {
                    "find": self.collection,
                    "filter": id.clone(),
                    "projection": statements::projection(),
                },
            ),
        ]
    }

    /// The values of the holes, by the formulas of the page.
    fn holes(&self) -> [(&'static str, Bson); 10] {
        let millis = |time: Duration| time.as_millis() as i64;
        let (ttl, retention) = (millis(self.ttl), millis(self.retention));
        // The greatest power of ten that is at most a 24th of the retention, at most 1,000,000.
        let digits = (0..=6)
            .rev()
            .find(|digits| 10_i64.pow(*digits) <= retention / 24);
        let digits = digits.unwrap_or(0);
        let cleanup =
            |later: i64| DateTime::from_millis(later + retention + 10_i64.pow(digits) + 2);
        [
            ("COLLECTION", self.collection.into()),
            ("KEY", self.key.into()),
            ("LEASE", self.lease.into()),
            ("OWNER", self.owner.into()),
            ("NOTE", self.note.into()),
            ("TTL_MS", ttl.into()),
            ("KEPT_AFTER_TTL", cleanup(ttl).into()),
            ("KEPT", cleanup(0).into()),
            ("STEP_DIGITS", (-i64::from(digits)).into()),
            ("RETENTION_S", (retention / 1_000).into()),
        ]
    }
}

/// The value as extended JSON, with each value that has a hole replaced by it.
pub(super) fn tree(value: &Bson, holes: &[(&str, Bson)]) -> Tree {
    if let Some((hole, _)) = holes.iter().find(|(_, it)| it == value) {
        return Tree::Leaf(format!("\"<{hole}>\""));
    }
    let quoted = |text: &str| json!(text).to_string();
    match value {
        Bson::Document(document) => {
            let fields = document.iter();
            let fields = fields.map(|(name, value)| (quoted(name), tree(value, holes)));
            Tree::Fields(fields.collect())
        }
        Bson::Array(values) => Tree::List(values.iter().map(|value| tree(value, holes)).collect()),
        _ => Tree::Leaf(extended(value)),
    }
}

/// The value on one line, as extended JSON that keeps the types of numbers.
fn extended(value: &Bson) -> String {
    match value {
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => format!("{{ \"$numberLong\": \"{number}\" }}"),
        Bson::DateTime(date) => {
            let millis = date.timestamp_millis();
            format!("{{ \"$date\": {{ \"$numberLong\": \"{millis}\" }} }}")
        }
        Bson::ObjectId(id) => format!("{{ \"$oid\": \"{id}\" }}"),
        Bson::MinKey => "{ \"$minKey\": 1 }".to_owned(),
        Bson::String(_) | Bson::Boolean(_) | Bson::Null => {
            value.clone().into_relaxed_extjson().to_string()
        }
        other => panic!("{other:?} has no form yet"),
    }
}

pub(super) fn templates() -> Vec<PageStatement> {
    let holes = MARKS.holes();
    let commands = MARKS.commands().into_iter();
    let template = |(name, command): (&str, Document)| {
        PageStatement::new(name, tree(&command.into(), &holes).written(0))
    };
    commands.map(template).collect()
}

#[test]
fn the_page_has_the_templates() {
    fixed::compare("mongodb.md", "template", "json", &templates());
}

#[test]
fn a_template_that_is_filled_in_is_what_is_sent() {
    let values = OTHERS
        .holes()
        .map(|(hole, value)| (hole, value.into_canonical_extjson()));
    for (template, (name, sent)) in templates().iter().zip(OTHERS.commands()) {
        let text = filled(template.text(), &values);
        let read: Document = serde_json::from_str(&text).unwrap();
        assert_eq!(read, sent, "{name}");
    }
}

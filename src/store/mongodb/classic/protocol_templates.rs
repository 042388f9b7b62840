//! The templates of `docs/protocol/mongodb-classic.md`, as those of the [other
//! dialect](super::super::protocol_templates).

use std::time::Duration;

use chrono::DateTime;
use mongodb::bson::{self, Bson, Document, RawDocumentBuf, doc, oid::ObjectId};

use super::{
    form::{stamped_grant, stamped_release, written},
    look, unchanged,
};
use crate::{
    messages::AcquireRequest,
    model::{Fence, Holder, Key, LeaseId, LockRecord, Mode},
    store::{
        mongodb::{concern::majority, protocol_templates::tree},
        protocol_pages::{self as fixed, PageStatement, filled},
    },
};

/// What differs from client to client, and from request to request.
struct Values {
    collection: &'static str,
    key: &'static str,
    lease: &'static str,
    owner: &'static str,
    note: &'static str,
    ttl: Duration,
    /// The version of the document that a look has shown.
    seen: ObjectId,
    /// The fence and the time of the decision, the latter in milliseconds.
    decided: (i64, i64),
    /// In the place of the state that was decided.
    state: &'static str,
}

/// The values of which the templates are made. The texts are the names of their holes. Each number occurs nowhere else.
const MARKS: Values = Values {
    collection: "<COLLECTION>",
    key: "<KEY>",
    lease: "11111111-1111-4111-8111-111111111111",
    owner: "<OWNER>",
    note: "<NOTE>",
    ttl: Duration::from_millis(1_234_567),
    seen: ObjectId::from_bytes([1; 12]),
    decided: (7_654_321, 9_876_543),
    state: "<STATE>",
};

const OTHERS: Values = Values {
    collection: "app-locks",
    key: "$fence \"quoted\"",
    lease: "22222222-2222-4222-8222-222222222222",
    owner: "worker-3",
    note: "nightly run",
    ttl: Duration::from_secs(45),
    seen: ObjectId::from_bytes([2; 12]),
    decided: (8, 1_700_000_000_000),
    state: "a state",
};

/// Stands for each new version in the commands.
const NEW_VERSION: ObjectId = ObjectId::from_bytes([3; 12]);

impl Values {
    /// The commands that every client needs, by their names.
    fn commands(&self) -> [(&'static str, Document); 6] {
        let key = Key::new(self.key).unwrap();
        let lease = LeaseId::parse(self.lease).unwrap();
        let find_and_modify = |(filter, update): (Document, Document), upsert: bool| {
            doc! {
                "findAndModify": self.collection,
                "query": filter,
                "update": update,
                "upsert": upsert,
                "new": true,
                "writeConcern": majority(),
            }
        };
        let update = |(filter, update): (Document, Document)| {
            doc! {
                "update": self.collection,
                "updates": [{ "q": filter, "u": update }],
                "writeConcern": majority(),
            }
        };
        let id = Bson::from(self.key);
        let request = AcquireRequest::exclusive(key.clone(), lease, self.owner.into(), self.ttl);
        let grant = stamped_grant(&request.note(self.note));
        let release = stamped_release(&key, lease);
        let decided = |holders: Vec<Holder>| {
            let (fence, at) = self.decided;
            let at = DateTime::from_timestamp_millis(at).unwrap();
            let record = LockRecord::new(key.clone(), Fence::new(fence), holders, at);
            let before = RawDocumentBuf::try_from(&doc! {}).unwrap();
            (unchanged(&id, self.seen), written(&record, &before))
        };
        let at = DateTime::from_timestamp_millis(self.decided.1).unwrap();
        let mut shared =
            Holder::exclusive(lease, self.owner.into(), Fence::new(self.decided.0), at, at);
        shared.mode = Mode::Shared;
        let mut any = decided(vec![shared]);
        let set = any.1.get_document_mut("$set").unwrap();
        set.insert("state", self.state);
        [
            ("look", find_and_modify(look(&id, true), true)),
            ("look again", find_and_modify(look(&id, false), false)),
            ("write", update(any)),
            ("write free", update(decided(Vec::new()))),
            ("acquire free", find_and_modify(grant, false)),
            ("release alone", update(release)),
        ]
        .map(|(name, command)| (name, with_one_version(command, self.seen)))
    }

    fn holes(&self) -> [(&'static str, Bson); 11] {
        let (fence, at) = self.decided;
        [
            ("COLLECTION", self.collection.into()),
            ("KEY", self.key.into()),
            ("LEASE", self.lease.into()),
            ("OWNER", self.owner.into()),
            ("NOTE", self.note.into()),
            ("TTL_MS", (self.ttl.as_millis() as i64).into()),
            ("SEEN_VERSION", self.seen.into()),
            ("NEW_VERSION", NEW_VERSION.into()),
            ("DECIDED_FENCE", fence.into()),
            ("DECIDED_AT", bson::DateTime::from_millis(at).into()),
            ("STATE", self.state.into()),
        ]
    }
}

/// The command with [`NEW_VERSION`] in the place of each version that is not this one.
fn with_one_version(command: Document, seen: ObjectId) -> Document {
    fn changed(value: Bson, seen: ObjectId) -> Bson {
        match value {
            Bson::ObjectId(id) if id != seen => NEW_VERSION.into(),
            Bson::Document(fields) => with_one_version(fields, seen).into(),
            Bson::Array(values) => {
                let values = values.into_iter();
                Bson::Array(values.map(|value| changed(value, seen)).collect())
            }
            other => other,
        }
    }
    let fields = command.into_iter();
    fields
        .map(|(name, value)| (name, changed(value, seen)))
        .collect()
}

fn templates() -> Vec<PageStatement> {
    let holes = MARKS.holes();
    let commands = MARKS.commands().into_iter();
    let template = |(name, command): (&str, Document)| {
        PageStatement::new(name, tree(&command.into(), &holes).written(0))
    };
    commands.map(template).collect()
}

#[test]
fn the_page_has_the_templates() {
    fixed::compare("mongodb-classic.md", "template", "json", &templates());
}

#[test]
fn a_template_that_is_filled_in_is_what_is_sent() {
    let values = OTHERS
        .holes()
        .map(|(hole, value)| (hole, value.into_canonical_extjson()));
    for (template, (name, sent)) in templates().iter().zip(OTHERS.commands()) {
        let read: Document = serde_json::from_str(&filled(template.text(), &values)).unwrap();
        assert_eq!(read, sent, "{name}");
    }
}

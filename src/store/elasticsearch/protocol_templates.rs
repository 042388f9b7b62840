//! The templates of `docs/protocol/elasticsearch.md`: the requests that every client needs, as JSON with holes, and the
//! scripts.
//!
//! A template is made of the statements for one set of values, each of which is replaced by its hole. A test fills it in
//! with other values, and compares it with the statements for those.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    protocol_pages::tree,
    scripts::{SCRIPTS, Script},
    statements::{Body, HASHED, HttpRequest, Method, ScriptedUpdate, Statements, id},
};
use crate::{
    messages::{AcquireRequest, ReleaseRequest, RenewRequest},
    model::{Key, LeaseId},
    store::protocol_pages::{self as fixed, PageStatement, filled},
};

/// What differs from client to client, and from request to request.
struct Values {
    alias: &'static str,
    key: &'static str,
    lease: &'static str,
    owner: &'static str,
    note: &'static str,
    ttl: Duration,
}

/// The values of which the templates are made. Each occurs nowhere else.
const MARKS: Values = Values {
    alias: "alias",
    // Its id is another text.
    key: "limiter:key",
    lease: "11111111-1111-4111-8111-111111111111",
    owner: "the owner",
    note: "the note",
    ttl: Duration::from_millis(1_234_567),
};

const OTHERS: [Values; 2] = [
    Values {
        alias: "app-locks",
        key: "report \"42\"",
        lease: "22222222-2222-4222-8222-222222222222",
        owner: "worker-3",
        note: "nightly run",
        ttl: Duration::from_secs(45),
    },
    Values {
        key: "limiter:",
        ..MARKS
    },
];

impl Values {
    /// The requests that every client needs, by their names.
    fn requests(&self) -> [(&'static str, HttpRequest); 5] {
        let key = Key::new(self.key).unwrap();
        let lease = LeaseId::parse(self.lease).unwrap();
        let statements = Statements::of_locks(self.alias.to_owned());
        // Each goes as a `_bulk` of one, so that all of them have the same form, and no id is in a path.
        let one = |change: ScriptedUpdate| statements.bulk(vec![change]);
        let acquire = AcquireRequest::exclusive(key.clone(), lease, self.owner.into(), self.ttl);
        let renewal = RenewRequest::new(key.clone(), lease, self.ttl);
        let release = ReleaseRequest::new(key.clone(), lease);
        [
            ("index", statements.get_index()),
            ("acquire", one(statements.acquire(&acquire.note(self.note)))),
            ("renew", one(statements.renew(&renewal))),
            ("release", one(statements.release(&release))),
            ("inspect", one(statements.inspect(&key))),
        ]
    }

    /// The values of the holes, by the formulas of the page.
    fn holes(&self) -> Vec<(&'static str, Value)> {
        let id = match self.key.strip_prefix("limiter:") {
            Some(_) => format!("limiter::{}", Uuid::new_v5(&HASHED, self.key.as_bytes())),
            None => self.key.to_owned(),
        };
        let mut holes = vec![
            ("ID", json!(id)),
            ("KEY", json!(self.key)),
            ("LEASE", json!(self.lease)),
            ("OWNER", json!(self.owner)),
            ("NOTE", json!(self.note)),
            ("TTL_MS", json!(self.ttl.as_millis() as i64)),
        ];
        for (hole, name) in [
            ("SCRIPT_ACQUIRE", "acquire"),
            ("SCRIPT_RENEW", "renew"),
            ("SCRIPT_RELEASE", "release"),
            ("SCRIPT_INSPECT", "inspect"),
        ] {
            holes.push((hole, json!(script(name).source)));
        }
        holes
    }
}

fn script(name: &str) -> &'static Script {
    SCRIPTS.iter().find(|script| script.name == name).unwrap()
}

/// The request as one JSON value.
fn request(request: HttpRequest) -> Value {
    let query = request.query.iter();
    let query: Vec<_> = query
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut written = json!({
        "method": match request.method {
            Method::Get => "GET",
            Method::Put => "PUT",
            Method::Post => "POST",
        },
        "path": format!("/{}?{}", request.path, query.join("&")),
    });
    match request.body {
        Body::None => {}
        Body::Json(body) => written["body"] = body,
        Body::Lines(lines) => written["lines"] = lines.into(),
    }
    written
}

/// The value with each value that has a hole replaced by it.
fn with_holes(value: Value, holes: &[(&str, Value)]) -> Value {
    if let Some((hole, _)) = holes.iter().find(|(_, it)| *it == value) {
        return json!(format!("<{hole}>"));
    }
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name, with_holes(value, holes)));
            Value::Object(fields.collect())
        }
        Value::Array(values) => {
            let values = values.into_iter();
            values.map(|value| with_holes(value, holes)).collect()
        }
        other => other,
    }
}

fn templates() -> Vec<PageStatement> {
    let holes = MARKS.holes();
    let template = |(name, sent): (&str, HttpRequest)| {
        let mut template = with_holes(request(sent), &holes);
        let path = template["path"].as_str().unwrap();
        template["path"] = json!(path.replace(MARKS.alias, "<ALIAS>"));
        PageStatement::new(name, tree(&template).written(0))
    };
    MARKS.requests().into_iter().map(template).collect()
}

/// Which files each script is made of.
fn parts() -> PageStatement {
    let parts = SCRIPTS.iter().filter(|script| !is_guard(script));
    let lines = parts.map(|script| {
        let files = script.files.iter();
        let files: Vec<_> = files.map(|(name, _)| json!(name).to_string()).collect();
        format!("  {}: [{}]", json!(script.name), files.join(", "))
    });
    let lines: Vec<_> = lines.collect();
    PageStatement::new("parts", format!("{{\n{}\n}}", lines.join(",\n")))
}

/// Whether a script is for the documents of an application, which are no part of the protocol.
fn is_guard(script: &Script) -> bool {
    script.name.starts_with("guarded_")
}

/// The files of all scripts, each of them once.
fn files() -> Vec<PageStatement> {
    let scripts = SCRIPTS.iter().filter(|script| !is_guard(script));
    let mut files: Vec<(&str, &str)> = Vec::new();
    for file in scripts.flat_map(|script| script.files) {
        if !files.contains(file) {
            files.push(*file);
        }
    }
    let files = files.into_iter();
    files
        .map(|(name, text)| PageStatement::new(name, text.trim_end().to_owned()))
        .collect()
}

#[test]
fn the_page_has_the_templates_and_the_scripts() {
    fixed::compare("elasticsearch.md", "template", "json", &templates());
    fixed::compare("elasticsearch.md", "scripts", "json", &[parts()]);
    fixed::compare("elasticsearch.md", "script", "painless", &files());
}

#[test]
fn a_template_that_is_filled_in_is_what_is_sent() {
    for values in OTHERS {
        for (template, (name, sent)) in templates().iter().zip(values.requests()) {
            let text = filled(template.text(), &values.holes());
            let alias = id_in_path(values.alias);
            let read: Value = serde_json::from_str(&text.replace("<ALIAS>", &alias)).unwrap();
            assert_eq!(read, request(sent), "{name}");
        }
    }
}

/// A name as a segment of a path: percent-encoded.
fn id_in_path(name: &str) -> String {
    name.replace('-', "%2D")
}

#[test]
fn the_page_has_the_formula_of_an_id() {
    for key in [MARKS.key, "limiter:", "report:42", "limiters"] {
        let values = Values { key, ..MARKS };
        assert_eq!(values.holes()[0].1, json!(id(&Key::new(key).unwrap())));
    }
}

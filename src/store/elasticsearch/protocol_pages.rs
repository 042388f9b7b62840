//! The statements of `docs/protocol/elasticsearch.md`, as HTTP.
//!
//! In a plain snapshot of the requests, each request would contain its script, on one line with escaped line ends. So
//! the page has a hole in the place of each script.

use std::{num::NonZeroU16, time::Duration};

use serde_json::{Value, json};

use super::{
    scripts::SCRIPTS,
    statements::{Body, HttpRequest, Method, ScriptedUpdate, Statements},
};
use crate::{
    messages::{AcquireRequest, Turn},
    model::{Key, LeaseId},
    store::protocol_pages::{self as fixed, PageStatement, Tree},
};

/// The entries are sorted by name. Whether a map keeps the order in which it was filled depends on a feature that
/// another crate may switch on.
pub(super) fn tree(value: &Value) -> Tree {
    match value {
        Value::Array(values) => Tree::List(values.iter().map(tree).collect()),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (json!(name).to_string(), tree(value)));
            Tree::Fields(fields.collect())
        }
        other => Tree::Leaf(other.to_string()),
    }
}

/// The requests have a hole in the place of each script.
fn without_sources(value: &mut Value) {
    let own = |source: &str| SCRIPTS.iter().find(|script| script.source == source);
    match value {
        Value::Object(fields) => {
            let name = fields.get("source").and_then(Value::as_str).and_then(own);
            if let Some(script) = name {
                fields["source"] = json!(format!("<SCRIPT_{}>", script.name.to_uppercase()));
            }
            fields.values_mut().for_each(without_sources);
        }
        Value::Array(values) => values.iter_mut().for_each(without_sources),
        _ => {}
    }
}

fn written(request: HttpRequest) -> String {
    let method = match request.method {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Post => "POST",
    };
    let query: Vec<_> = request
        .query
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let query = if query.is_empty() {
        String::new()
    } else {
        format!("?{}", query.join("&"))
    };
    let line = format!("{method} /{}{query}", request.path);
    match request.body {
        Body::None => line,
        Body::Json(mut body) => {
            without_sources(&mut body);
            format!("{line}\n\n{}", tree(&body).written(0))
        }
        Body::Lines(values) => {
            let lines = values.into_iter().map(|mut value| {
                without_sources(&mut value);
                value.sort_all_objects();
                value.to_string()
            });
            let lines: Vec<_> = lines.collect();
            format!(
                "{line}\nContent-Type: application/x-ndjson\n\n{}",
                lines.join("\n")
            )
        }
    }
}

fn waiter() -> LeaseId {
    LeaseId::parse("44444444-4444-4444-8444-444444444444").unwrap()
}

/// An acquire by a process that waits.
fn in_turn() -> AcquireRequest {
    let turn = Turn::in_turn(waiter(), Duration::from_secs(3));
    AcquireRequest::exclusive(fixed::key(), fixed::lease(), "worker-3".into(), fixed::TTL)
        .turn(turn)
}

fn requests() -> Vec<PageStatement> {
    let statements = Statements::of_locks("app-locks".into());
    let mut requests = Vec::new();
    let mut add = |name: &str, request: HttpRequest| {
        requests.push(PageStatement::new(name, written(request)))
    };
    let one = |change: ScriptedUpdate| statements.update(change);
    for (name, request) in fixed::acquires() {
        add(name, one(statements.acquire(&request)));
    }
    add(
        "acquire in turn",
        one(statements.acquire_in_full(&in_turn())),
    );
    let tick = fixed::acquire_for_a_tick();
    add("acquire tick", one(statements.acquire(&tick)));
    let behind = statements.acquire_in_full(&fixed::acquires()[0].1);
    add("acquire again", one(behind));
    let several = fixed::acquires()[0].1.clone();
    let several = several.fences(NonZeroU16::new(100).unwrap());
    add("acquire fences", one(statements.acquire(&several)));
    add("leave", one(statements.leave(&fixed::key(), waiter())));
    let renewal = statements.renew(&fixed::renewal());
    add("renew", one(renewal.clone()));
    add("renew many", statements.bulk(vec![renewal]));
    add("release", one(statements.release(&fixed::release())));
    let held_on = fixed::release_with_a_minimum_hold();
    add("release min hold", one(statements.release(&held_on)));
    let done = fixed::release_with_a_tick();
    add("release done", one(statements.release(&done)));
    for (name, request) in fixed::conversions() {
        add(name, one(statements.convert(&request)));
    }
    let key = fixed::key();
    add("evict", one(statements.evict(&key)));
    add("remove expired", one(statements.remove_expired(&key)));
    add("inspect", one(statements.inspect(&key)));
    let keys = [&fixed::key(), &Key::new("report:43").unwrap()];
    add("look", statements.get_many(&keys));
    add("refresh", statements.refresh());
    add("list", statements.search(&fixed::page()));
    for (name, request) in fixed::permits() {
        add(name, one(statements.permit(&request)));
    }
    for (name, request) in fixed::given_back() {
        add(name, one(statements.give_back(&request)));
    }
    let retention = fixed::RETENTION + super::CLOCK_MARGIN;
    add("look over", statements.look_over(retention, None));
    let purge = statements.purge("report:42".to_owned(), retention);
    add("purge", statements.bulk(vec![purge]));
    add("index", statements.get_index());
    let [alias, write_alias] = statements.aliases();
    add("alias", statements.describe(alias));
    add("write alias", statements.describe(write_alias));
    add("create", statements.create_index(None));
    add(
        "mapping",
        statements.put_mapping(&statements.index(), &Value::Null),
    );
    let put = statements.put_aliases(&statements.index(), &statements.aliases());
    add("put aliases", put);
    requests
}

#[test]
fn the_document_has_what_is_sent() {
    fixed::compare("elasticsearch.md", "request", "http", &requests());
}

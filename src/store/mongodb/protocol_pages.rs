//! The statements of `docs/protocol/mongodb.md`, as the shell takes them.
//!
//! A plain snapshot of the statements would be JSON. JSON cannot write a long or a date as the shell does, and it would
//! repeat the expressions that many statements contain. The page has each of those expressions once, under a name.

use std::num::NonZeroU16;

use mongodb::bson::{Bson, Document, doc};

use super::{
    bulk::statement,
    concern::majority,
    prepare,
    statements::{self, Form},
};
use crate::store::protocol_pages::{self as fixed, PageStatement, Tree};

/// The expressions that have a name on the page.
fn parts() -> Vec<(&'static str, Bson)> {
    let parts = statements::parts(&fixed::key(), fixed::TTL, fixed::RETENTION);
    let parts = parts.into_iter().map(|(name, part)| (name, part.into()));
    let renewal = statements::renew(&fixed::renewal(), fixed::RETENTION);
    let others = [
        ("durable", majority().into()),
        ("renewal", Bson::from(renewal)),
    ];
    parts.chain(others).collect()
}

/// A value in which these expressions are replaced by their names.
fn tree(value: &Bson, parts: &[(&str, Bson)]) -> Tree {
    if let Some((name, _)) = parts.iter().find(|(_, part)| part == value) {
        return Tree::Leaf((*name).to_owned());
    }
    match value {
        Bson::Document(document) => fields(document, parts),
        Bson::Array(values) => Tree::List(values.iter().map(|value| tree(value, parts)).collect()),
        Bson::String(text) => Tree::Leaf(quoted(text)),
        // A number without its type is a double, or an int in a newer shell.
        Bson::Int64(number) => Tree::Leaf(match i32::try_from(*number) {
            Ok(number) => format!("NumberLong({number})"),
            Err(_) => format!("NumberLong(\"{number}\")"),
        }),
        Bson::Int32(_) | Bson::Boolean(_) | Bson::Null => Tree::Leaf(value.to_string()),
        Bson::MinKey => Tree::Leaf("MinKey()".into()),
        Bson::Double(number) if number.is_nan() => Tree::Leaf("NaN".into()),
        Bson::DateTime(date) => Tree::Leaf(format!("new Date({})", date.timestamp_millis())),
        other => panic!("{other:?} has no form yet"),
    }
}

fn fields(document: &Document, parts: &[(&str, Bson)]) -> Tree {
    let field = |(name, value): (&String, &Bson)| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_$".contains(letter);
        let name = if name.chars().all(plain) {
            name.clone()
        } else {
            quoted(name)
        };
        (name, tree(value, parts))
    };
    Tree::Fields(document.iter().map(field).collect())
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// A call of the shell with these arguments.
fn call(function: &str, arguments: &[Bson]) -> String {
    let parts = parts();
    let arguments = arguments
        .iter()
        .map(|argument| tree(argument, &parts).written(0));
    format!("{function}({})", arguments.collect::<Vec<_>>().join(", "))
}

fn find_and_modify(
    query: Document,
    update: Vec<Document>,
    upsert: bool,
    fields: Document,
) -> String {
    let mut arguments = doc! { "query": query, "update": update };
    if upsert {
        arguments.insert("upsert", true);
    }
    arguments.insert("new", true);
    if !fields.is_empty() {
        arguments.insert("fields", fields);
    }
    arguments.insert("writeConcern", majority());
    call("db.locks.findAndModify", &[arguments.into()])
}

fn change(update: Vec<Document>, upsert: bool) -> String {
    let key = statements::filter(&fixed::key());
    find_and_modify(key, update, upsert, statements::projection())
}

fn update(update: Vec<Document>) -> String {
    update_with(update, majority())
}

fn update_with(update: Vec<Document>, concern: Document) -> String {
    let options = doc! { "writeConcern": concern };
    let key = statements::filter(&fixed::key());
    call(
        "db.locks.updateOne",
        &[key.into(), update.into(), options.into()],
    )
}

/// The changes of many keys, and the read of the documents after them.
fn batch(statements: Vec<Document>) -> String {
    batch_with(statements, majority())
}

fn batch_with(statements: Vec<Document>, concern: Document) -> String {
    let command = doc! {
        "update": "locks",
        "updates": statements,
        "ordered": false,
        "writeConcern": concern,
    };
    let keys = doc! { "_id": { "$in": [fixed::key().as_str()] } };
    let look = call(
        "db.locks.find",
        &[keys.into(), statements::projection().into()],
    );
    format!("{}\n\n{look}", call("db.runCommand", &[command.into()]))
}

fn delete(function: &str, filter: Document) -> String {
    let options = doc! { "writeConcern": majority() };
    call(function, &[filter.into(), options.into()])
}

fn list() -> String {
    let page = fixed::page();
    let found = [
        statements::page(&page).into(),
        statements::projection().into(),
    ];
    let found = call("db.locks.find", &found);
    format!("{found}.sort({{ _id: 1 }}).limit({})", page.limit)
}

fn indexes() -> String {
    let created = prepare::indexes(fixed::RETENTION).map(|index| {
        let keys = doc! { index.field: 1 };
        let options = doc! {
            "name": index.name,
            "expireAfterSeconds": index.expires_after.as_secs() as i64,
            "partialFilterExpression": index.ours,
        };
        call("db.locks.createIndex", &[keys.into(), options.into()])
    });
    created.join("\n\n")
}

fn statements() -> Vec<PageStatement> {
    let key = fixed::key();
    let mut statements = Vec::new();
    let mut add = |name: &str, text: String| {
        statements.push(PageStatement::new(name, text));
    };
    let parts = parts();
    for (number, (name, part)) in parts.iter().enumerate() {
        let written = tree(part, &parts[..number]).written(0);
        add(
            &format!("const {name}"),
            format!("const {name} = {written}"),
        );
    }
    for (name, request) in fixed::acquires() {
        let acquire = statements::acquire(&request, Form::Short, fixed::RETENTION);
        add(name, change(acquire, true));
    }
    let [(_, first), ..] = fixed::acquires();
    let several = first.clone().fences(NonZeroU16::new(1_000).unwrap());
    let several = statements::acquire(&several, Form::Short, fixed::RETENTION);
    add("acquire fences", change(several, true));
    let together = statements::acquire_together(&first, &[&first], fixed::RETENTION);
    add("acquire together", batch(vec![together]));
    let tick = statements::acquire(&fixed::acquire_for_a_tick(), Form::Short, fixed::RETENTION);
    add("acquire tick", change(tick, true));
    let in_turn = statements::acquire(&fixed::in_turn(), Form::Full, fixed::RETENTION);
    add("acquire in turn", change(in_turn, true));
    let left = statements::leave(fixed::waiter());
    add("leave", update_with(left, doc! { "w": 1 }));
    let renewal = statements::renew(&fixed::renewal(), fixed::RETENTION);
    add("renew", change(renewal.clone(), false));
    add("renew many", batch(vec![statement(&key, renewal, false)]));
    let (renewal, retention) = (fixed::renewal(), fixed::RETENTION);
    let together = statements::renew_together(&[&renewal], renewal.ttl, retention);
    add("renew together", batch(vec![together]));
    let release = fixed::release();
    let undoable = || doc! { "w": 1 };
    let sole = statements::release_sole(&release);
    add("release alone", update_with(sole, undoable()));
    add(
        "release",
        update(statements::release(&release, fixed::RETENTION)),
    );
    let held_on = fixed::release_with_a_minimum_hold();
    add(
        "release min hold",
        update(statements::release(&held_on, fixed::RETENTION)),
    );
    let done = fixed::release_with_a_tick();
    add(
        "release done",
        change(statements::release(&done, fixed::RETENTION), false),
    );
    let together = statements::release_together(&[&release]);
    add("release together", batch_with(vec![together], undoable()));
    let one_of_many = statements::release_or_fail(&release.clone().likely_sole(), fixed::RETENTION);
    add(
        "release many",
        batch(vec![statement(&key, one_of_many, true)]),
    );
    for (name, request) in fixed::conversions() {
        add(
            name,
            change(statements::convert(&request, fixed::RETENTION), false),
        );
    }
    add("evict", change(statements::evict(fixed::RETENTION), false));
    let expired = statements::expired(&key);
    add("remove expired", delete("db.locks.deleteOne", expired));
    let shown = [
        statements::filter(&key).into(),
        statements::projection().into(),
    ];
    add("inspect", call("db.locks.findOne", &shown));
    let look = [
        statements::of_keys(vec![key.as_str()]).into(),
        statements::projection().into(),
    ];
    add("look", call("db.locks.find", &look));
    add("list", list());
    for (name, request) in fixed::permits() {
        let (id, fields) = (
            statements::limiter_filter(&request.key, &request.quota),
            statements::projection(),
        );
        add(
            name,
            find_and_modify(id, statements::permit(&request), true, fields),
        );
    }
    for (name, request) in fixed::given_back() {
        let arguments = [
            statements::limiter_filter(&request.key, &request.quota).into(),
            statements::give_back(&request).into(),
            doc! { "writeConcern": majority() }.into(),
        ];
        add(name, call("db.locks.updateOne", &arguments));
    }
    let dead = delete(
        "db.locks.deleteMany",
        statements::expired_since(fixed::RETENTION),
    );
    let over = delete(
        "db.locks.deleteMany",
        statements::over_since(fixed::RETENTION),
    );
    add("purge", format!("{dead}\n\n{over}"));
    add("prepare", indexes());
    statements
}

#[test]
fn the_document_has_what_is_sent() {
    fixed::compare("mongodb.md", "mongodb", "js", &statements());
}

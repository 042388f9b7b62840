//! Tests of the requests, without a server.

use std::collections::BTreeSet;

use super::{super::scripts::SCRIPTS, *};
use crate::{
    messages::{Filter, ListRequest, PermitRequest},
    model::{LeaseId, MAX_KEY_BYTES, MAX_NOTE_BYTES, PermitId, Quota},
    store::hostile_texts::Texts,
};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn ask(text: &str) -> AcquireRequest {
    let ttl = Duration::from_secs(1);
    AcquireRequest::exclusive(key(text), LeaseId::random(), text.into(), ttl)
}

/// A request of a process that waits, with a place that counts for `counts_for`.
fn ask_in_turn(text: &str, counts_for: Duration) -> AcquireRequest {
    let waiter = LeaseId::random();
    ask(text).turn(Turn::in_turn(waiter, counts_for))
}

fn acquire(statements: &Statements, text: &str) -> HttpRequest {
    statements.update(statements.acquire(&ask(text)))
}

/// The change in a bulk of one.
fn change_in(request: &HttpRequest) -> &Value {
    match lines_of(request) {
        [_, change] => change,
        other => panic!("{other:?}"),
    }
}

fn json(request: &HttpRequest) -> &Value {
    match &request.body {
        Body::Json(body) => body,
        other => panic!("{other:?}"),
    }
}

fn lines_of(request: &HttpRequest) -> &[Value] {
    match &request.body {
        Body::Lines(lines) => lines,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_script_is_the_same_text_for_every_request() {
    let statements = Statements::of_locks("locks".into());
    let several = ask("the other").permits(2, 4).unwrap().reentrant();
    let pairs = [
        [ask("one"), ask("the other").note("nightly")],
        [ask("one").shared(), several.note("nightly")],
        [
            ask("one").shared(),
            ask_in_turn("the other", Duration::from_secs(3)).likely_held(),
        ],
        [ask("one"), ask("the other").turn(Turn::Barging)],
    ];
    for pair in pairs {
        let bodies = pair.map(|request| {
            let sent = statements.update(statements.acquire(&request));
            change_in(&sent).clone()
        });
        let [one, other] = bodies.each_ref().map(|body| &body["script"]);
        assert_eq!(one["source"], other["source"]);
        assert_ne!(one["params"], other["params"]);
    }
}

#[test]
fn stored_scripts_are_named_and_not_sent() {
    let mut statements = Statements::of_locks("locks".into());
    statements.stored_scripts = true;
    let sent = acquire(&statements, "key");
    let script = &change_in(&sent)["script"];
    assert_eq!(script["id"], ACQUIRE.stored_name);
    assert_eq!(script["source"], Value::Null);
}

/// A proxy may decode a path, resolve dots in it and join slashes. Then an id in a path would be another id.
#[test]
fn no_id_is_in_a_path() {
    let statements = Statements::of_locks("locks".into());
    let lease = LeaseId::random();
    for text in [
        "key",
        "a/b",
        "../x",
        ".",
        "..",
        "%2e%2e%2fx",
        "a?b#c;d",
        "é \\",
    ] {
        let key = key(text);
        let quota = Quota::fixed(10, Duration::from_secs(1)).unwrap();
        let in_turn = ask_in_turn(text, Duration::from_secs(3));
        let changes = [
            statements.acquire(&ask(text)),
            statements.acquire(&ask(text).shared()),
            statements.acquire_in_full(&in_turn),
            statements.leave(&key, LeaseId::random()),
            statements.renew(&RenewRequest::new(
                key.clone(),
                lease,
                Duration::from_secs(1),
            )),
            statements.convert(&ConvertRequest::upgrade(key.clone(), lease)),
            statements.release(&ReleaseRequest::new(key.clone(), lease)),
            statements.evict(&key),
            statements.inspect(&key),
            statements.remove_expired(&key),
            statements.purge(text.to_owned(), Duration::ZERO),
        ];
        for change in changes {
            let sent = statements.update(change);
            assert_eq!(sent.path, "locks%2Dwrite/_bulk", "{sent:?}");
            let action = &lines_of(&sent)[0]["update"];
            assert_eq!(action["_id"], text);
            assert_eq!(action["require_alias"], true);
            assert!(!sent.query.iter().any(|(name, _)| *name == "refresh"));
        }
        let get = statements.get(&key);
        assert_eq!(get.path, "locks%2Dwrite/_mget");
        assert_eq!(*json(&get), json!({ "ids": [text] }));
        let permit = PermitRequest::new(key, PermitId::random(), quota, 1);
        let sent = statements.update(statements.permit(&permit));
        assert_eq!(sent.path, "locks%2Dwrite/_bulk");
    }
    for script in SCRIPTS {
        let path = statements.store_script(script).path;
        let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '/');
        assert!(
            path.chars().all(is_plain) && path.matches('/').count() == 1,
            "{path}"
        );
    }
}

#[test]
fn a_name_is_one_name_and_one_segment() {
    for name in ["locks", "Locks-1", "a.b_c", "锁"] {
        assert!(Statements::of_locks(name.to_owned()).has_name().is_ok());
    }
    for odd in [
        "", ".", "..", "a/b", "a,b", "a*", "a b", "%2e", "a;b", "a?b", "<a{now}>", "c:a", "-*\n",
    ] {
        let told = Statements::of_locks(odd.to_owned()).has_name().unwrap_err();
        assert!(told.contains("use letters"), "{told}");
    }
}

#[test]
fn who_may_have_to_look_at_places_sends_the_script_that_does() {
    let statements = Statements::of_locks("locks".into());
    let in_turn = ask_in_turn("key", Duration::from_secs(3));
    for (change, script) in [
        (statements.acquire(&ask("key")), &ACQUIRE),
        (
            statements.acquire(&ask("key").turn(Turn::Barging)),
            &ACQUIRE,
        ),
        (statements.acquire(&ask("key").shared()), &ACQUIRE_IN_FULL),
        (
            statements.acquire(&ask("key").reentrant()),
            &ACQUIRE_IN_FULL,
        ),
        (statements.acquire(&in_turn), &ACQUIRE),
        (
            statements.acquire(&in_turn.clone().likely_held()),
            &ACQUIRE_IN_FULL,
        ),
        (statements.acquire_in_full(&ask("key")), &ACQUIRE_IN_FULL),
    ] {
        assert_eq!(change.body["script"]["source"], script.source);
    }
}

#[test]
fn a_turn_is_parameters() {
    let statements = Statements::of_locks("locks".into());
    let params = |request: &AcquireRequest| {
        let change = statements.acquire_in_full(request);
        change.body["script"]["params"].clone()
    };
    let behind = params(&ask("key"));
    assert_eq!(behind["barging"], false);
    assert_eq!(behind["waiter"], Value::Null);
    assert_eq!(behind["max_places"], MAX_PLACES);
    assert_eq!(behind["max_place_time"], 60_000);
    assert_eq!(behind["all_bind"], 4_000);
    let barging = ask("key").turn(Turn::Barging);
    assert_eq!(params(&barging)["barging"], true);
    let lean = statements.acquire(&barging);
    assert_eq!(lean.body["script"]["params"]["barging"], true);

    for (counts_for, counts, enough) in [
        (Duration::from_secs(3), 3_000, 2_750),
        // Below two milliseconds a place counts for one millisecond. It is not written again while it counts.
        (Duration::from_micros(1_600), 1, 1),
        (Duration::MAX, 60_000, 59_750),
    ] {
        let request = ask_in_turn("key", counts_for);
        let params = params(&request);
        let waiter = request.turn.waiter().unwrap().to_string();
        assert_eq!(params["waiter"], waiter);
        assert_eq!(params["counts_for"], counts);
        assert_eq!(params["enough"], enough);
    }
}

/// Most acquires take one fence. Their requests do not grow.
#[test]
fn the_number_of_fences_is_a_parameter_if_there_are_several() {
    let statements = Statements::of_locks("locks".into());
    let params = |change: ScriptedUpdate| change.body["script"]["params"].clone();
    let fences = |fences| {
        let request = ask("key").fences(NonZeroU16::new(fences).unwrap());
        let [lean, full] = [
            statements.acquire(&request),
            statements.acquire_in_full(&request),
        ]
        .map(|change| params(change).get("fences").cloned());
        assert_eq!(lean, full);
        lean
    };
    assert_eq!(fences(1), None);
    assert_eq!(fences(2), Some(json!(2)));
    assert_eq!(fences(u16::MAX), Some(json!(65_535)));
}

/// The ids are in the body, because a path would lose the segments `.` and `..`.
#[test]
fn many_documents_are_read_by_their_ids() {
    let statements = Statements::of_locks("locks".into());
    let get = statements.get_many(&[&key("a/b"), &key("."), &key("limiter:")]);
    assert_eq!(get.path, "locks%2Dwrite/_mget");
    let hashed = "limiter::f5ddf788-a507-58e6-b519-bca54dc25352";
    assert_eq!(*json(&get), json!({ "ids": ["a/b", ".", hashed] }));
}

#[test]
fn no_lock_has_the_id_of_a_limiter_or_of_another_lock() {
    for plain in ["report:42", "limiter", "Limiter:", " limiter:"] {
        assert_eq!(id(&key(plain)), plain);
    }
    // Programs in other languages must compute the same id.
    let hashed = "limiter::f5ddf788-a507-58e6-b519-bca54dc25352";
    assert_eq!(id(&key("limiter:")), hashed);
    let longest = format!("limiter:{}", "a".repeat(MAX_KEY_BYTES - 8));
    let names = [
        "limiter:",
        "limiter::",
        "limiter:11111111-1111-4111-8111-111111111111",
        hashed,
        &longest,
    ];
    let ids: BTreeSet<_> = names
        .into_iter()
        .map(|name| id(&key(name)).into_owned())
        .collect();
    assert_eq!(ids.len(), names.len());
    for id in ids {
        assert!(id.starts_with("limiter::") && id.len() == 45, "{id}");
    }
}

#[test]
fn an_endless_retention_or_minimum_hold_stays_within_the_dates() {
    assert!(chrono::DateTime::from_timestamp_millis(2 * millis(Duration::MAX)).is_some());
    let look = Statements::of_locks("locks".into()).look_over(Duration::MAX, None);
    let dead = &json(&look)["query"]["bool"]["should"][0];
    let range = &dead["bool"]["must_not"][0]["range"];
    assert_eq!(range["expires_at"]["gt"], "now-2000000000s");
}

#[test]
fn no_time_of_this_process_is_sent() {
    let now = chrono::Utc::now().timestamp_millis();
    let near = |number: i64| (number - now).abs() < 366 * 24 * 60 * 60 * 1_000;
    fn numbers(value: &Value, found: &mut Vec<i64>) {
        match value {
            Value::Number(number) => found.extend(number.as_i64()),
            Value::Array(values) => values.iter().for_each(|value| numbers(value, found)),
            Value::Object(fields) => fields.values().for_each(|value| numbers(value, found)),
            _ => {}
        }
    }
    let statements = Statements::of_locks("locks".into());
    let list = ListRequest::new(Filter::new().owner("me"), Some(key("k")), 10);
    let requests = [acquire(&statements, "k"), statements.search(&list)];
    for request in requests {
        let mut found = Vec::new();
        match &request.body {
            Body::Lines(lines) => lines.iter().for_each(|line| numbers(line, &mut found)),
            _ => numbers(json(&request), &mut found),
        }
        assert!(
            !found.is_empty() && !found.into_iter().any(near),
            "{request:?}"
        );
    }
}

#[test]
fn random_texts_are_parameters_and_ids_in_the_body() {
    let statements = Statements::of_locks("locks".into());
    let script = change_in(&acquire(&statements, "tame"))["script"]["source"].clone();
    let mut random = Texts::new(0);
    for number in 0..1_000 {
        let [name, owner] = [(); 2].map(|()| random.good(1, MAX_KEY_BYTES));
        let note = random.good(0, MAX_NOTE_BYTES);
        let request = AcquireRequest {
            owner: owner.as_str().into(),
            ..ask(&name).note(&*note)
        };
        let sent = statements.update(statements.acquire(&request));
        assert_eq!(sent.path, "locks%2Dwrite/_bulk");
        let lines = lines_of(&sent);
        assert_eq!(lines[0]["update"]["_id"], *name);
        for line in lines {
            let text = line.to_string();
            assert!(!text.contains(['\n', '\r']), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), *line);
        }
        let sent = &lines[1]["script"];
        assert_eq!(sent["source"], script);
        let shown = ["key", "owner", "note"].map(|name| sent["params"][name].as_str());
        assert_eq!(shown, [Some(&*name), Some(&*owner), Some(&*note)]);

        let quota = Quota::fixed(10, Duration::from_secs(1 + number)).unwrap();
        let permit = PermitRequest::new(key(&name), PermitId::random(), quota, 2);
        let permit = statements.update(statements.permit(&permit));
        let lines = lines_of(&permit);
        let id = lines[0]["update"]["_id"].as_str().unwrap();
        assert!(id.starts_with("limiter:") && id.len() < 64, "{id}");
        assert_eq!(lines[1]["script"]["params"]["key"], *name);
        let list = ListRequest::new(Filter::new().prefix(&*name).owner(owner), None, 1);
        let list = statements.search(&list).body;
        let Body::Json(list) = list else {
            panic!("{list:?}");
        };
        assert_eq!(
            list["query"]["bool"]["filter"][1]["range"]["key"]["gte"],
            *name
        );
    }
}

#[test]
fn each_write_waits_for_as_many_copies_as_the_user_says() {
    let waits = |statements: &Statements| {
        let one = statements.update(statements.acquire(&ask("key")));
        let many = statements.bulk(vec![statements.acquire(&ask("key"))]);
        [one, many].map(|sent| {
            let mut waits = sent.query.into_iter();
            let copies = waits.find(|(name, _)| *name == "wait_for_active_shards");
            copies.map(|(_, copies)| copies.into_owned())
        })
    };
    let mut statements = Statements::of_locks("locks".into());
    assert_eq!(
        waits(&statements),
        [None, None],
        "it is a matter of the index"
    );
    statements.active_shards = Some(2);
    assert_eq!(
        waits(&statements),
        [Some("2".to_owned()), Some("2".to_owned())]
    );
}

//! Tests of the statements, without a server.

use std::{num::NonZeroU16, time::Duration};

use mongodb::bson::{Bson, RawDocumentBuf};

use super::*;
use crate::{
    messages::{
        AcquireRequest, ConvertRequest, Filter, PermitRequest, ReleaseRequest, RenewRequest, Turn,
    },
    model::{FENCE_END, LeaseId, MAX_KEY_BYTES, MAX_NOTE_BYTES, PermitId, Quota},
    store::hostile_texts::Texts,
};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Collects every text in a document, with the field that contains it.
fn texts(value: &Bson, field: &str, found: &mut Vec<(String, String)>) {
    match value {
        Bson::String(text) => found.push((field.to_owned(), text.clone())),
        Bson::Array(values) => values.iter().for_each(|value| texts(value, field, found)),
        Bson::Document(document) => document
            .iter()
            .for_each(|(field, value)| texts(value, field, found)),
        _ => {}
    }
}

const TTL: Duration = Duration::from_secs(1);
const BLOCK: NonZeroU16 = NonZeroU16::new(100).unwrap();

fn ask(name: &str) -> AcquireRequest {
    AcquireRequest::exclusive(key(name), LeaseId::random(), name.into(), TTL)
}

/// Every way to ask for a key.
fn asked(request: &AcquireRequest) -> Vec<AcquireRequest> {
    let modes = [
        request.clone(),
        request.clone().shared(),
        request.clone().permits(2, 3).unwrap(),
    ];
    let again = modes.clone().map(AcquireRequest::reentrant);
    let asked = modes.into_iter().chain(again);
    let waits = Turn::in_turn(LeaseId::random(), TTL);
    let turns = asked.flat_map(|request| {
        [Turn::Behind, Turn::Barging, waits].map(|turn| request.clone().turn(turn))
    });
    turns.collect()
}

/// Every form of the statement of this request.
fn forms(request: &AcquireRequest) -> [Vec<Document>; 2] {
    [Form::Short, Form::Full].map(|form| acquire(request, form, TTL))
}

/// Every change that has a statement.
fn changes() -> Vec<Vec<Document>> {
    let (key, lease) = (key("k"), LeaseId::random());
    let asked = asked(&ask("k"));
    let release = ReleaseRequest::new(key.clone(), lease);
    let blocks = asked.iter().map(|it| it.clone().fences(BLOCK));
    let asked: Vec<_> = asked.iter().cloned().chain(blocks).collect();
    let mut changes: Vec<_> = asked.iter().flat_map(forms).collect();
    let renewal = RenewRequest::new(key.clone(), lease, TTL);
    changes.extend([
        renew(&renewal, TTL),
        convert(&ConvertRequest::upgrade(key.clone(), lease), TTL),
        convert(&ConvertRequest::downgrade(key, lease), TTL),
        self::release(&release, TTL),
        release_sole(&release),
        release_or_fail(&release, TTL),
        release_or_fail(&release.clone().likely_sole(), TTL),
        self::release(&release.min_hold(TTL, LeaseId::random()), TTL),
        evict(TTL),
        touch(mongodb::bson::oid::ObjectId::new()),
        leave(LeaseId::random()),
    ]);
    changes.extend(permits("k").iter().map(permit));
    changes
}

/// Every way to ask for permits.
fn permits(name: &str) -> [PermitRequest; 2] {
    let fixed = Quota::fixed(10, TTL).unwrap();
    [fixed, fixed.smooth(3).unwrap()]
        .map(|quota| PermitRequest::new(key(name), PermitId::random(), quota, 2))
}

/// Panics unless the pipeline of this request differs from that of a harmless one only in texts that are in literals.
fn assert_literal(request: &AcquireRequest) {
    let collect = |request: &AcquireRequest| {
        let mut found = Vec::new();
        for stage in forms(request).into_iter().flatten() {
            texts(&stage.into(), "", &mut found);
        }
        found
    };
    let tame = AcquireRequest {
        key: key("k"),
        owner: "o".into(),
        note: Some("n".into()),
        ..request.clone()
    };
    let (hostile, tame) = (collect(request), collect(&tame));
    assert_eq!(hostile.len(), tame.len());
    let differing: Vec<_> = hostile
        .iter()
        .zip(&tame)
        .filter(|(one, other)| one != other)
        .collect();
    assert!(differing.iter().all(|((field, _), _)| field == "$literal"));
    for tame in ["k", "o", "n"] {
        let stands = |(_, (_, text)): &(_, &(String, String))| text == tame;
        assert!(differing.iter().any(stands), "{request:?}");
    }
}

#[test]
fn text_from_outside_stands_in_literals() {
    let hostile = "$$ROOT";
    for request in asked(&ask(hostile).note(hostile)) {
        assert_literal(&request);
    }
}

#[test]
fn random_texts_stand_in_literals_and_are_sent_as_they_are() {
    let tame = permits("k").each_ref().map(literals);
    let mut random = Texts::new(0);
    for number in 0..1_000 {
        let [name, owner] = [(); 2].map(|()| random.good(1, MAX_KEY_BYTES));
        let request = AcquireRequest {
            owner: owner.as_str().into(),
            ..ask(&name).note(random.good(0, MAX_NOTE_BYTES))
        };
        let ways = asked(&request);
        let request = &ways[number % ways.len()];
        assert_literal(request);
        assert_eq!(literals(&permits(&name)[number % 2]), tame[number % 2]);
        let list = ListRequest::new(Filter::new().prefix(&*name).owner(owner), None, 1);
        let mut sent = acquire(request, Form::Full, TTL);
        sent.extend([page(&list), filter(&request.key), expired(&request.key)]);
        for document in sent {
            let sent = RawDocumentBuf::try_from(&document).unwrap();
            assert_eq!(Document::try_from(sent).unwrap(), document);
        }
    }
}

/// The fields in which the pipeline of a limiter contains a text.
fn places(request: &PermitRequest, wanted: &str) -> Vec<String> {
    let mut found = Vec::new();
    texts(&Bson::from(permit(request)), "", &mut found);
    let wanted = found.into_iter().filter(|(_, text)| text == wanted);
    wanted.map(|(field, _)| field).collect()
}

/// How many literals contain the key of a limiter.
fn literals(request: &PermitRequest) -> usize {
    let places = places(request, request.key.as_str());
    places.iter().filter(|field| *field == "$literal").count()
}

#[test]
fn the_key_of_a_limiter_stands_in_a_literal() {
    for (tame, hostile) in permits("k").iter().zip(permits("$$ROOT")) {
        assert!(places(tame, "k").iter().all(|field| field == "$literal"));
        // The pipeline itself contains `$$ROOT`, which is the whole document, so only literals are counted.
        assert_eq!(literals(&hostile), literals(tame));
    }
}

#[test]
fn an_exclusive_grant_looks_at_no_holder_and_has_a_note_only_if_there_is_one() {
    let sent = |request: &AcquireRequest| format!("{:?}", acquire(request, Form::Short, TTL));
    for costly in ["$filter", "$map", "$let", "note"] {
        assert!(!sent(&ask("k")).contains(costly), "{costly}");
        let control = ask("k").permits(1, 2).unwrap().reentrant().note("");
        assert!(sent(&control).contains(costly), "{costly}");
    }
}

#[test]
fn a_grant_of_several_fences_needs_them_and_is_kept_for_as_long() {
    let granted = |fences| {
        let statement = acquire(&ask("k").fences(fences), Form::Short, TTL);
        let replaced = statement[0].get_document("$replaceWith").unwrap();
        let choice = replaced.get_array("$cond").unwrap();
        let document = choice[1].as_document().unwrap().clone();
        (choice[0].to_string(), document)
    };
    let (condition, document) = granted(NonZeroU16::MIN);
    let left = expressions::is_below_last_fence(NonZeroU16::MIN).to_string();
    assert!(condition.contains(&left));
    assert_eq!(document.get_document("fence"), Ok(&next_fence()));
    let kept = cleanup_at("$$NOW", TTL, TTL);
    assert_eq!(document.get_document("cleanup_at"), Ok(&kept));

    let (condition, document) = granted(BLOCK);
    let left = expressions::is_below_last_fence(BLOCK).to_string();
    assert!(condition.contains(&left) && left.contains(&(FENCE_END - 100).to_string()));
    let last = doc! { "$add": [next_fence(), 99_i64] };
    assert_eq!(document.get_document("fence"), Ok(&last));
    assert_eq!(document.get_document("cleanup_at"), Ok(&kept));
    // As many as the clock has in three milliseconds, and one more.
    let (_, document) = granted(NonZeroU16::new(3_073).unwrap());
    let kept = cleanup_at("$$NOW", TTL + Duration::from_millis(3), TTL);
    assert_eq!(document.get_document("cleanup_at"), Ok(&kept));
}

/// A clock that is wrong must not leave a key without a next fence.
#[test]
fn what_takes_a_fence_looks_at_the_clock_and_the_last_fence() {
    let bound =
        doc! { "$lte": ["$$NOW", mongodb::bson::DateTime::from_millis((1 << 43) - 1)] }.to_string();
    for pipeline in changes() {
        let text = pipeline[0].to_string();
        let takes = text.contains(&next_fence().to_string());
        assert_eq!(text.contains(&bound), takes, "{text}");
    }
}

#[test]
fn no_time_of_this_process_is_sent() {
    fn dates(value: &Bson) -> usize {
        match value {
            // A date within the first days of 1970 is a duration, to which the server adds a fence. The years 2248 and
            // 9999 are bounds.
            Bson::DateTime(date) => {
                let days = date.timestamp_millis() / (24 * 60 * 60 * 1_000);
                (7..100_000).contains(&days).into()
            }
            Bson::Timestamp(_) => 1,
            Bson::Array(values) => values.iter().map(dates).sum(),
            Bson::Document(document) => document.values().map(dates).sum(),
            _ => 0,
        }
    }
    let mut finds = vec![expired(&key("k")), expired_since(TTL), projection()];
    finds.push(over_since(TTL));
    for stage in changes().into_iter().flatten().chain(finds) {
        assert_eq!(dates(&stage.clone().into()), 0, "{stage}");
    }
}

#[test]
fn a_change_is_one_replacement() {
    for pipeline in changes() {
        assert_eq!(pipeline.len(), 1);
        assert_eq!(pipeline[0].keys().collect::<Vec<_>>(), ["$replaceWith"]);
    }
    assert_eq!(filter(&key("k")).keys().collect::<Vec<_>>(), ["_id"]);
}

#[test]
fn an_endless_time_stays_within_the_dates() {
    let filter = expired_since(Duration::MAX).to_string();
    assert!(filter.contains("31536000000000"), "{filter}");
    let (lease, under) = (LeaseId::random(), LeaseId::random());
    let held_on = ReleaseRequest::new(key("k"), lease).min_hold(Duration::MAX, under);
    let held_on = format!("{:?}", release(&held_on, Duration::MAX));
    assert!(held_on.contains("31536000000000"), "{held_on}");
}

#[test]
fn whole_numbers_of_any_type_are_integers() {
    assert_eq!(integer(&Bson::Int32(7)), Some(7));
    assert_eq!(integer(&Bson::Int64(7)), Some(7));
    assert_eq!(integer(&Bson::Double(7.0)), Some(7));
    assert_eq!(integer(&Bson::Double(7.5)), None);
    assert_eq!(integer(&Bson::Double(f64::NAN)), None);
    assert_eq!(integer(&"7".into()), None);
}

use mongodb::bson::{Bson, DateTime as Date, Document, RawDocumentBuf, doc};

use super::*;
use crate::model::{Fence, LeaseId, Mode, SCHEMA};

fn key() -> Key {
    Key::new("k").unwrap()
}

fn date(millis: i64) -> Bson {
    Date::from_millis(millis).into()
}

/// A lock with one lease, whose fields are fields of the document.
fn flat(lease: LeaseId) -> Document {
    doc! {
        "_id": "k", "schema": SCHEMA, "fence": 7_i64, "lease": lease.to_string(), "owner": "me",
        "acquired_at": date(3), "expires_at": date(9), "note": "nightly", "now": date(5),
    }
}

fn several(lease: LeaseId) -> Document {
    doc! {
        "_id": "k", "schema": SCHEMA, "fence": 7_i64, "expires_at": date(9), "now": date(5),
        "holders": [{
            "lease": lease.to_string(), "owner": "me", "mode": "permits", "permits": 3_i64,
            "fence": 6_i64, "acquired_at": date(3), "expires_at": date(9), "note": "nightly",
        }],
    }
}

/// The answer with this document, and with the time that this function gives it.
fn raw(document: &Document) -> RawDocumentBuf {
    let mut document = document.clone();
    let answer = match document.remove("now") {
        Some(now) => doc! { "document": document, "now": now },
        None => document,
    };
    RawDocumentBuf::try_from(&answer).unwrap()
}

fn decoded(document: &Document) -> Result<Decoded, Error> {
    lock(&raw(document), &key())
}

fn problem(document: &Document) -> String {
    match decoded(document) {
        Err(Error::NotALock { problem, .. }) => problem,
        other => panic!("{document}: {other:?}"),
    }
}

#[test]
fn a_lock_is_read_with_every_field() {
    let lease = LeaseId::random();
    let Decoded { record, now } = decoded(&flat(lease)).unwrap();
    assert_eq!(now.unwrap().timestamp_millis(), 5);
    assert_eq!(record.fence, Fence::new(7));
    assert_eq!(record.expires_at.timestamp_millis(), 9);
    let holder = &record.holders[0];
    assert_eq!((holder.lease, &*holder.owner), (lease, "me"));
    assert_eq!((holder.mode, holder.permits), (Mode::Exclusive, 1));
    assert_eq!(holder.acquired_at.timestamp_millis(), 3);
    assert_eq!(holder.note.as_deref(), Some("nightly"));
    let record = decoded(&several(lease)).unwrap().record;
    let holder = &record.holders[0];
    assert_eq!((holder.mode, holder.permits), (Mode::Permits, 3));
    assert_eq!((record.fence, holder.fence), (Fence::new(7), Fence::new(6)));
    let released = doc! { "schema": SCHEMA, "fence": 7_i64, "released_at": date(4) };
    let record = decoded(&released).unwrap().record;
    assert!(record.holders.is_empty());
    assert_eq!(record.expires_at.timestamp_millis(), 4);
}

#[test]
fn only_the_answer_to_an_eviction_looks_at_who_was_evicted() {
    let mut evicted = doc! { "schema": SCHEMA, "fence": 7_i64, "released_at": date(4) };
    evicted.insert("evicted", several(LeaseId::random()).remove("holders"));
    let record = eviction(&raw(&evicted), &key()).unwrap();
    assert!(record.holders.is_empty());
    assert_eq!(record.evicted[0].note.as_deref(), Some("nightly"));
    for damage in [Bson::from("nobody"), Bson::from(vec![7])] {
        evicted.insert("evicted", damage);
        let error = eviction(&raw(&evicted), &key()).unwrap_err();
        assert!(matches!(&error, Error::NotALock { .. }), "{error:?}");
        assert!(decoded(&evicted).is_ok());
    }
}

/// Another program may have added fields to a lock that have the names of fields of an answer.
#[test]
fn a_stored_image_is_not_taken_for_an_answer_with_the_time() {
    let lease = LeaseId::random();
    let mut image = flat(lease);
    image.extend(doc! { "document": flat(LeaseId::random()), "now": date(7) });
    let image = RawDocumentBuf::try_from(&image).unwrap();
    assert_eq!(id(&image), Some("k"));
    let Decoded { record, now } = lock(&image, &key()).unwrap();
    assert_eq!((record.holders[0].lease, now), (lease, None));
}

/// An upsert that is refused leaves such a document. The next one treats it as a new one.
#[test]
fn a_document_without_fields_had_no_fence() {
    let told = problem(&doc! { "_id": "k", "now": date(5) });
    assert!(told.contains("clock"), "{told}");
}

#[test]
fn a_later_schema_is_named() {
    let mut later = flat(LeaseId::random());
    later.insert("schema", "leasehold.lock.2");
    assert!(matches!(
        decoded(&later),
        Err(Error::UnsupportedSchema { found, .. }) if found == "leasehold.lock.2"
    ));
}

#[test]
fn what_is_not_a_lock_is_named_by_its_field() {
    for field in ["schema", "fence", "expires_at", "now", "lease"] {
        for nonsense in [Bson::from("nonsense"), true.into(), vec![5].into()] {
            let mut broken = flat(LeaseId::random());
            broken.insert(field, nonsense);
            assert!(problem(&broken).contains(field));
        }
    }
    for fence in [1_i64 << 53, i64::MAX] {
        let mut last = flat(LeaseId::random());
        last.insert("fence", fence);
        assert!(problem(&last).contains("fence"));
    }
    for field in ["lease", "mode", "permits", "fence", "expires_at"] {
        let mut broken = several(LeaseId::random());
        let holders = broken.get_array_mut("holders").unwrap();
        holders[0].as_document_mut().unwrap().insert(field, true);
        assert!(problem(&broken).contains(field));
    }
    let nobody = doc! { "schema": SCHEMA, "expires_at": date(9), "now": date(5) };
    assert!(problem(&nobody).contains("holders"));
}

#[test]
fn a_lock_that_has_expired_is_free_whoever_had_it() {
    for field in ["lease", "owner", "acquired_at", "note"] {
        let mut expired = flat(LeaseId::random());
        expired.extend(doc! { field: true, "now": date(9) });
        assert!(decoded(&expired).is_ok(), "{field}");
    }
}

#[test]
fn what_decides_nothing_damages_nothing() {
    for field in ["owner", "acquired_at", "note"] {
        let mut odd = flat(LeaseId::random());
        odd.insert(field, true);
        let holders = decoded(&odd).unwrap().record.holders;
        assert_eq!(holders.len(), 1, "{field}");
    }
}

#[test]
fn numbers_of_other_languages_are_fences() {
    for fence in [
        Bson::Int32(7),
        7.0.into(),
        7.5.into(),
        "7".parse::<mongodb::bson::Decimal128>().unwrap().into(),
    ] {
        let mut lock = flat(LeaseId::random());
        lock.insert("fence", fence);
        assert_eq!(decoded(&lock).unwrap().record.fence, Fence::new(7));
    }
    let mut lock = flat(LeaseId::random());
    lock.remove("fence");
    assert_eq!(decoded(&lock).unwrap().record.fence, Fence::new(0));
}

use std::num::NonZeroU16;

use chrono::TimeDelta;
use mongodb::bson::RawDocumentBuf;

use super::*;
use crate::model::{Done, LeaseId, Mode, Tick};

fn key() -> Key {
    Key::new("key").unwrap()
}

fn noon() -> DateTime<Utc> {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).unwrap()
}

/// The document after an update that sets these fields.
fn stored(record: &LockRecord, before: &RawDocument) -> RawDocumentBuf {
    let update = written(record, before);
    let set = update.get_document("$set").unwrap();
    let unset = update.get_document("$unset").unwrap();
    let mut document = Document::try_from(before).unwrap();
    unset.keys().for_each(|field| drop(document.remove(field)));
    document.extend(set.clone());
    raw(&document)
}

fn holder(mode: Mode, minutes: i64) -> Holder {
    let owner = "owner".into();
    let expires_at = noon() + TimeDelta::minutes(minutes);
    let mut holder = Holder::exclusive(LeaseId::random(), owner, Fence::new(7), noon(), expires_at);
    holder.mode = mode;
    holder.note = Some("note".into());
    holder
}

#[test]
fn every_record_comes_back() {
    let until = noon() + TimeDelta::minutes(2);
    let record = |holders| LockRecord::new(key(), Fence::new(9), holders, until);
    let mut records = vec![
        record(vec![]),
        record(vec![holder(Mode::Exclusive, 2)]),
        record(vec![holder(Mode::Shared, 1), holder(Mode::Shared, 2)]),
    ];
    let mut awaited = record(vec![]);
    let mode = (Mode::Permits, 3);
    let waiter = LeaseId::random();
    awaited.waiters = vec![Place::new(waiter, "owner".into(), mode, noon(), until)];
    records.push(awaited);
    let mut done = record(vec![]);
    let under = (LeaseId::random(), "owner".into());
    done.done = LastDone::Tick(Done::new(Tick::version(3, 0, 0), under, noon(), until));
    records.push(done);
    let mut before = raw(&doc! { "_id": "key" });
    for record in records {
        before = stored(&record, &before);
        let read = LockRecord::read(&before, &key(), noon()).unwrap();
        assert_eq!(read.as_ref(), Some(&record));
    }
}

/// All of the holders expired before the key was released, so they do not hold it.
#[test]
fn holders_that_have_expired_before_a_release_hold_nothing() {
    let until = noon() + TimeDelta::minutes(2);
    let left = vec![holder(Mode::Shared, 1)];
    let record = LockRecord::new(key(), Fence::new(9), left, until);
    let document = stored(&record, &raw(&doc! { "_id": "key" }));
    let state = document.get_document("state").unwrap();
    assert!(state.get("expires_at").unwrap().is_none());
    let read = LockRecord::read(&document, &key(), until).unwrap().unwrap();
    assert_eq!(read.expires_at, until);
    assert_eq!(read.live_holders(until).count(), 0);
}

#[test]
fn a_stamped_lease_expires_after_its_ttl() {
    let lease = LeaseId::random();
    let document = doc! {
        "_id": "key",
        "fence": 8_i64,
        "lease": lease.to_string(),
        "owner": "owner",
        "ttl": 30_000_i64,
        "acquired_at": date_of(noon()),
        "renewed_at": date_of(noon()),
    };
    let read = |document: &Document| LockRecord::read(&raw(document), &key(), noon());
    let record = read(&document).unwrap().unwrap();
    assert_eq!(record.expires_at, noon() + TimeDelta::seconds(30));
    assert_eq!((record.holders.len(), record.holders[0].lease), (1, lease));
    for field in ["ttl", "acquired_at", "renewed_at", "fence"] {
        for wrong in [Bson::Null, "text".into(), (-1_i64).into()] {
            let mut damaged = document.clone();
            damaged.insert(field, wrong);
            let refused = read(&damaged);
            assert!(matches!(refused, Err(Error::NotALock { .. })), "{field}");
        }
    }
}

#[test]
fn a_stamped_grant_takes_a_block_of_fences() {
    let request = |fences| {
        let request = AcquireRequest::exclusive(
            key(),
            LeaseId::random(),
            "owner".into(),
            Duration::from_secs(30),
        );
        stamped_grant(&request.fences(NonZeroU16::new(fences).unwrap()))
    };
    for fences in [1, 100] {
        let (filter, update) = request(fences);
        let fences = i64::from(fences);
        let fence = filter.get_document("fence").unwrap();
        assert_eq!(fence.get_i64("$lt"), Ok(FENCE_END - fences));
        let taken = doc! { "fence": fences };
        assert_eq!(update.get_document("$inc"), Ok(&taken));
    }
}

#[test]
fn a_document_that_says_nothing_is_new_only_without_a_fence() {
    let read = |fence: i64| LockRecord::read(&raw(&doc! { "fence": fence }), &key(), noon());
    assert_eq!(read(0).unwrap(), None);
    assert!(matches!(read(1), Err(Error::NotALock { .. })));
}

/// A later version may have written such a field.
#[test]
fn what_is_done_and_cannot_be_read_stays() {
    let state = doc! { "schema": SCHEMA, "fence": 1_i64, "done": { "kind": "later" } };
    let before = raw(&doc! { "_id": "key", "fence": 1_i64, "state": state });
    let read = LockRecord::read(&before, &key(), noon()).unwrap().unwrap();
    assert_eq!(read.done, LastDone::Unreadable);
    let after = stored(&read, &before);
    let state = after.get_document("state").unwrap();
    let done = state.get_document("done").unwrap();
    assert_eq!(done.get_str("kind"), Ok("later"));
}

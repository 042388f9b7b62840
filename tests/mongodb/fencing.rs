//! Writes of an application that a newer fence refuses.

mod races;
mod sent;
mod unusual;

use leasehold::{Error, Fence, fencing::GuardedCollection};
use mongodb::{
    ClientSession, Collection,
    bson::{Bson, Document, doc},
    error::{Error as DriverError, ErrorKind, WriteFailure},
    options::IndexOptions,
};

use super::{Engine, Fixture};

const BOTH: [Engine; 2] = [Engine::MongoDb, Engine::MongoDbReplicaSet];

fn under(collection: &Collection<Document>, fence: i64) -> GuardedCollection<Document> {
    GuardedCollection::new(collection, Fence::new(fence))
}

fn seven() -> Document {
    doc! { "_id": 7 }
}

async fn stored(collection: &Collection<Document>) -> Option<Document> {
    collection.find_one(seven()).await.unwrap()
}

fn fence_of(document: &Document) -> Option<i64> {
    document.get("leasehold_fence").map(|fence| match fence {
        Bson::Int64(fence) => *fence,
        other => panic!("no 64-bit integer: {other:?}"),
    })
}

fn assert_fenced<T>(outcome: Result<T, Error>, by: i64, newer: i64) {
    match outcome.map(drop) {
        Err(Error::Fenced { fence, seen }) => {
            assert_eq!((fence, seen), (Fence::new(by), Some(Fence::new(newer))));
        }
        other => panic!("{other:?}"),
    }
}

/// Every way to write to an existing document. Each makes its `state` "new", except for the claim.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Write {
    Update,
    Pipeline,
    Replace,
    FindAndUpdate,
    Claim,
    Delete,
}

const WRITES: [(Write, bool); 10] = [
    (Write::Update, false),
    (Write::Pipeline, false),
    (Write::Replace, false),
    (Write::FindAndUpdate, false),
    (Write::Claim, false),
    (Write::Delete, false),
    (Write::Update, true),
    (Write::Pipeline, true),
    (Write::Replace, true),
    (Write::FindAndUpdate, true),
];

impl Write {
    /// Sends the write, and returns whether a document was written.
    async fn send(
        self,
        upsert: bool,
        documents: &GuardedCollection<Document>,
        session: Option<&mut ClientSession>,
    ) -> Result<bool, Error> {
        let set = doc! { "$set": { "state": "new" } };
        // The options of each method have the same name, but a type of their own.
        macro_rules! sent {
            ($write:expr) => {
                match session {
                    Some(session) => $write.session(session).await?,
                    None => $write.await?,
                }
            };
        }
        macro_rules! upserted {
            ($write:expr) => {
                if upsert {
                    sent!($write.upsert())
                } else {
                    sent!($write)
                }
            };
        }
        let counted = match self {
            Self::Update => upserted!(documents.update_one(seven(), set)),
            Self::Pipeline => upserted!(documents.update_one(seven(), vec![set])),
            Self::Replace => {
                // A fence in the document of the application does not count.
                let replacement = doc! { "state": "new", "leasehold_fence": 1 };
                upserted!(documents.replace_one(seven(), &replacement))
            }
            Self::FindAndUpdate => {
                let found = upserted!(documents.find_one_and_update(seven(), set));
                let is_new = |found: &Document| found.get_str("state") == Ok("new");
                assert!(found.as_ref().is_none_or(is_new), "as it is then");
                return Ok(found.is_some());
            }
            Self::Claim => return Ok(sent!(documents.claim(7)).is_some()),
            Self::Delete => return Ok(sent!(documents.delete_one(seven())).deleted_count > 0),
        };
        Ok(counted.matched_count > 0 || counted.upserted_id.is_some())
    }
}

/// Makes a document that has seen this fence, or none, and sends the write of a holder with the fence 7.
async fn written(
    collection: &Collection<Document>,
    (write, upsert): (Write, bool),
    seen: Option<i64>,
    session: Option<&mut ClientSession>,
) -> Result<bool, Error> {
    let mut document = doc! { "_id": 7, "state": "old" };
    if let Some(seen) = seen {
        document.insert("leasehold_fence", seen);
    }
    collection.delete_many(doc! {}).await.unwrap();
    collection.insert_one(&document).await.unwrap();
    let outcome = write.send(upsert, &under(collection, 7), session).await;
    if outcome.is_err() {
        assert_eq!(stored(collection).await, Some(document), "left alone");
    }
    outcome
}

#[tokio::test]
async fn a_write_passes_unless_the_document_has_seen_a_newer_fence() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        for (write, upsert) in WRITES {
            let kind = (write, upsert);
            for seen in [None, Some(6), Some(7)] {
                assert!(written(&collection, kind, seen, None).await.unwrap());
                let after = stored(&collection).await;
                if write == Write::Delete {
                    assert_eq!(after, None);
                    continue;
                }
                let after = after.unwrap();
                assert_eq!(fence_of(&after), Some(7), "{kind:?}");
                let state = if write == Write::Claim { "old" } else { "new" };
                assert_eq!(after.get_str("state"), Ok(state));
            }
            let newer = written(&collection, kind, Some(8), None).await;
            assert_fenced(newer, 7, 8);
        }
    }
}

/// Another program has written the fence, as a number of another type.
#[tokio::test]
async fn a_newer_fence_of_any_type_is_told_exactly() {
    const LAST: i64 = (1 << 53) - 1;
    let collection = Fixture::new(Engine::MongoDb).collection().await;
    for seen in [Bson::Double(LAST as f64), Bson::Int64(LAST)] {
        let document = doc! { "_id": 7, "state": "old", "leasehold_fence": seen };
        collection.delete_many(doc! {}).await.unwrap();
        collection.insert_one(&document).await.unwrap();
        let late = under(&collection, LAST - 1);
        let outcome = Write::Update.send(false, &late, None).await;
        assert_fenced(outcome, LAST - 1, LAST);
        assert_eq!(stored(&collection).await, Some(document));
        let newest = under(&collection, LAST);
        assert!(Write::Update.send(false, &newest, None).await.unwrap());
    }
}

#[tokio::test]
async fn a_document_that_does_not_exist_fences_nobody_off() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        for (write, upsert) in WRITES {
            collection.delete_many(doc! {}).await.unwrap();
            let sent = write.send(upsert, &under(&collection, 7), None).await;
            assert_eq!(sent.unwrap(), upsert, "{write:?}");
            let after = stored(&collection).await;
            assert_eq!(after.as_ref().and_then(fence_of), upsert.then_some(7));
        }
    }
}

#[tokio::test]
async fn in_a_transaction_it_is_the_same() {
    let collection = Fixture::new(Engine::MongoDbReplicaSet).collection().await;
    let mut session = collection.client().start_session().await.unwrap();
    for kind in WRITES {
        for seen in [None, Some(6), Some(7), Some(8)] {
            session.start_transaction().await.unwrap();
            let outcome = written(&collection, kind, seen, Some(&mut session)).await;
            if seen == Some(8) {
                assert_fenced(outcome, 7, 8);
                session.abort_transaction().await.unwrap();
                continue;
            }
            assert!(outcome.unwrap(), "{kind:?}");
            let before = stored(&collection).await.unwrap();
            assert_eq!(fence_of(&before), seen, "not committed yet");
            session.commit_transaction().await.unwrap();
            let after = stored(&collection).await;
            let left = (kind.0 != Write::Delete).then_some(7);
            assert_eq!(after.as_ref().and_then(fence_of), left);
        }
    }
}

#[tokio::test]
async fn an_update_cannot_weaken_the_fence() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        let seen = doc! { "_id": 7, "leasehold_fence": 5_i64, "x": 1 };
        collection.insert_one(seen).await.unwrap();
        let guarded = under(&collection, 7);
        for update in [
            doc! { "$set": { "leasehold_fence": 1_i64 } },
            doc! { "$unset": { "leasehold_fence": "" } },
            doc! { "$min": { "leasehold_fence": 1 }, "$inc": { "leasehold_fence": -9 } },
            doc! { "$set": { "leasehold_fence.part": 1 } },
            doc! { "$rename": { "leasehold_fence": "y" } },
        ] {
            guarded.update_one(seven(), update).await.unwrap();
            assert_eq!(fence_of(&stored(&collection).await.unwrap()), Some(7));
        }
        for stage in [
            doc! { "$set": { "leasehold_fence": 1_i64 } },
            doc! { "$unset": "leasehold_fence" },
            doc! { "$set": { "leasehold_fence": { "part": [1] } } },
            doc! { "$replaceWith": { "_id": 7 } },
        ] {
            guarded.update_one(seven(), vec![stage]).await.unwrap();
            assert_eq!(fence_of(&stored(&collection).await.unwrap()), Some(7));
        }
        let before = stored(&collection).await;
        for refused in [
            doc! { "$rename": { "x": "leasehold_fence" } },
            doc! { "$set": 5 },
            doc! { "no": "operator" },
        ] {
            let error = guarded.update_one(seven(), refused).await.unwrap_err();
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
            assert_eq!(stored(&collection).await, before);
        }
    }
}

#[tokio::test]
async fn by_its_id_a_document_is_known_whatever_else_has_changed() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        let done = doc! { "_id": 7, "state": "done", "leasehold_fence": 8_i64 };
        collection.insert_one(done).await.unwrap();
        let guarded = under(&collection, 7);
        let set = || doc! { "$set": { "state": "queued" } };
        let by_id = doc! { "_id": { "$eq": 7 }, "state": "queued" };
        assert_fenced(guarded.update_one(by_id, set()).await, 7, 8);
        // Without an `_id` in it, the filter alone says which document is meant.
        let done = doc! { "state": "done" };
        assert_fenced(guarded.update_one(done, set()).await, 7, 8);
        let queued = doc! { "state": "queued" };
        let missed = guarded.update_one(queued, set()).await.unwrap();
        assert_eq!(missed.matched_count, 0);
    }
}

#[tokio::test]
async fn an_upsert_that_pins_no_id_is_refused_before_it_is_sent() {
    let (collection, commands) = Fixture::new(Engine::MongoDb).watched().await;
    let guarded = under(&collection, 7);
    for loose in [doc! {}, doc! { "a": 1 }, doc! { "_id": { "$in": [7] } }] {
        let set = doc! { "$set": { "b": 1 } };
        let update = guarded.update_one(loose.clone(), set.clone()).upsert();
        let find = guarded.find_one_and_update(loose.clone(), set).upsert();
        let replace = guarded.replace_one(loose, &doc! { "b": 1 }).upsert();
        for outcome in [
            update.await.map(drop),
            find.await.map(drop),
            replace.await.map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::InvalidUpsert), "{error:?}");
            assert!(!error.is_retryable() && !error.is_ambiguous());
        }
    }
    assert_eq!(commands.names(), Vec::<String>::new());
}

/// The number by which the driver names the server's error.
fn code(error: &Error) -> Option<i32> {
    let driver = error.driver_error::<DriverError>()?;
    match &*driver.kind {
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

#[tokio::test]
async fn an_insert_is_stamped_and_finds_out_who_was_there() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        let guarded = under(&collection, 7);
        let document = doc! { "_id": 7, "leasehold_fence": 99 };
        let inserted = guarded.insert_one(&document).await.unwrap();
        assert_eq!(inserted.inserted_id, Bson::Int32(7));
        assert_eq!(fence_of(&stored(&collection).await.unwrap()), Some(7));
        // For the same holder, and for a later one, the error is that of a duplicate key.
        for fence in [7, 8] {
            let error = under(&collection, fence).insert_one(&document).await;
            let error = error.unwrap_err();
            assert_eq!(code(&error), Some(11_000), "{error:?}");
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
        }
        let late = under(&collection, 6).insert_one(&document).await;
        assert_fenced(late, 6, 7);

        let named = guarded.insert_one(&doc! { "a": 1 }).await.unwrap();
        let find = doc! { "_id": named.inserted_id, "a": 1, "leasehold_fence": 7 };
        assert!(collection.find_one(find).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn an_insert_in_a_transaction_finds_out_who_was_there() {
    let collection = Fixture::new(Engine::MongoDbReplicaSet).collection().await;
    let seen = doc! { "_id": 7, "leasehold_fence": 8_i64 };
    collection.insert_one(seen).await.unwrap();
    let guarded = under(&collection, 7);
    let mut session = collection.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let document = doc! { "_id": 1 };
    let insert = guarded.insert_one(&document).session(&mut session);
    insert.await.unwrap();
    let late = guarded.insert_one(&seven()).session(&mut session).await;
    assert_fenced(late, 7, 8);
    session.abort_transaction().await.unwrap();
    assert_eq!(collection.count_documents(document).await.unwrap(), 0);
}

/// A collection with a unique index on `mail`, and another document whose `mail` is "a".
async fn with_unique_mails(engine: Engine) -> Collection<Document> {
    let collection = Fixture::new(engine).collection().await;
    let unique = IndexOptions::builder().unique(true).build();
    let index = mongodb::IndexModel::builder().keys(doc! { "mail": 1 });
    let index = index.options(unique).build();
    collection.create_index(index).await.unwrap();
    let other = doc! { "_id": 1, "mail": "a", "leasehold_fence": 99_i64 };
    collection.insert_one(other).await.unwrap();
    collection
}

/// If the error allowed a retry, the transaction would be run again without end.
#[tokio::test]
async fn a_duplicate_of_another_unique_field_ends_a_transaction_for_good() {
    let collection = with_unique_mails(Engine::MongoDbReplicaSet).await;
    let guarded = under(&collection, 7);
    let mut session = collection.client().start_session().await.unwrap();
    for way in ["update", "find and update", "insert"] {
        session.start_transaction().await.unwrap();
        let set = doc! { "$set": { "mail": "a" } };
        let outcome = match way {
            "update" => {
                let update = guarded.update_one(seven(), set).upsert();
                update.session(&mut session).await.map(drop)
            }
            "insert" => {
                let insert = guarded.insert_one(&doc! { "_id": 7, "mail": "a" });
                insert.session(&mut session).await.map(drop)
            }
            _ => {
                let find = guarded.find_one_and_update(seven(), set).upsert();
                find.session(&mut session).await.map(drop)
            }
        };
        let error = outcome.unwrap_err();
        assert_eq!(code(&error), Some(11_000), "{way}: {error:?}");
        assert!(!error.is_retryable() && !error.is_ambiguous());
        session.abort_transaction().await.unwrap();
    }
}

#[tokio::test]
async fn a_duplicate_of_another_unique_field_is_told_as_such() {
    for engine in BOTH {
        let collection = with_unique_mails(engine).await;
        let guarded = under(&collection, 7);
        let set = doc! { "$set": { "mail": "a" } };
        let error = guarded.update_one(seven(), set).upsert().await.unwrap_err();
        assert_eq!(code(&error), Some(11_000), "{error:?}");
        let error = guarded.insert_one(&doc! { "_id": 7, "mail": "a" }).await;
        assert_eq!(code(&error.unwrap_err()), Some(11_000));
    }
}

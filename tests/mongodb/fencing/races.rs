//! Holders that write at the same time, or too late.

use futures::future::join_all;
use leasehold::{Error, Fence};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
};

use tokio::time::timeout;

use super::{
    super::{
        DATABASE, Engine, Fixture, PATIENCE,
        faults::{FAIL_POINT, failing},
    },
    BOTH, assert_fenced, fence_of, seven, stored, under,
};

/// Transactions that upsert one document at the same time. If the server finds a conflict, the transaction is run
/// again; a stale holder is told that it is fenced off.
#[tokio::test]
async fn upserts_of_transactions_that_race_are_fenced_or_run_again() {
    let collection = Fixture::new(Engine::MongoDbReplicaSet).collection().await;
    // A transaction cannot create a collection while another one waits for it.
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    let upsert = async |fence: i64| {
        let mut session = collection.client().start_session().await.unwrap();
        loop {
            session.start_transaction().await.unwrap();
            let push = doc! { "$push": { "log": fence } };
            let guarded = under(&collection, fence);
            let update = guarded.update_one(seven(), push).upsert();
            match update.session(&mut session).await {
                Ok(_) => match session.commit_transaction().await {
                    Ok(()) => return Some(fence),
                    Err(error) => assert!(error.contains_label("TransientTransactionError")),
                },
                Err(Error::Fenced { .. }) => return None,
                Err(Error::TransactionAborted { .. }) => {
                    session.abort_transaction().await.unwrap();
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    let outcomes = timeout(PATIENCE, join_all((1..=8).rev().map(upsert)));
    let outcomes = outcomes.await.expect("none runs for ever");
    let mut passed: Vec<_> = outcomes.into_iter().flatten().collect();
    passed.sort_unstable();
    let after = stored(&collection).await.unwrap();
    assert_eq!(fence_of(&after), Some(8));
    let log = after.get_array("log").unwrap();
    let log: Vec<_> = log.iter().filter_map(Bson::as_i64).collect();
    assert_eq!(log, passed);
}

/// Two holders write, and the first was paused before its write. Returns whose write is the last one.
async fn late_write(collection: &Collection<Document>, guards: bool) -> String {
    let write = async |fence: i64, by: &str| {
        let set = doc! { "$set": { "by": by } };
        if guards {
            under(collection, fence)
                .update_one(seven(), set)
                .upsert()
                .await
                .is_ok()
        } else {
            collection
                .update_one(seven(), set)
                .upsert(true)
                .await
                .is_ok()
        }
    };
    assert!(write(1, "the first").await);
    assert!(write(2, "the second").await);
    assert_eq!(write(1, "the first").await, !guards);
    let last = stored(collection).await.unwrap();
    last.get_str("by").unwrap().to_owned()
}

#[tokio::test]
async fn a_holder_that_was_paused_does_not_have_the_last_word() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        assert_eq!(late_write(&collection, true).await, "the second");
        // The control: without a guard the late write of the first is the last one.
        collection.delete_many(doc! {}).await.unwrap();
        assert_eq!(late_write(&collection, false).await, "the first");
    }
}

/// A new holder halves a balance. A holder that was paused adds to it, between the read of the new one and its write.
/// Returns how much is missing from the balance afterwards.
async fn halved(collection: &Collection<Document>, claims: bool) -> i64 {
    collection.delete_many(doc! {}).await.unwrap();
    let account = doc! { "_id": 7, "balance": 100_i64 };
    collection.insert_one(account).await.unwrap();
    let new = under(collection, 2);
    let read = if claims {
        new.claim(7).await.unwrap()
    } else {
        stored(collection).await
    };
    let half = read.unwrap().get_i64("balance").unwrap() / 2;
    let add = doc! { "$inc": { "balance": 10_i64 } };
    let paused = under(collection, 1).update_one(seven(), add).await;
    if claims {
        assert_fenced(paused, 1, 2)
    } else {
        assert_eq!(paused.unwrap().modified_count, 1)
    }
    let set = doc! { "$set": { "balance": half } };
    new.update_one(seven(), set).await.unwrap();
    // The difference is an addition that was confirmed and is lost.
    let after = stored(collection).await.unwrap();
    let confirmed = if claims { 0 } else { 10 };
    (100 + confirmed) / 2 - after.get_i64("balance").unwrap()
}

#[tokio::test]
async fn who_claims_before_reading_computes_with_what_is_there() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        assert_eq!(halved(&collection, true).await, 0);
        let lost = halved(&collection, false).await;
        assert!(lost != 0, "the control: a plain read is too early");
    }
}

/// Many holders write at once, in no order, to a document that does not exist yet.
#[tokio::test]
async fn of_upserts_that_race_the_document_sees_them_in_the_order_of_their_fences() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let collection = fixture.collection().await;
        for _ in 0..5 {
            collection.delete_many(doc! {}).await.unwrap();
            let mut fences: Vec<i64> = (1..=32).collect();
            fastrand::shuffle(&mut fences);
            let writes = fences.iter().map(|&fence| {
                let guarded = under(&collection, fence);
                let push = doc! { "$push": { "log": fence } };
                tokio::spawn(async move {
                    match guarded.update_one(seven(), push).upsert().await {
                        Ok(_) => Some(fence),
                        Err(Error::Fenced { seen, .. }) => {
                            assert!(seen.unwrap() > Fence::new(fence));
                            None
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                })
            });
            let outcomes = join_all(writes).await;
            let mut passed: Vec<_> = outcomes.into_iter().filter_map(Result::unwrap).collect();
            passed.sort_unstable();
            let after = stored(&collection).await.unwrap();
            assert_eq!(fence_of(&after), Some(32));
            let log = after.get_array("log").unwrap();
            let log: Vec<_> = log.iter().filter_map(Bson::as_i64).collect();
            // The log has the fences in rising order: those of all holders who were told that they wrote, and no
            // others.
            assert_eq!(log, passed);
        }
    }
}

#[tokio::test]
async fn a_lost_race_of_upserts_is_run_again() {
    let _turn = FAIL_POINT.lock().await;
    let duplicate = doc! {
        "errorCode": 11_000,
        "errorExtraInfo": { "keyPattern": { "_id": 1 }, "keyValue": { "_id": 7 } },
    };
    for (times, passes) in [(1, true), (2, true), (3, false)] {
        let fixture = Fixture::new(Engine::MongoDbReplicaSet);
        let (client, _) = failing(&fixture, times, duplicate.clone()).await;
        let collection = client.database(DATABASE).collection(&fixture.name);
        let set = doc! { "$set": { "a": 1 } };
        let outcome = under(&collection, 7)
            .update_one(seven(), set)
            .upsert()
            .await;
        assert_eq!(outcome.is_ok(), passes, "{outcome:?}");
    }
}

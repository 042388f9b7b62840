//! Collections and filters with which a fence might be stored or compared in another way.

use leasehold::{Error, Fence, fencing::GuardedCollection};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
};

use super::{
    super::{DATABASE, Engine, Fixture, errors::everything},
    BOTH, WRITES, assert_fenced, fence_of, seven, stored, under, written,
};

/// A collection that is made with these options.
async fn made(engine: Engine, options: Document) -> Collection<Document> {
    let collection = Fixture::new(engine).collection().await;
    let mut create = doc! { "create": collection.name() };
    create.extend(options);
    let database = collection.client().database(DATABASE);
    database.run_command(create).await.unwrap();
    collection
}

/// A rule that a document with a fence does not fit.
fn without_fences(action: &str) -> Document {
    let known = doc! { "_id": {}, "state": {} };
    let rule = doc! { "$jsonSchema": { "properties": known, "additionalProperties": false } };
    doc! { "validator": rule, "validationAction": action }
}

#[tokio::test]
async fn what_changes_no_fence_changes_no_guard() {
    let english = doc! { "locale": "en", "strength": 1, "numericOrdering": true };
    for engine in BOTH {
        for options in [
            doc! { "collation": english.clone() },
            doc! { "capped": true, "size": 1_000_000 },
            without_fences("warn"),
            doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true } },
        ] {
            let collection = made(engine, options.clone()).await;
            for kind in WRITES {
                assert!(written(&collection, kind, Some(6), None).await.unwrap());
                let late = written(&collection, kind, Some(8), None).await;
                assert_fenced(late, 7, 8);
            }
            collection.delete_many(doc! {}).await.unwrap();
            under(&collection, 8).insert_one(&seven()).await.unwrap();
            let late = under(&collection, 7).insert_one(&seven()).await;
            assert_fenced(late, 7, 8);
            assert_eq!(
                stored(&collection).await.as_ref().and_then(fence_of),
                Some(8)
            );
        }
    }
}

/// For the collation both ids are one, and for the guard too.
#[tokio::test]
async fn an_id_that_a_collation_takes_for_another_is_guarded_with_it() {
    let english = doc! { "locale": "en", "strength": 2 };
    for engine in BOTH {
        let collection = made(engine, doc! { "collation": english.clone() }).await;
        let [small, large] = ["a", "A"].map(|id| doc! { "_id": id, "state": "new" });
        under(&collection, 8).insert_one(&small).await.unwrap();
        let late = under(&collection, 7);
        assert_fenced(late.insert_one(&large).await, 7, 8);
        let set = || doc! { "$set": { "state": "late" } };
        let id = || doc! { "_id": "A" };
        assert_fenced(late.update_one(id(), set()).await, 7, 8);
        assert_fenced(late.update_one(id(), set()).upsert().await, 7, 8);
        assert_fenced(late.claim_or_insert("A", &large).await, 7, 8);
    }
}

#[tokio::test]
async fn where_a_fence_cannot_be_stored_nothing_is() {
    for engine in BOTH {
        let strict = made(engine, without_fences("error")).await;
        let view = made(engine, doc! { "viewOn": "orders", "pipeline": [] }).await;
        for (collection, reason) in [(strict, "validation"), (view, "view")] {
            let guarded = under(&collection, 7);
            let set = || doc! { "$set": { "state": "new" } };
            let refusals = [
                guarded.insert_one(&seven()).await.map(drop),
                guarded.update_one(seven(), set()).upsert().await.map(drop),
                guarded
                    .replace_one(seven(), &doc! {})
                    .upsert()
                    .await
                    .map(drop),
                guarded.claim_or_insert(7, &doc! {}).await.map(drop),
            ];
            for refused in refusals {
                let error = refused.unwrap_err();
                assert!(matches!(error, Error::Store { .. }), "{error:?}");
                assert!(!error.is_retryable() && !error.is_ambiguous());
                let text = everything(&error);
                assert!(text.contains(reason), "{text}");
            }
            let left = collection.count_documents(doc! {}).await.unwrap();
            assert_eq!(left, 0);
        }
    }
}

/// An id can be there twice in a time series, so a late insert would meet no document with a fence.
#[tokio::test]
async fn an_insert_into_a_time_series_is_refused_before_it_is_sent() {
    for engine in BOTH {
        let series = made(engine, doc! { "timeseries": { "timeField": "at" } }).await;
        let point = || doc! { "_id": 7, "at": mongodb::bson::DateTime::from_millis(0) };
        for fence in [8, 7] {
            let guarded: GuardedCollection<Document> =
                GuardedCollection::new(&series, Fence::new(fence));
            for _ in 0..2 {
                let error = guarded.insert_one(&point()).await.unwrap_err();
                let text = everything(&error);
                assert!(text.contains("time series"), "{engine:?}: {text}");
                assert!(!error.is_retryable() && !error.is_ambiguous());
            }
            // The server refuses the other writes itself.
            let set = doc! { "$set": { "state": "new" } };
            let update = guarded.update_one(seven(), set.clone()).await;
            assert!(matches!(update, Err(Error::Store { .. })), "{update:?}");
            let update = guarded.update_one(seven(), set).upsert().await;
            assert!(matches!(update, Err(Error::Store { .. })), "{update:?}");
            let claim = guarded.claim_or_insert(7, &point()).await;
            assert!(matches!(claim, Err(Error::Store { .. })), "{claim:?}");
            let replaced = guarded.replace_one(seven(), &point()).await;
            assert!(matches!(replaced, Err(Error::Store { .. })), "{replaced:?}");
        }
        assert_eq!(series.count_documents(doc! {}).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_filter_that_names_a_fence_names_none_for_the_guard() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        let set = || doc! { "$set": { "state": "new" } };
        for named in [
            Bson::Int64(3),
            doc! { "part": 3 }.into(),
            vec![3, 99].into(),
        ] {
            collection.delete_many(doc! {}).await.unwrap();
            let filter = |fence: &Bson| doc! { "_id": 7, "leasehold_fence": fence };
            let update = under(&collection, 7)
                .update_one(filter(&named), set())
                .upsert();
            let inserted = update.await;
            // The server may refuse what the filter would put in the place of the fence.
            if inserted.is_ok() {
                let found = stored(&collection).await;
                assert_eq!(found.as_ref().and_then(fence_of), Some(7), "{named}");
            } else {
                assert_eq!(stored(&collection).await, None, "{named}");
                under(&collection, 7).insert_one(&seven()).await.unwrap();
            }
            for late in [Bson::Int64(6), Bson::Int64(7), named] {
                let update = under(&collection, 6).update_one(filter(&late), set());
                assert_fenced(update.upsert().await, 6, 7);
            }
        }
    }
}

/// Whatever was there before, the first guarded write leaves a number.
#[tokio::test]
async fn a_list_in_the_place_of_the_fence_counts_by_its_numbers() {
    for engine in BOTH {
        let collection = Fixture::new(engine).collection().await;
        for (there, passes) in [
            (Bson::from(vec![5_i64, 7]), true),
            (vec![5_i64, 8].into(), false),
            (Vec::<i64>::new().into(), true),
            (doc! { "part": 8 }.into(), true),
            (Bson::Double(8.5), false),
            (Bson::Double(f64::NAN), true),
            (Bson::Null, true),
        ] {
            for update in [true, false] {
                collection.delete_many(doc! {}).await.unwrap();
                let document = doc! { "_id": 7, "leasehold_fence": there.clone() };
                collection.insert_one(document).await.unwrap();
                let guarded = under(&collection, 7);
                let set = doc! { "$set": { "state": "new" } };
                let outcome = match update {
                    true => guarded.update_one(seven(), set).await,
                    false => guarded.update_one(seven(), vec![set]).await,
                };
                if passes {
                    outcome.unwrap();
                    let found = stored(&collection).await;
                    assert_eq!(found.as_ref().and_then(fence_of), Some(7), "{there}");
                    let late = under(&collection, 6).claim(7).await;
                    assert_fenced(late, 6, 7);
                } else {
                    assert!(matches!(outcome, Err(Error::Fenced { .. })), "{there}");
                }
            }
        }
    }
}

//! How a guarded write is sent, and faults on its way.

use std::{error::Error as _, time::Duration};

use futures::FutureExt;
use leasehold::{Error, Fence, fencing::GuardedCollection};
use leasehold_tests::proxy::Proxy;
use mongodb::{
    Collection,
    bson::{Document, doc},
    options::{ClientOptions, CollectionOptions, WriteConcern},
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{
    super::{
        DATABASE, Engine, Fixture, PATIENCE,
        faults::{FAIL_POINT, failing},
    },
    BOTH, WRITES, fence_of, seven, stored, under,
};

#[tokio::test]
async fn a_write_is_acknowledged_by_a_majority_whatever_the_collection_says() {
    let (watched, commands) = Fixture::new(Engine::MongoDbReplicaSet).watched().await;
    let one = CollectionOptions::builder()
        .write_concern(WriteConcern::nodes(1))
        .build();
    let database = watched.client().database(DATABASE);
    let collection: Collection<Document> = database.collection_with_options(watched.name(), one);
    for (write, upsert) in WRITES {
        let guarded = under(&collection, 7);
        write.send(upsert, &guarded, None).await.unwrap();
    }
    under(&collection, 7)
        .insert_one(&doc! { "_id": 1 })
        .await
        .unwrap();
    let sent = commands.take();
    let writes: Vec<_> = sent
        .iter()
        .filter(|sent| !sent.contains_key("find"))
        .collect();
    assert_eq!(writes.len(), WRITES.len() + 1);
    for write in writes {
        let concern = write.get_document("writeConcern").unwrap();
        assert_eq!(concern.get_str("w"), Ok("majority"));
        assert!(concern.contains_key("wtimeout"), "{concern}");
    }
}

#[tokio::test]
async fn a_write_that_the_driver_sends_again_is_one_write() {
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let server = fixture.options().await.hosts[0].to_string();
    let proxy = Proxy::to(server).await;
    let options = fixture.options_at(proxy.address, "").await;
    let collection = fixture.collection_with(options);
    collection.insert_one(seven()).await.unwrap();
    proxy.lose_the_answer_to("update");
    let add = doc! { "$inc": { "n": 1 } };
    let guarded = under(&collection, 7);
    let answer = guarded.update_one(seven(), add.clone()).await.unwrap();
    assert_eq!((proxy.cuts(), answer.matched_count), (1, 1));
    proxy.lose_the_answer_to("findAndModify");
    let found = guarded.find_one_and_update(seven(), add).await.unwrap();
    assert_eq!(proxy.cuts(), 2);
    assert_eq!(found.unwrap().get_i32("n"), Ok(2));
}

#[tokio::test]
async fn a_write_without_a_majority_is_ambiguous() {
    let _turn = FAIL_POINT.lock().await;
    let fixture = Fixture::new(Engine::MongoDbReplicaSet);
    let no_majority = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } };
    let (client, _) = failing(&fixture, 1, no_majority).await;
    let collection = client.database(DATABASE).collection(&fixture.name);
    collection.insert_one(seven()).await.unwrap();
    let guarded = under(&collection, 7);
    let set = || doc! { "$set": { "a": 1 } };
    let error = guarded.update_one(seven(), set()).await.unwrap_err();
    assert!(error.is_retryable() && error.is_ambiguous(), "{error:?}");
    // A write with the same fence passes again.
    guarded.update_one(seven(), set()).await.unwrap();
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_is_carried_out() {
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let collection = fixture.collection().await;
        collection.insert_one(seven()).await.unwrap();
        // The client has no connection yet, so the first poll of the write cannot have sent
        // anything.
        let guarded = under(&fixture.collection().await, 7);
        let set = doc! { "$set": { "a": 1 } };
        let write = guarded.update_one(seven(), set).into_future();
        assert!(write.now_or_never().is_none());
        let start = Instant::now();
        while fence_of(&stored(&collection).await.unwrap()) != Some(7) {
            assert!(start.elapsed() < PATIENCE, "it was dropped");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn the_types_of_the_application_are_written_and_read_as_by_the_driver() {
    #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
    struct Order {
        _id: i32,
        address: std::net::IpAddr,
        items: Vec<String>,
    }
    let order = Order {
        _id: 7,
        address: [127, 0, 0, 1].into(),
        items: vec!["$$ROOT".to_owned()],
    };
    for engine in BOTH {
        let fixture = Fixture::new(engine);
        let plain = fixture.collection().await;
        let orders = plain.clone_with_type::<Order>();
        let guarded = GuardedCollection::new(&orders, Fence::new(7));
        orders.insert_one(&order).await.unwrap();
        let mut by_the_driver = stored(&plain).await.unwrap();
        by_the_driver.insert("leasehold_fence", 7_i64);

        assert_eq!(guarded.claim(7).await.unwrap().as_ref(), Some(&order));
        let replaced = guarded.replace_one(seven(), &order).await.unwrap();
        assert_eq!(replaced.matched_count, 1);
        assert_eq!(stored(&plain).await.as_ref(), Some(&by_the_driver));
        guarded.delete_one(seven()).await.unwrap();
        guarded.insert_one(&order).await.unwrap();
        assert_eq!(stored(&plain).await, Some(by_the_driver));
        assert_eq!(orders.find_one(seven()).await.unwrap(), Some(order.clone()));
    }
}

#[tokio::test]
async fn a_claim_inserts_the_document_that_is_not_there() {
    #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
    struct Order {
        _id: i32,
        total: i32,
    }
    for engine in BOTH {
        let plain = Fixture::new(engine).collection().await;
        let guarded =
            |fence| GuardedCollection::new(&plain.clone_with_type::<Order>(), Fence::new(fence));
        assert_eq!(guarded(7).claim(7).await.unwrap(), None);
        assert_eq!(stored(&plain).await, None, "a claim alone inserts nothing");
        // The document gets the `_id` that the call names, whatever `_id` the value has.
        let first = Order { _id: 8, total: 1 };
        let claimed = guarded(7).claim_or_insert(7, &first).await.unwrap();
        let order = Order { _id: 7, total: 1 };
        assert_eq!(claimed.as_ref(), Some(&order));
        assert_eq!(fence_of(&stored(&plain).await.unwrap()), Some(7));
        // An existing document keeps its state.
        let other = Order { _id: 7, total: 2 };
        let claimed = guarded(8).claim_or_insert(7, &other).await.unwrap();
        assert_eq!(claimed, Some(order));
        assert_eq!(fence_of(&stored(&plain).await.unwrap()), Some(8));
        let late = guarded(7).claim_or_insert(7, &other).await;
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
    }
}

/// The write is carried out all the same, as the documentation says.
#[tokio::test]
async fn a_document_that_is_not_of_the_type_is_named() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        total: i32,
    }
    let plain = Fixture::new(Engine::MongoDbReplicaSet).collection().await;
    let text = doc! { "_id": 7, "total": "much" };
    plain.insert_one(text).await.unwrap();
    let guarded = GuardedCollection::new(&plain.clone_with_type::<Order>(), Fence::new(7));
    let error = guarded.claim(7).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    assert!(!error.is_retryable() && !error.is_ambiguous());
    let said = error.source().map(ToString::to_string).unwrap_or_default();
    assert!(said.contains("invalid type"), "{said}");
    assert_eq!(fence_of(&stored(&plain).await.unwrap()), Some(7));
    let set = doc! { "$set": { "total": 1 } };
    let found = guarded.find_one_and_update(seven(), set).await;
    assert_eq!(found.unwrap(), Some(Order { total: 1 }));
}

#[tokio::test]
async fn an_error_shows_no_credentials() {
    let uri = "mongodb://somebody:hunter2@127.0.0.1:1";
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.server_selection_timeout = Some(Duration::from_millis(200));
    let collection = Fixture::new(Engine::MongoDb).collection_with(options);
    let guarded = under(&collection, 7);
    let error = guarded.claim(7).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let shown = format!("{error} {error:?} {:?} {guarded:?}", error.source());
    assert!(!shown.contains("hunter2"), "{shown}");
}

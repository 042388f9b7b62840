//! Documents that are damaged locks or no locks at all, and every operation on each of them.

use std::sync::Arc;

use futures::future::join_all;
use leasehold::{MongoStore, Store};
use leasehold_tests::{
    hostile::{
        Has, KEY, LEASE, OWNER, Verdict, are_judged_alike, are_not_purged, flat, limiters,
        queue_shapes, several, shapes, sound_shapes, tick_shapes, twin_places, untyped_shapes,
        with_times,
    },
    long,
};
use mongodb::{
    bson::{Bson, DateTime, Document, doc, oid::ObjectId},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use serde_json::{Value, json};

use super::{DATABASE, Engine, Fixture};

/// The shape as a document of this store.
fn of_shape(shape: &Value) -> Document {
    let now = DateTime::now().timestamp_millis();
    let time =
        |seconds: i64| json!({ "$date": { "$numberLong": (now + seconds * 1_000).to_string() } });
    let Bson::Document(mut document) = Bson::try_from(with_times(shape, &time)).unwrap() else {
        panic!("{shape} is no document");
    };
    document.remove("key");
    document.insert("_id", KEY);
    document
}

/// Shapes with types that JSON does not have.
fn shapes_of_bson() -> Vec<(Verdict, Document)> {
    let far = DateTime::from_millis(i64::MAX);
    let mut shapes = Vec::new();
    for nonsense in [
        Bson::MinKey,
        Bson::MaxKey,
        Bson::ObjectId(Default::default()),
        Bson::Timestamp(mongodb::bson::Timestamp {
            time: u32::MAX,
            increment: 0,
        }),
    ] {
        for field in ["schema", "fence", "expires_at"] {
            for mut document in [flat(), several()].map(|shape| of_shape(&shape)) {
                document.insert(field, nonsense.clone());
                shapes.push((Verdict::NoLock, document));
            }
        }
    }
    let sole = |fence| Verdict::Lock(Has { fence, ..Has::SOLE });
    let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
    for (field, value, verdict) in [
        ("fence", Bson::Double(f64::NAN), sole(0)),
        ("fence", Bson::Double(f64::INFINITY), Verdict::NoLock),
        ("fence", Bson::Double(f64::NEG_INFINITY), sole(i64::MIN)),
        ("fence", Bson::Int32(7), sole(7)),
        ("fence", decimal("7.5"), sole(7)),
        ("fence", decimal("1E+300"), Verdict::NoLock),
        ("fence", decimal("9007199254740990.9"), sole((1 << 53) - 2)),
        ("fence", far.into(), Verdict::NoLock),
        ("fence", Bson::Undefined, sole(0)),
        ("expires_at", far.into(), sole(7)),
        (
            "expires_at",
            DateTime::from_millis(i64::MIN).into(),
            Verdict::Lock(Has::OVER),
        ),
        ("expires_at", Bson::Undefined, Verdict::Lock(Has::OVER)),
        ("acquired_at", far.into(), sole(7)),
        ("lease", Bson::Undefined, Verdict::NoLock),
        ("lease", Bson::MinKey, Verdict::NoLock),
    ] {
        let mut document = of_shape(&flat());
        document.insert(field, value);
        shapes.push((verdict, document));
    }
    // The value of `lease` counts as missing, so the list of holders counts.
    for nothing in [Bson::Undefined, Bson::MinKey, Bson::Null] {
        let mut document = of_shape(&several());
        document.insert("lease", nothing);
        shapes.push((Verdict::Lock(Has::BOTH), document));
    }
    for nonsense in [Bson::MinKey, Bson::MaxKey] {
        let mut document = of_shape(&several());
        let holders = document.get_array_mut("holders").unwrap();
        holders[0]
            .as_document_mut()
            .unwrap()
            .insert("fence", nonsense);
        shapes.push((Verdict::NoLock, document));
    }
    let foreign = doc! { "_id": KEY, "name": "an order", "total": 12 };
    shapes.push((Verdict::NoLock, foreign));
    shapes
}

/// Tries the documents in several collections at the same time, because one after the other takes minutes.
async fn are_judged_alike_on(engine: Engine, shapes: &[(Verdict, Document)]) {
    are_judged_alike_by(engine, |store| store, shapes).await;
}

async fn are_judged_alike_by(
    engine: Engine,
    dialect: fn(MongoStore) -> MongoStore,
    shapes: &[(Verdict, Document)],
) {
    const PARTS: usize = 4;
    let parts = shapes.chunks(shapes.len().div_ceil(PARTS));
    join_all(parts.map(|part| a_part_is_judged_alike_by(engine, dialect, part))).await;
}

async fn a_part_is_judged_alike_by(
    engine: Engine,
    dialect: fn(MongoStore) -> MongoStore,
    shapes: &[(Verdict, Document)],
) {
    let fixture = Fixture::new(engine);
    let store: Arc<dyn Store> = Arc::new(dialect(fixture.store().await));
    // The writes of the test itself need not survive a crash.
    let hasty = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    let hasty = CollectionOptions::builder().write_concern(hasty).build();
    let database = fixture.collection().await.client().database(DATABASE);
    let collection = database.collection_with_options::<Document>(&fixture.name, hasty);
    // The shapes are compared as texts: a document with NaN as its fence is not equal to itself.
    let texts = shapes.iter();
    let texts = texts.map(|(verdict, document)| (*verdict, document.to_string()));
    let texts: Vec<_> = texts.collect();
    let id = doc! { "_id": KEY };
    let put = async |text: &String| {
        let place = texts.iter().position(|(_, it)| it == text).unwrap();
        let replaced = collection.replace_one(id.clone(), &shapes[place].1);
        replaced.upsert(true).await.unwrap();
        true
    };
    let get = async || {
        let mut found = collection.find_one(id.clone()).await.unwrap()?;
        // The classic dialect learns the server's time by a write of this field.
        if found
            .get_str("schema")
            .is_ok_and(|schema| schema.starts_with("leasehold.classic."))
        {
            found.remove("asked_at");
        }
        Some(found.to_string())
    };
    let taken = are_judged_alike(&store, &texts, put, get).await;
    assert_eq!(taken, shapes.len());
    are_not_purged(&store, &texts, put, get).await;
}

fn of_json(shapes: Vec<(Verdict, Value)>) -> Vec<(Verdict, Document)> {
    // A document with nothing but the key is left out: it is what an acquire makes first.
    let shapes = shapes
        .iter()
        .filter(|(_, shape)| *shape != json!({ "key": KEY }));
    shapes
        .map(|(verdict, shape)| (*verdict, of_shape(shape)))
        .collect()
}

/// In a short run one of so many documents.
fn one_of<T>(many: usize, documents: Vec<T>) -> Vec<T> {
    let step = if long() { 1 } else { many };
    documents.into_iter().step_by(step).collect()
}

#[tokio::test]
async fn hostile_documents_are_judged_alike_by_every_operation() {
    let mut all = of_json(shapes());
    all.extend(of_json(untyped_shapes()));
    all.extend(of_json(queue_shapes()));
    all.extend(of_json(tick_shapes()));
    all.extend(shapes_of_bson());
    are_judged_alike_on(Engine::MongoDb, &one_of(3, all)).await;
}

/// The replica set has another version of the server, and takes longer for each write.
#[tokio::test]
async fn hostile_documents_are_judged_alike_on_a_replica_set() {
    let mut some = of_json(sound_shapes());
    some.extend(shapes_of_bson());
    are_judged_alike_on(Engine::MongoDbReplicaSet, &one_of(2, some)).await;
}

#[tokio::test]
async fn a_place_that_stands_twice_is_judged_as_the_rules_say() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store = fixture.store().await;
    let collection = fixture.collection().await;
    let put = async |document: &Value| {
        let replaced = collection.replace_one(doc! { "_id": KEY }, of_shape(document));
        replaced.upsert(true).await.unwrap();
    };
    twin_places::are_judged_as_the_rules_say(&store, put).await;
}

/// Documents of the classic dialect: sound and damaged ones, and one of another version.
fn classic_shapes() -> Vec<(Verdict, Document)> {
    let long_ago = DateTime::from_millis(DateTime::now().timestamp_millis() - 60_000);
    let classic = |fields: Document| {
        let mut document = doc! {
            "_id": KEY, "schema": "leasehold.classic.1", "version": ObjectId::new(), "fence": 7_i64,
        };
        document.extend(fields);
        document
    };
    let free = || doc! { "free": true, "released_at": long_ago };
    let stamped = || {
        doc! {
            "lease": LEASE, "owner": OWNER, "ttl": 6_000_000_i64, "acquired_at": long_ago,
            "renewed_at": long_ago,
        }
    };
    let mut shapes = vec![
        (Verdict::Lock(Has::NOBODY), free()),
        (Verdict::Lock(Has::SOLE), stamped()),
        (Verdict::NoLock, doc! { "state": 5 }),
        (Verdict::NoLock, doc! { "state": 5, "fence": 0_i64 }),
        (Verdict::NoLock, doc! {}),
    ];
    let damaged = |form: Document, changes: Vec<Document>| {
        let damaged = changes.into_iter().map(move |change| {
            let mut document = form.clone();
            document.extend(change);
            (Verdict::NoLock, document)
        });
        damaged.collect::<Vec<_>>()
    };
    let fences = [
        doc! { "fence": -3_i64 },
        doc! { "fence": 5.0 },
        doc! { "fence": 5_i32 },
        doc! { "fence": 1_i64 << 53 },
    ];
    shapes.extend(damaged(free(), fences.to_vec()));
    let changes = vec![
        doc! { "released_at": "soon" },
        doc! { "released_at": [long_ago] },
        doc! { "free": [true] },
        doc! { "fence": [7_i64] },
        doc! { "state": 5 },
    ];
    shapes.extend(damaged(free(), changes));
    shapes.extend(damaged(stamped(), fences.to_vec()));
    let changes = vec![
        doc! { "lease": "they" },
        doc! { "lease": [LEASE] },
        doc! { "fence": [7_i64] },
        doc! { "state": 5 },
        doc! { "acquired_at": [long_ago] },
        doc! { "ttl": 30_000_i32 },
        doc! { "ttl": -1_i64 },
        doc! { "acquired_at": "soon" },
        doc! { "renewed_at": Bson::Null },
    ];
    shapes.extend(damaged(stamped(), changes));
    let later = doc! { "schema": "leasehold.classic.2" };
    let versions = [free(), stamped()].map(|form| {
        let mut document = form;
        document.extend(later.clone());
        (Verdict::OtherVersion, document)
    });
    shapes.extend(versions);
    let shapes = shapes.into_iter();
    shapes
        .map(|(verdict, fields)| (verdict, classic(fields)))
        .collect()
}

#[tokio::test]
async fn hostile_documents_of_the_classic_dialect_are_judged_alike() {
    let shapes = classic_shapes();
    are_judged_alike_by(Engine::MongoDb, MongoStore::without_pipelines, &shapes).await;
}

/// Limiters with types that JSON does not have.
fn limiters_of_bson(kind: limiters::Kind) -> Vec<(limiters::Verdict, Document)> {
    use limiters::Verdict::{NoLimiter, Used, UsedBy};
    let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
    let [used, full] = [3, 10].map(|permits| of_shape(&kind.used(permits)));
    let three = used
        .get_i64("used")
        .or(used.get_i32("used").map(i64::from))
        .unwrap();
    let mut shapes = Vec::new();
    for (field, value, verdict) in [
        ("used", Bson::Int64(three), Used(3)),
        ("used", decimal(&three.to_string()), Used(3)),
        ("used", decimal("1E+300"), NoLimiter),
        ("limiter", decimal("1"), Used(3)),
        ("granted", Bson::Int64(2), Used(3)),
        (
            "granted_at",
            DateTime::from_millis(i64::MAX).into(),
            UsedBy(0),
        ),
        (
            "granted_at",
            DateTime::from_millis(i64::MIN).into(),
            UsedBy(0),
        ),
        ("over_at", DateTime::from_millis(i64::MIN).into(), Used(3)),
        ("last", Bson::MinKey, UsedBy(3)),
    ] {
        let mut document = used.clone();
        document.insert(field, value);
        shapes.push((verdict, document));
    }
    for nonsense in [
        Bson::MinKey,
        Bson::MaxKey,
        Bson::Undefined,
        Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY),
        Bson::Double(f64::NEG_INFINITY),
        DateTime::from_millis(3).into(),
    ] {
        for field in ["limiter", "used", "granted"] {
            for mut document in [used.clone(), full.clone()] {
                document.insert(field, nonsense.clone());
                shapes.push((NoLimiter, document));
            }
        }
    }
    shapes
}

#[tokio::test]
async fn hostile_limiters_are_judged_alike() {
    let fixture = Fixture::new(Engine::MongoDb);
    let store: Arc<dyn Store> = Arc::new(fixture.store().await);
    let collection = fixture.collection().await;
    for kind in limiters::kinds() {
        let id = doc! { "limiter": KEY, "window": kind.window, "kind": kind.word };
        let shapes = kind.shapes();
        let shapes = shapes
            .iter()
            .map(|(verdict, shape)| (*verdict, of_shape(shape)));
        let shapes = shapes
            .chain(limiters_of_bson(kind))
            .map(|(verdict, mut document)| {
                document.insert("_id", id.clone());
                document.remove("window");
                document.remove("kind");
                (verdict, document)
            });
        let shapes: Vec<_> = shapes.collect();
        // The shapes are compared as texts, as above.
        let texts = shapes.iter();
        let texts = texts.map(|(verdict, document)| (*verdict, document.to_string()));
        let texts: Vec<_> = texts.collect();
        let id = doc! { "_id": id };
        let put = async |text: &String| {
            let place = texts.iter().position(|(_, it)| it == text).unwrap();
            let replaced = collection.replace_one(id.clone(), &shapes[place].1);
            replaced.upsert(true).await.unwrap();
            true
        };
        let get = async || {
            let found = collection.find_one(id.clone()).await.unwrap();
            found.map(|found| found.to_string())
        };
        let taken = limiters::are_judged_alike(&store, kind, &texts, put, get).await;
        assert_eq!(taken, shapes.len());
    }
}

//! What `leasehold doctor` reports about a store.

use std::time::Instant;

use leasehold::store::LeaseId;
use leasehold_tests::{disguise::Disguise, engine::Engine};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use serde_json::json;
use tokio::runtime::Runtime;

use super::Place;

#[test]
fn the_doctor_tells_what_kind_of_mongodb_it_is() {
    for (engine, topology) in [
        (Engine::MongoDb, "standalone"),
        (Engine::MongoDbReplicaSet, "replica set"),
        (Engine::MongoDbSharded, "sharded"),
    ] {
        let found = Place::on(engine).json(["doctor", "--json"]);
        let findings = found["findings"].as_array().unwrap();
        let kind = findings.iter().find(|it| it["what"] == "kind").unwrap();
        assert_eq!(kind["value"]["topology"], topology, "{found:#}");
        let releases = findings.iter().find(|it| it["what"] == "releases").unwrap();
        let is_told = topology == "replica set";
        assert_eq!(releases["value"]["told"], is_told, "{found:#}");
    }
}

/// The clock of the second router of the cluster is a minute ahead.
#[test]
fn the_doctor_shows_the_clocks_of_the_routers() {
    let place = Place::on(Engine::MongoDbSharded);
    let (_, hosts) = place.0.split_once("://").unwrap();
    let hosts = hosts.split('/').next().unwrap();
    let (first, second) = hosts.split_once(',').unwrap();
    let found = place.json(["doctor", "--json"]);
    let findings = found["findings"].as_array().unwrap();
    let routers = findings.iter().find(|it| it["what"] == "routers").unwrap();
    assert_eq!(routers["grade"], "mind", "{found:#}");
    let clocks = routers["value"].as_array().unwrap();
    assert_eq!(clocks.len(), 2, "{found:#}");
    let number = |router: &str, name: &str| {
        let router = clocks.iter().find(|it| it["address"] == router);
        router.unwrap()[name].as_i64().unwrap()
    };
    let apart = number(second, "ahead_ms") - number(first, "ahead_ms");
    // On a busy machine the answers are slow, and tell so.
    let wrong = number(first, "give_or_take_ms") + number(second, "give_or_take_ms");
    assert!((apart - 60_000).abs() <= wrong + 1_000, "{found:#}");
    // The cluster works all the same.
    assert_eq!(found["healthy"], true, "{found:#}");

    let alone = Place::on(Engine::MongoDb).json(["doctor", "--json"]);
    let findings = alone["findings"].as_array().unwrap();
    assert!(
        findings.iter().all(|it| it["what"] != "routers"),
        "{alone:#}"
    );
}

/// A store without pipelines. A sharded cluster before 8.3 makes the command choose this; elsewhere `classic+` in the
/// address does.
#[test]
fn without_pipelines_everything_works_but_removal_by_an_index() {
    let chosen = Place::on(Engine::MongoDb).0;
    let chosen = Place(format!("classic+{chosen}"));
    for place in [chosen, Place::on(Engine::MongoDbSharded)] {
        place.leasehold(["prepare"]).with(0);
        let found = place.json(["doctor", "--json"]);
        let findings = found["findings"].as_array().unwrap();
        let prepared = findings.iter().find(|it| it["what"] == "prepared").unwrap();
        assert_eq!(prepared["grade"], "good", "{found:#}");
        let text = prepared["text"].as_str().unwrap();
        assert!(text.contains("purge"), "{text}");
        let said = place.leasehold(["run", "key", "--", "echo", "done"]);
        assert_eq!(said.with(0).trim(), "done");
    }
}

/// An engine without TTL indexes and change streams, like some engines that speak MongoDB's protocol.
#[test]
fn what_an_engine_lacks_is_said_in_a_sentence() {
    let engine = Place::on(Engine::MongoDbReplicaSet).0;
    let runtime = Runtime::new().unwrap();
    let bare = runtime.block_on(Disguise::Bare.of(&engine));
    let place = Place(bare.replace("/?", &format!("/doctor-{}?", LeaseId::random())));
    let refused = place.leasehold(["prepare"]);
    let said = refused.saying(78);
    assert!(
        said.contains("TTL index") && said.contains("purge"),
        "{said}"
    );
    let found = place.json(["doctor", "--json"]);
    assert_eq!(found["healthy"], true, "{found:#}");
    let findings = found["findings"].as_array().unwrap();
    let releases = findings.iter().find(|it| it["what"] == "releases").unwrap();
    assert_eq!(releases["grade"], "mind", "{found:#}");
    let text = releases["text"].as_str().unwrap();
    assert!(text.contains("Change streams are not supported"), "{text}");
    assert_eq!(
        place
            .leasehold(["run", "key", "--", "echo", "done"])
            .with(0)
            .trim(),
        "done"
    );
}

/// The server drops documents from a capped collection, including those of live locks.
#[test]
fn the_doctor_tells_of_a_capped_collection() {
    let place = Place::on(Engine::MongoDb);
    let made = async {
        let client = Client::with_uri_str(&place.0).await.unwrap();
        let database = client.default_database().unwrap();
        let capped = database.create_collection("locks").capped(true).size(4096);
        capped.await.unwrap();
    };
    Runtime::new().unwrap().block_on(made);
    let ended = place.leasehold(["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_str(ended.with(1)).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let prepared = findings.iter().find(|it| it["what"] == "prepared").unwrap();
    assert_eq!(prepared["grade"], "bad", "{found:#}");
    let refused = place.leasehold(["prepare"]);
    for said in [prepared["text"].as_str().unwrap(), refused.saying(78)] {
        assert!(said.contains("capped"), "{said}");
    }
}

/// An index of the application that would remove locks that are held, a validator that refuses them, and the database of
/// a server that is not replicated.
#[test]
fn what_locks_cannot_work_with_is_told_by_everything_that_uses_it() {
    let name = |place: &Place| {
        let (before, options) = place.0.split_once('?').unwrap();
        let (hosts, _) = before.rsplit_once('/').unwrap();
        Place(format!("{hosts}/local.{}?{options}", LeaseId::random()))
    };
    let change = |place: &Place, change: Document| {
        let made = async {
            let client = Client::with_uri_str(&place.0).await.unwrap();
            let database = client.default_database().unwrap();
            database.create_collection("locks").await.unwrap();
            database.run_command(change).await.unwrap();
        };
        Runtime::new().unwrap().block_on(made);
    };
    let [index, validator, local] = [(); 3].map(|()| Place::on(Engine::MongoDbReplicaSet));
    let theirs = doc! { "key": { "expires_at": 1 }, "name": "theirs", "expireAfterSeconds": 60 };
    change(
        &index,
        doc! { "createIndexes": "locks", "indexes": [theirs] },
    );
    let rule = doc! { "$jsonSchema": { "required": ["never there"] } };
    change(&validator, doc! { "collMod": "locks", "validator": rule });
    for (place, problem) in [
        (index, "TTL index theirs"),
        (validator, "validator"),
        (name(&local), "local"),
    ] {
        let ended = place.leasehold(["doctor", "--json"]);
        let found: serde_json::Value = serde_json::from_str(ended.with(1)).unwrap();
        let findings = found["findings"].as_array().unwrap();
        let mut bad = findings.iter().filter(|it| it["grade"] == "bad");
        let is_told = bad.any(|it| it["text"].as_str().unwrap().contains(problem));
        assert!(is_told, "{found:#}");
        let run = ["run", "job", "--", "true"];
        for ended in [place.leasehold(["prepare"]), place.leasehold(run)] {
            let said = ended.saying(78);
            assert!(
                said.contains(problem) && said.contains("`leasehold prepare`"),
                "{said}"
            );
        }
        assert_eq!(place.json(["ls", "--all", "--json"]), json!([]));
    }
}

/// A user with read access only.
#[test]
fn the_doctor_tells_what_is_not_allowed() {
    let address = Engine::MongoDbSecured.address();
    let name = format!("reader-{}", LeaseId::random());
    let read = doc! { "role": "read", "db": &name };
    let user = doc! { "createUser": &name, "pwd": "hunter2", "roles": [read] };
    let made = async {
        let superuser = Client::with_uri_str(&address).await.unwrap();
        let admin = superuser.database("admin");
        admin.run_command(user).await.unwrap();
    };
    Runtime::new().unwrap().block_on(made);
    let (_, host) = address.rsplit_once('@').unwrap();
    let host = host.split(['/', '?']).next().unwrap();
    let options = "authSource=admin&directConnection=true";
    let place = Place(format!("mongodb://{name}:hunter2@{host}/{name}?{options}"));

    let ended = place.leasehold(["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_str(ended.with(1)).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let finding = |what| findings.iter().find(|it| it["what"] == what).unwrap();
    assert_eq!(finding("reachable")["grade"], "good", "{found:#}");
    assert_eq!(finding("allowed")["grade"], "bad", "{found:#}");
    let text = finding("allowed")["text"].as_str().unwrap();
    assert!(
        text.starts_with("no, an acquire failed") && text.contains("roles"),
        "{text}"
    );
    place.leasehold(["run", "job", "--", "true"]).saying(77);
    place.leasehold(["ls"]).with(0);
    let other = Place(place.0.replace("hunter2", "wrong"));
    for ended in [ended, other.leasehold(["doctor"]), other.leasehold(["ls"])] {
        let all = ended.all();
        assert!(!all.contains("hunter2") && !all.contains("wrong"), "{all}");
    }
}

pub fn finds_no_index(place: &Place, grade: &str) {
    let found = place.json(["doctor", "--json"]);
    let findings = found["findings"].as_array().unwrap();
    let prepared = findings.iter().find(|it| it["what"] == "prepared").unwrap();
    assert_eq!(prepared["grade"], grade, "{found:#}");
    let text = prepared["text"].as_str().unwrap();
    assert!(text.contains("`leasehold prepare`"), "{text}");
    assert_eq!(found["healthy"], grade != "bad");
}

pub fn is_content(place: &Place) {
    let start = Instant::now();
    let found = place.json(["doctor", "--json"]);
    let took = i64::try_from(start.elapsed().as_millis()).unwrap();
    assert_eq!(found["healthy"], true, "{found:#}");
    let findings = found["findings"].as_array().unwrap();
    let what = |name: &str| &findings.iter().find(|it| it["what"] == name).unwrap()["value"];
    assert!(what("reachable")["round_trip_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(*what("race"), json!({ "sent": 8, "granted": 1 }));
    // The engine is on this host, so it has the same clock. The measured difference contains only the time of the
    // doctor's request. A file adds a moment, because the clock of files is not set together with the clock of the
    // host.
    let ahead = what("clock")["ahead_ms"].as_i64().unwrap();
    assert!(
        ahead.abs() <= took + 500,
        "{ahead} ms, in a call of {took} ms"
    );
    let text = place.leasehold(["doctor"]);
    let text = text.with(0);
    assert!(
        text.contains("allowed") && !text.contains('\u{1b}'),
        "{text}"
    );
}

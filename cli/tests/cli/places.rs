//! Tests on collections and indices with other names than the defaults.

use std::time::Duration;

use elasticsearch::{
    Elasticsearch,
    http::{Method, headers::HeaderMap, transport::Transport},
};
use leasehold::{Leases, MongoStore};
use leasehold_tests::engine::Engine;
use mongodb::{Client, bson::Document};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Place, doctor, sessions::a_command_runs_under_a_lease};

const PASSWORD: &str = "a-Password-4-tests";

#[test]
fn a_collection_of_another_name() {
    let usual = Place::on(Engine::MongoDb);
    let (before, options) = usual.0.split_once('?').unwrap();
    let (_, database) = before.rsplit_once('/').unwrap();
    let place = Place(format!("{before}.jobs.at night?{options}"));
    let runtime = Runtime::new().unwrap();
    // The driver gets the address without the database that the command's address names.
    let client = runtime.block_on(Client::with_uri_str(&usual.0)).unwrap();
    let collection = client
        .database(database)
        .collection::<Document>("jobs.at night");
    let leases = {
        let _runtime = runtime.enter();
        Leases::new(MongoStore::new(&collection))
    };
    let ttl = Duration::from_secs(600);
    let lease = runtime.block_on(async { leases.acquire("report", ttl).await.unwrap() });

    let locks = place.json(["ls", "--json"]);
    assert_eq!(locks[0]["key"], "report");
    assert!(locks[0]["fence"].as_i64() >= Some(lease.fence().get()));
    place.leasehold(["run", "report", "--", "true"]).saying(75);
    // A user who names the wrong collection sees in which one nothing is held.
    let empty = usual.leasehold(["ls"]);
    assert_eq!(empty.with(0), "");
    assert!(
        empty.err.contains(&format!("{database}.locks")),
        "{}",
        empty.err
    );
    runtime.block_on(lease.release()).unwrap();
    let run = place.leasehold(["run", "report", "--", "echo", "ran"]);
    assert_eq!(run.with(0), "ran");
}

/// The cluster forbids inline scripts.
#[test]
fn stored_scripts() {
    let inline = Place::on(Engine::ElasticsearchSecured);
    let prepared = inline.leasehold(["prepare"]);
    let run = inline.leasehold(["run", "job", "--", "echo", "never"]);
    for refused in [prepared, run] {
        let said = refused.saying(78);
        assert!(said.contains("?scripts=stored"), "{said}");
    }

    let place = Place(format!("{}?scripts=stored", inline.0));
    place.leasehold(["prepare"]).with(0);
    doctor::is_content(&place);
    a_command_runs_under_a_lease(&place);
}

/// The user has the documented rights, without `monitor`. So the cluster does not tell this user which engine it is.
#[test]
fn a_user_who_may_only_use_the_locks() {
    for engine in [Engine::ElasticsearchSecured, Engine::OpenSearchSecured] {
        let place = Place(format!("{}?scripts=stored", Place::on(engine).0));
        place.leasehold(["prepare"]).with(0);
        let (before, path) = place.0.rsplit_once('/').unwrap();
        let alias = path.split_once('?').unwrap().0;
        let user = format!("user-of-{alias}");
        let (paths, role, account) = match engine {
            Engine::OpenSearchSecured => (
                [
                    "_plugins/_security/api/roles",
                    "_plugins/_security/api/internalusers",
                ],
                json!({
                    "cluster_permissions": ["indices:data/write/bulk", "indices:data/read/mget"],
                    "index_permissions": [{
                        "index_patterns": [format!("{alias}*")],
                        "allowed_actions": ["read", "write", "indices:admin/get", "indices:admin/refresh*"],
                    }],
                }),
                json!({ "password": PASSWORD, "opendistro_security_roles": [&user] }),
            ),
            _ => (
                ["_security/role", "_security/user"],
                json!({ "indices": [{
                    "names": [format!("{alias}*")],
                    "privileges": ["read", "write", "view_index_metadata", "maintenance"],
                }] }),
                json!({ "password": PASSWORD, "roles": [&user] }),
            ),
        };
        for (path, body) in paths.iter().zip([role, account]) {
            put(engine, &format!("{path}/{user}"), &body);
        }
        let host = before.rsplit_once('@').unwrap().1;
        let at = |scheme: &str| Place(format!("{scheme}://{user}:{PASSWORD}@{host}/{path}"));
        let refused = at("http").leasehold(["run", "job", "--", "echo", "never"]);
        assert!(refused.saying(77).contains("monitor"), "{}", refused.err);
        let scheme = match engine {
            Engine::OpenSearchSecured => "opensearch+http",
            _ => "es+http",
        };
        let run = at(scheme).leasehold(["run", "job", "--", "echo", "ran"]);
        assert_eq!(run.with(0), "ran");
        at(scheme).leasehold(["ls", "--all"]).with(0);
        at(scheme)
            .leasehold(["purge", "--older-than", "1d"])
            .with(0);
    }
}

/// The doctor and `prepare` refuse an index with an ingest pipeline.
#[test]
fn the_doctor_tells_of_a_pipeline() {
    for engine in [Engine::Elasticsearch, Engine::OpenSearch] {
        let place = Place::on(engine);
        place.leasehold(["prepare"]).with(0);
        let (_, alias) = place.0.rsplit_once('/').unwrap();
        let index = format!("{alias}-v1");
        set_pipeline(engine, &index, "dedup");

        let ended = place.leasehold(["doctor", "--json"]);
        let found: Value = serde_json::from_str(ended.with(1)).unwrap();
        let findings = found["findings"].as_array().unwrap();
        let prepared = findings.iter().find(|it| it["what"] == "prepared").unwrap();
        assert_eq!(prepared["grade"], "bad", "{found:#}");
        let refused = place.leasehold(["prepare"]);
        for said in [prepared["text"].as_str().unwrap(), refused.saying(78)] {
            for word in ["index.final_pipeline", "dedup", &index, "_none"] {
                assert!(said.contains(word), "{said}");
            }
        }
        set_pipeline(engine, &index, "_none");
        place.leasehold(["prepare"]).with(0);
        doctor::is_content(&place);
    }
}

fn set_pipeline(engine: Engine, index: &str, pipeline: &str) {
    let body = json!({ "index.final_pipeline": pipeline });
    put(engine, &format!("{index}/_settings"), &body);
}

fn put(engine: Engine, path: &str, body: &Value) {
    ask(engine, Method::Put, path, body);
}

/// The answer to a request, which must succeed.
pub fn ask(engine: Engine, method: Method, path: &str, body: &Value) -> Value {
    let client = Elasticsearch::new(Transport::single_node(&engine.address()).unwrap());
    let body = body.to_string();
    let set = async {
        let transport = client.transport();
        let headers = HeaderMap::new();
        let sent = transport.send(method, path, headers, None::<&()>, Some(body), None);
        let answer = sent.await.unwrap().error_for_status_code().unwrap();
        answer.json().await.unwrap()
    };
    Runtime::new().unwrap().block_on(set)
}

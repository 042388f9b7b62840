//! `doctor`: whether the store can be reached and used, step by step.

mod finding;
mod routers;
mod trials;

use std::time::Instant;

use elasticsearch::Elasticsearch;
use futures::{StreamExt, TryStreamExt};
use leasehold::{
    Error, Filter, Leases, MongoStore, Store,
    store::{LeaseId, ListRequest},
};
use mongodb::{
    bson::{Document, doc},
    error::ErrorKind,
};
use opensearch::OpenSearch;
use serde_json::{Value, json};

use self::finding::{Finding, Grade, as_json, as_line};
use super::{
    address::{AddressError, Backend, Opened, message},
    exit::{Code, Failure},
    out, state,
};

/// The indexes that `MongoStore::prepare` makes.
const TTL_INDEXES: [&str; 2] = ["leasehold_cleanup_at", "leasehold_over_at"];
/// The topology of a sharded cluster, as [`server`] tells it.
const SHARDED: &str = "sharded";
/// How many round trips are measured.
const TRIPS: usize = 5;
/// How many held keys are looked at, and how many are named of those whose expiry no ttl explains.
const MOST_LOCKS: usize = 10_000;
const MOST_NAMED: usize = 3;

pub async fn doctor(opened: &Opened, leases: &Leases, json: bool) -> Result<Code, Failure> {
    let mut findings = vec![Finding::new("store", Grade::Good, &opened.place)];
    findings.push(reach(opened).await);
    // The other checks need a store that can be reached.
    if findings.iter().all(|finding| finding.grade != Grade::Bad) {
        let server = server(&opened.backend).await;
        let is_sharded = server.value.get("topology").is_some_and(|it| it == SHARDED);
        findings.push(server);
        if is_sharded && let Backend::MongoDb(_, locks) = &opened.backend {
            findings.push(routers::clocks(locks.client()).await);
        }
        findings.push(indexes(&opened.backend).await);
        findings.push(expiries(leases).await);
        let allowed = trials::allowed(leases).await;
        // A race needs a user who may acquire.
        let may_race = allowed.iter().all(|finding| finding.grade != Grade::Bad);
        findings.extend(allowed);
        if may_race {
            findings.push(trials::race(leases).await);
        }
        findings.push(trials::told(&*opened.store).await);
    }
    tell(&findings, json)
}

/// Reports that no store can be opened. An invalid address is an error of the command line instead.
pub fn nowhere(error: AddressError, json: bool) -> Result<Code, Failure> {
    let failure = Failure::from(error);
    if failure.code() == Code::Usage {
        return Err(failure);
    }
    let finding = Finding::new("reachable", Grade::Bad, failure.to_string());
    tell(&[finding], json)
}

fn tell(findings: &[Finding], json: bool) -> Result<Code, Failure> {
    let bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    if json {
        let findings: Vec<_> = findings.iter().map(as_json).collect();
        out::json(&json!({ "healthy": !bad, "findings": findings }))?;
    } else {
        for finding in findings {
            out::line(&as_line(finding))?;
        }
    }
    Ok(if bad { Code::No } else { Code::Done })
}

/// Checks whether the store answers, and how fast.
async fn reach(opened: &Opened) -> Finding {
    let mut trips = Vec::new();
    for _ in 0..TRIPS {
        let start = Instant::now();
        if let Err(error) = look(&*opened.store).await {
            return Finding::new("reachable", Grade::Bad, message(&error));
        }
        trips.push(start.elapsed());
    }
    trips.sort();
    let median = trips.get(TRIPS / 2).copied().unwrap_or_default();
    let millis = median.as_secs_f64() * 1_000.0;
    let text = format!("yes; a look takes {millis:.1} ms (the median of {TRIPS})");
    Finding::new("reachable", Grade::Good, text).with(json!({ "round_trip_ms": millis }))
}

/// Asks for a list with a prefix that no key has. That needs no right to write.
async fn look(store: &dyn Store) -> Result<(), Error> {
    let filter = Filter::new().prefix(format!("leasehold doctor {}", LeaseId::random()));
    match store.list(&ListRequest::new(filter, None, 1)).await {
        // Whether the store is prepared is checked by `indexes`.
        Err(Error::NotPrepared { .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Looks for keys that are held until a time that no ttl explains.
async fn expiries(leases: &Leases) -> Finding {
    let locks = leases.list(Filter::new().live()).take(MOST_LOCKS);
    let locks: Vec<_> = match locks.try_collect().await {
        Ok(locks) => locks,
        Err(error) => return Finding::new("expiries", Grade::Mind, message(&error)),
    };
    let keys = locks
        .iter()
        .filter(|lock| lock.from_a_clock_ahead().next().is_some());
    let keys: Vec<_> = keys.map(|lock| lock.key.as_str()).collect();
    let lines: Vec<_> = state::from_a_clock_ahead(&locks).take(MOST_NAMED).collect();
    let (grade, text) = match keys.len() {
        0 => (Grade::Good, "a ttl explains each of them".to_owned()),
        count if count > MOST_NAMED => {
            let more = format!("{}; and {} more", lines.join("; "), count - MOST_NAMED);
            (Grade::Mind, more)
        }
        _ => (Grade::Mind, lines.join("; ")),
    };
    Finding::new("expiries", grade, text).with(json!({ "clock_was_ahead": keys }))
}

/// Finds out what kind of server it is, and what an acknowledged grant survives there.
async fn server(backend: &Backend) -> Finding {
    match backend {
        Backend::Sqlite(store) => {
            let path = store.path().display();
            let text = format!("a file for the processes of this host ({path})");
            Finding::new("kind", Grade::Good, text).with(json!({ "kind": "sqlite" }))
        }
        Backend::MongoDb(_, locks) => {
            let client = locks.client();
            let hello = client
                .database("admin")
                .run_command(doc! { "hello": 1 })
                .await;
            match hello {
                Ok(hello) => of_mongodb(&hello),
                Err(_) => unknown_kind(),
            }
        }
        Backend::Elasticsearch(_, client) => of_index("elasticsearch", nodes(client).await),
        Backend::OpenSearch(_, client) => of_index("opensearch", nodes_of_opensearch(client).await),
        _ => unknown_kind(),
    }
}

fn unknown_kind() -> Finding {
    Finding::new("kind", Grade::Mind, "it does not tell what it is")
}

fn of_mongodb(hello: &Document) -> Finding {
    let listed = |name| hello.get_array(name).map_or(0, Vec::len);
    let members = listed("hosts") + listed("passives") + listed("arbiters");
    let (grade, text, topology) = match (hello.get_str("setName"), hello.get_str("msg")) {
        (Ok(name), _) if members > 2 => {
            let text =
                format!("a MongoDB replica set ({name}) of {members}: a grant survives a failover");
            (Grade::Good, text, "replica set")
        }
        (Ok(name), _) => {
            let text = format!(
                "a MongoDB replica set ({name}) of {members}: no other member can take over alone"
            );
            (Grade::Mind, text, "replica set")
        }
        (_, Ok("isdbgrid")) => {
            let text = "a sharded MongoDB: a grant survives a failover of its shard".to_owned();
            (Grade::Good, text, SHARDED)
        }
        _ => {
            let text = "a standalone MongoDB: a grant is lost with its disk, and waiters of other \
                 processes are not told of a release"
                .to_owned();
            (Grade::Mind, text, "standalone")
        }
    };
    let value = json!({ "kind": "mongodb", "topology": topology, "members": members });
    Finding::new("kind", grade, text).with(value)
}

async fn nodes(client: &Elasticsearch) -> Option<Value> {
    let cluster = client.cluster();
    let answer = cluster.health(elasticsearch::cluster::ClusterHealthParts::None);
    answer.send().await.ok()?.json().await.ok()
}

async fn nodes_of_opensearch(client: &OpenSearch) -> Option<Value> {
    let cluster = client.cluster();
    let answer = cluster.health(opensearch::cluster::ClusterHealthParts::None);
    answer.send().await.ok()?.json().await.ok()
}

fn of_index(kind: &str, health: Option<Value>) -> Finding {
    let health = health.unwrap_or_default();
    let nodes = health.get("number_of_data_nodes").and_then(Value::as_u64);
    let (grade, text) = match nodes {
        Some(0 | 1) => (
            Grade::Mind,
            "of one data node: a grant is lost with its disk".to_owned(),
        ),
        Some(nodes) => (Grade::Good, format!("of {nodes} data nodes")),
        None => (
            Grade::Mind,
            "; it does not tell of its nodes (the right `monitor`)".to_owned(),
        ),
    };
    let value = json!({ "kind": kind, "data_nodes": nodes, "status": health.get("status") });
    Finding::new("kind", grade, format!("{kind} {text}")).with(value)
}

/// Checks whether the indexes that `prepare` makes are there.
async fn indexes(backend: &Backend) -> Finding {
    match backend {
        Backend::Sqlite(_) => Finding::new("prepared", Grade::Good, "yes"),
        Backend::MongoDb(store, locks) => match checked(store).await {
            Ok(false) => {
                let text =
                    "yes; without pipelines there is no index that removes dead locks: purge them";
                Finding::new("prepared", Grade::Good, text)
            }
            Ok(true) => match locks.list_index_names().await {
                Ok(names) => of_indexes(&names),
                // The collection is not there yet.
                Err(error) if is_missing(&error) => of_indexes(&[]),
                Err(_) => unseen(),
            },
            Err(unfit) => of_check(Err(unfit)),
        },
        Backend::Elasticsearch(store, _) => of_check(store.check().await),
        Backend::OpenSearch(store, _) => of_check(store.check().await),
        _ => unseen(),
    }
}

/// Whether a collection that is fit for locks is changed by pipelines.
async fn checked(store: &MongoStore) -> Result<bool, Error> {
    store.check().await?;
    store.has_pipelines().await
}

fn of_indexes(names: &[String]) -> Finding {
    let missing = TTL_INDEXES
        .iter()
        .filter(|name| !names.iter().any(|it| it == *name));
    match missing.copied().collect::<Vec<_>>() {
        missing if missing.is_empty() => Finding::new("prepared", Grade::Good, "yes"),
        // Without its indexes MongoDB works: the first lock makes the collection.
        missing => {
            let missing = missing.join(" and ");
            let text = format!(
                "without the index {missing} dead locks stay: run `leasehold prepare`, or purge"
            );
            Finding::new("prepared", Grade::Mind, text)
        }
    }
}

/// The finding for a check of the collection or the index.
fn of_check(checked: Result<(), Error>) -> Finding {
    match checked {
        Ok(()) => Finding::new("prepared", Grade::Good, "yes"),
        Err(Error::NotPrepared { problem, .. }) => {
            let text = format!("no: {problem}; mend that, and run `leasehold prepare`");
            Finding::new("prepared", Grade::Bad, text)
        }
        Err(Error::Denied { .. }) => unseen(),
        Err(error) => Finding::new("prepared", Grade::Bad, message(&error)),
    }
}

fn unseen() -> Finding {
    let text = "this user may not see the indexes, so that it cannot be told";
    Finding::new("prepared", Grade::Mind, text)
}

fn is_missing(error: &mongodb::error::Error) -> bool {
    const NAMESPACE_NOT_FOUND: i32 = 26;
    matches!(&*error.kind, ErrorKind::Command(it) if it.code == NAMESPACE_NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mongodb_is_worth_is_told_by_its_hello() {
        let set = |hosts: &[&str]| doc! { "setName": "rs0", "hosts": hosts.to_vec() };
        let alone = set(&["a"]);
        let mut with_others = set(&["a", "b"]);
        with_others.insert("arbiters", vec!["c"]);
        for (hello, grade, topology, members) in [
            (doc! {}, Grade::Mind, "standalone", 0),
            (doc! { "msg": "isdbgrid" }, Grade::Good, "sharded", 0),
            (alone, Grade::Mind, "replica set", 1),
            (with_others, Grade::Good, "replica set", 3),
        ] {
            let found = of_mongodb(&hello);
            let value = json!({ "kind": "mongodb", "topology": topology, "members": members });
            assert_eq!(found.value, value);
            assert!(found.grade == grade, "{}", found.text);
        }
    }
}

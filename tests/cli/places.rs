//! Locks where an application has them, which does not always keep to the usual names.

use std::time::Duration;

use leasehold::{Leases, MongoStore};
use mongodb::{Client, bson::Document};
use tokio::runtime::Runtime;

use super::{
    Place,
    engine::Engine,
    sessions::{a_command_runs_under_a_lease, the_doctor_is_content},
};

#[test]
fn a_collection_of_another_name() {
    let usual = Place::on(Engine::MongoDb);
    let (before, options) = usual.0.split_once('?').unwrap();
    let (_, database) = before.rsplit_once('/').unwrap();
    let place = Place(format!("{before}.jobs.at night?{options}"));
    let runtime = Runtime::new().unwrap();
    // The driver does without the database that the command's address has.
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
    assert_eq!(locks[0]["fence"], lease.fence().get());
    place.leasehold(["run", "report", "--", "true"]).saying(75);
    assert_eq!(usual.leasehold(["ls"]).with(0), "");
    runtime.block_on(lease.release()).unwrap();
    let run = place.leasehold(["run", "report", "--", "echo", "ran"]);
    assert_eq!(run.with(0), "ran");
}

/// On a cluster that forbids inline scripts.
#[test]
fn stored_scripts() {
    let inline = Place::on(Engine::ElasticsearchSecured);
    inline.leasehold(["prepare"]).with(0);
    let refused = inline.leasehold(["run", "job", "--", "echo", "never"]);
    let said = refused.saying(78);
    assert!(said.contains("?scripts=stored"), "{said}");

    let place = Place(format!("{}?scripts=stored", inline.0));
    place.leasehold(["prepare"]).with(0);
    the_doctor_is_content(&place);
    a_command_runs_under_a_lease(&place);
}

//! A sharded cluster with two routers. The clock of the second router is a minute ahead.

mod clock;
mod clusters;
mod keys;

use mongodb::options::ClientOptions;

use super::{Clients, Engine, Fixture, MongoStore};

/// A fixture, and the options of a client for each router, as for two processes with a router beside each.
async fn routers() -> (Fixture, [ClientOptions; 2]) {
    let fixture = Fixture::new(Engine::MongoDbSharded);
    let options = fixture.options().await;
    let at = |router: usize| {
        let mut options = options.clone();
        options.hosts = vec![options.hosts[router].clone()];
        options
    };
    let routers = [at(0), at(1)];
    (fixture, routers)
}

/// A store behind each router, both on one collection.
async fn stores() -> [MongoStore; 2] {
    let (fixture, routers) = routers().await;
    let stores = routers.map(|router| MongoStore::new(&fixture.collection_with(router)));
    stores[0].prepare().await.unwrap();
    stores
}

async fn connect() -> Clients {
    let [first, second] = stores().await;
    Clients::new(first, second)
}

/// A test for each of these properties of the conformance suite. `scripts/nightly` runs all properties on this engine,
/// because an emulated cluster is slow.
macro_rules! properties {
    ($($property:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $property() {
            let clients = connect().await;
            leasehold_conformance::$property(&clients).await.unwrap();
        }
    )*};
}

properties! {
    takeover_only_after_expiry_on_the_servers_clock
    a_renewal_counts_from_now
    many_renewals_go_in_one_call
    the_fence_always_rises
    an_eviction_frees_the_key
    remove_expired_removes_only_what_is_dead
    purge_removes_only_what_is_long_dead
    a_list_shows_what_its_filter_describes
    permits_are_never_more_than_there_are
    leases_are_upgraded_and_downgraded
    a_late_conversion_undoes_no_later_one
    a_batch_does_what_its_requests_say
    a_repeated_request_takes_its_permits_once
    a_place_tells_who_waits
    processes_are_granted_a_key_in_the_order_in_which_they_came
    a_reader_queues_behind_a_writer
    a_process_that_is_gone_blocks_nobody
    a_place_is_given_back
    a_place_lasts_while_its_process_asks
    permits_queue_behind_a_large_request
    an_upgrade_does_not_queue
    a_batch_keeps_the_queue
    a_tick_that_is_done_is_not_granted_again
}

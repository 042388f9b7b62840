//! Operations that are dropped leave no lock behind, on both engines.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold::Store;
use leasehold_tests::{
    cancel::{
        Setting, Words, faults::FAULTS, leaves_no_lock_behind,
        one_that_abandons_its_request_is_caught,
    },
    evicted,
};

use super::{BOTH, Engine, Fixture};

/// Each of these is in one of the scripts, or in its request, and in no other.
static WORDS: Words = Words {
    acquire: "lock.key = params.key",
    renew: "long until = now + params.ttl",
    release: "all.removeIf(holder -> holder.lease ==",
};

async fn setting(engine: Engine) -> Setting<impl AsyncFn(SocketAddr) -> Arc<dyn Store>> {
    let fixture = Fixture::prepared(engine).await;
    Setting {
        host: fixture.host(),
        direct: fixture.store(),
        connect: async move |address| fixture.store_at(&format!("http://{address}")),
        words: &WORDS,
        // The store gives a request up after a minute.
        bound: Duration::from_secs(50),
    }
}

#[tokio::test]
async fn what_is_given_up_on_elasticsearch_leaves_no_lock_behind() {
    leaves_no_lock_behind(&setting(Engine::Elasticsearch).await, &FAULTS).await;
}

#[tokio::test]
async fn what_is_given_up_on_opensearch_leaves_no_lock_behind() {
    leaves_no_lock_behind(&setting(Engine::OpenSearch).await, &FAULTS).await;
}

#[tokio::test]
async fn a_client_that_abandons_its_request_leaves_a_lock_behind() {
    let caught = async |engine| {
        one_that_abandons_its_request_is_caught(&setting(engine).await).await;
    };
    join_all(BOTH.map(caught)).await;
}

#[tokio::test]
async fn who_was_evicted_is_not_in_the_way() {
    let evicted = async |engine| evicted::is_not_in_the_way(&setting(engine).await).await;
    join_all(BOTH.map(evicted)).await;
}

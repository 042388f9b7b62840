//! A store that is slow when it grants the key: a good part of the ttl is over when the answer comes.

use std::{thread, time::Duration};

use leasehold::store::LeaseId;
use leasehold_tests::{engine::Engine, proxy::Proxy};

use super::{Place, TIMEOUT};

const TTL: Duration = Duration::from_secs(15);

#[test]
fn a_lease_that_is_granted_late_is_renewed_before_the_command_starts() {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(1).enable_all().build().unwrap();
    let address = Engine::MongoDbReplicaSet.address();
    let server = address.split("://").nth(1).unwrap();
    let server = server.split(['/', '?']).next().unwrap().to_owned();
    let proxy = threads.block_on(Proxy::to(server));
    let (database, timeout) = (format!("locks-{}", LeaseId::random()), TIMEOUT.as_millis());
    let options = format!("directConnection=true&serverSelectionTimeoutMS={timeout}");
    let place = Place(format!("mongodb://{}/{database}?{options}", proxy.address));
    place.leasehold(["run", "other", "--", "true"]).with(0);

    let granted = proxy.hold_the_answer_to("findAndModify");
    // A renewal without an answer is sent again.
    let renewed: Vec<_> = (0..20)
        .map(|_| proxy.hold_the_answer_to("findAndModify"))
        .collect();
    let ttl = format!("{}s", TTL.as_secs());
    let mut going = place.start([
        "run", "job", "--ttl", &ttl, "--wait", "1h", "--", "echo", "ready",
    ]);
    threads.block_on(granted.reached());
    // The renewal of the lease is due when a third of the ttl is over.
    thread::sleep(TTL / 3 + TTL / 15);
    granted.open();
    threads.block_on(renewed[0].reached());
    thread::sleep(TTL / 15);
    let early = going.out.try_recv();
    assert!(early.is_err(), "{early:?} before the renewal was answered");
    proxy.behave();
    drop(renewed);
    assert_eq!(going.line(), "ready");
}

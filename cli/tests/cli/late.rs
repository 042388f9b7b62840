//! A store that is slow when it grants the key: a good part of the ttl is over when the answer comes.

use std::{thread, time::Duration};

use leasehold::store::LeaseId;
use leasehold_tests::{engine::Engine, proxy::Proxy};

use super::{Going, Place, TIMEOUT};

const TTL: Duration = Duration::from_secs(15);

#[test]
fn a_lease_that_is_granted_late_is_renewed_before_the_command_starts() {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(1).enable_all().build().unwrap();
    let address = Engine::MongoDbReplicaSet.address();
    let server = address.split("://").nth(1).unwrap();
    let server = server.split(['/', '?']).next().unwrap().to_owned();
    let options = format!(
        "directConnection=true&serverSelectionTimeoutMS={}",
        TIMEOUT.as_millis()
    );
    let ttl = format!("{}s", TTL.as_secs());
    // Either of them waits for the key, so it goes on if the lease is lost before the command starts.
    for words in [&["run", "job", "--wait", "1h"][..], &["lead", "job"]] {
        // With a store of its own, no request of the first task comes to a gate of the second.
        let proxy = threads.block_on(Proxy::to(server.clone()));
        let database = format!("locks-{}", LeaseId::random());
        let place = Place(format!("mongodb://{}/{database}?{options}", proxy.address));
        place.leasehold(["run", "other", "--", "true"]).with(0);

        let granted = proxy.hold_the_answer_to("findAndModify");
        // A renewal without an answer is sent again.
        let renewed: Vec<_> = (0..20)
            .map(|_| proxy.hold_the_answer_to("findAndModify"))
            .collect();
        let command = ["--ttl", &ttl, "--", "echo", "ready"];
        let mut going = Going::of(place.command(words.iter().copied().chain(command)));
        threads.block_on(granted.reached());
        // The renewal of the lease is due when a third of the ttl is over.
        thread::sleep(TTL / 3 + TTL / 15);
        granted.open();
        threads.block_on(renewed[0].reached());
        thread::sleep(TTL / 15);
        let early = going.out.try_recv();
        assert!(
            early.is_err(),
            "{words:?}: {early:?} before the renewal was answered"
        );
        proxy.behave();
        drop(renewed);
        assert_eq!(going.line(), "ready", "{words:?}");
    }
}
